"""HiFi's tables 1 (measured) and 4 (counted), and what training costs."""

import json
import multiprocessing
from functools import partial
from pathlib import Path

import pytest
from hifi_processes import COPY_METHOD
from parameter_formulas import Shape, trained_count

from hifi_cli.config import registry
from hifi_cli.runs import method_costs


def test_table_1_tells_what_each_method_adds_and_stores(hifi, encoders, monkeypatch):
    monkeypatch.setattr(method_costs, "ROUNDS", 1)
    monkeypatch.setattr(method_costs, "TOKENS", 16)
    rows = ["full-ft", "lora", "adapter", "diff-pruning", "hifi-layerwise", "hifi-midtop", "prefix-tuning"]
    Path("mine.yaml").write_text(
        f"description: mine\nkind: costs\nprotocol: hifi\nbackbone: {encoders['bert']}\nrows: [{', '.join(rows)}]\n"
    )
    answer = hifi("table", "mine.yaml", "--format", "json")
    assert answer.code == 0, answer.err
    cost_files = {path.name.rpartition("-")[0]: json.loads(path.read_text()) for path in Path("results/costs").rglob("*.json")}
    assert cost_files.keys() == set(rows)
    plain = cost_files["full-ft"]
    shape = Shape(2, 4, 32, 48, 0)
    assert plain["stored_bytes"] == pytest.approx(plain["plain_bytes"], rel=0.2)
    assert (plain["added_in_training"], plain["added_in_result"], plain["modules_added"]) == (0, 0, 0)
    assert (cost_files["lora"]["added_in_training"], cost_files["lora"]["added_in_result"]) == (trained_count("lora", shape), 0)
    adapter = trained_count("adapter", shape) - shape.norms
    assert (cost_files["adapter"]["added_in_training"], cost_files["adapter"]["added_in_result"]) == (adapter, adapter)
    assert cost_files["adapter"]["modules_added"] == 2 * 2 * 2
    assert cost_files["diff-pruning"]["added_in_training"] > plain["total"]
    assert cost_files["diff-pruning"]["added_in_result"] == 0
    assert (cost_files["hifi-layerwise"]["added_in_training"], cost_files["hifi-layerwise"]["modules_added"]) == (0, 0)
    saved = cost_files["hifi-layerwise"]["stored_bytes"] - cost_files["hifi-midtop"]["stored_bytes"]
    assert saved == pytest.approx(4 * trained_count("hifi-midtop", shape), rel=0.1)
    assert all(cost["latency"] > 0 for cost in cost_files.values())
    assert "already" not in answer.err and hifi("table", "mine.yaml").err.count("measuring") == 0  # measured once


@pytest.mark.slow
def test_the_cost_table_sets_training_beside_full_ft(hifi, encoders, monkeypatch):
    monkeypatch.setattr(method_costs, "ROUNDS", 1)
    elsewhere, copy = method_costs.measure_in_subprocess, multiprocessing.get_context(COPY_METHOD)
    monkeypatch.setattr(multiprocessing, "get_context", {"spawn": copy}.get)  # a new process would import everything again

    def near(config, rival):
        return (elsewhere if config.method == "hifi-midtop" else partial(method_costs.measure_training, threads=1))(
            config, rival
        )

    monkeypatch.setattr(method_costs, "measure_in_subprocess", near)
    rows = ["hifi-layerwise", "hifi-midtop", "eh-ft-bitfit", "linear-probing"]
    Path("mine.yaml").write_text(
        f"description: mine\nkind: training-costs\nprotocol: hifi\nbackbone: {encoders['bert']}\nrows: [{', '.join(rows)}]\n"
    )
    answer = hifi("table", "mine.yaml", "--format", "json")
    assert answer.code == 0, answer.err
    cost_files = {
        path.name.rpartition("-")[0]: json.loads(path.read_text()) for path in Path("results/training-costs").rglob("*.json")
    }
    assert cost_files.keys() == {"full-ft", *rows}
    for name, cost in cost_files.items():
        assert cost["step_ratio"] > 0 and cost["step_s"] > 0
        assert (cost["scoring_fraction"] > 0) == name.startswith("hifi") and cost["scoring_fraction"] < 1
    stored = cost_files["hifi-layerwise"]["stored_bytes"] / cost_files["full-ft"]["stored_bytes"]
    assert f"x {stored:.3g} (" in answer.out
    assert hifi("table", "mine.yaml").err.count("measuring") == 0  # measured once


def test_every_table_of_both_papers_is_there(hifi):
    papers = {*(f"hifi-{number}" for number in range(1, 7)), "hifi-2-fewshot", *(f"ehft-{number}" for number in range(1, 5))}
    assert papers <= set(registry.names("tables"))


def test_table_4_counts_the_data_at_hand(hifi, data):
    answer = hifi("table", "hifi-4", "--data-dir", data, "--published", "--format", "json")
    assert answer.code == 0, answer.err
    table = json.loads(answer.out)
    text = json.dumps(table)
    assert '"48"' in text and "2,490" in text
    assert "the official release has 2,490 rows" in text
