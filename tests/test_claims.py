"""`hifi claims`: what a file of claims may say, what is read as evidence, and which verdict follows."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats
from synthetic_runs import flatness, write_figure, write_run

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.reports import claim_spec
from hifi_cli.reports.claim_spec import DifferenceClaim, methods_of
from hifi_cli.reports.claims import published_effect

RIVALS = "claims: {mine: {kind: difference, text: BitFit beats Full-FT., where: chapter 3, first: bitfit, second: full-ft}}"
SIMPLE = {"kind": "difference", "text": "t", "where": "w"}
OWN = f"description: My thesis\nprotocol: hifi\nbackbone: bert-large\ntasks: [rte, cola]\nmargin: 0.4\n{RIVALS}\n"


@pytest.fixture
def own(hifi):  # the fixture changes the working directory
    Path("mine.yaml").write_text(OWN)
    return lambda *words: hifi("claims", "mine.yaml", *words)


def write_pairs(gap, *, seeds=range(1, 5), tasks=("rte", "cola"), noise=0.004, **changes):
    """Runs of BitFit and Full-FT whose differences have the mean `gap` (in points) on each task."""
    deviations = noise * stats.norm.ppf((np.arange(len(seeds)) + 0.5) / len(seeds))
    for task in tasks:
        for seed, deviation in zip(seeds, deviations - deviations.mean(), strict=True):
            write_run("results", "full-ft", task, seed, 0.6)
            write_run("results", "bitfit", task, seed, 0.6 + gap / 100 + deviation, **changes)


def row_of(answer, name="mine"):
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    row = next(row for row in content["rows"] if row["name"] == name)
    return row["cells"], row["notes"][0], content["missing"]


@pytest.mark.parametrize("name", registry.names("claims"))
@pytest.mark.parametrize("protocol", [None, "laptop", "demo"])
def test_shipped_claims_name_only_what_exists(name, protocol):
    file = claim_spec.load(name, protocol=protocol)
    assert len(file.claims) >= (1 if name == "rankings" else 15)
    for key, claim in file.claims.items():
        named = {"methods": methods_of(claim), "tasks": [*claim.tasks, *file.tasks], "backbones": [file.backbone]}
        for kind, names in named.items():
            assert set(names) <= set(registry.names(kind)), (key, kind)
        if isinstance(claim, DifferenceClaim) and claim.published:  # the published rows and columns are there
            for first, second in itertools.product(claim.first, claim.second):
                assert published_effect(claim, first, second, [], "").value is not None, key


def test_a_protocol_may_leave_out_claims():
    assert "trains-4-percent" in claim_spec.load("hifi", protocol="hifi").claims
    assert "trains-4-percent" not in claim_spec.load("hifi", protocol="laptop").claims
    with pytest.raises(UsageError, match="trains-4-percent is not asked under protocol laptop"):
        claim_spec.select(["hifi/trains-4-percent"], protocol="laptop")


def test_both_kinds_of_claim_are_shipped():
    kinds = {claim.kind for name in registry.names("claims") for claim in claim_spec.load(name).claims.values()}
    assert kinds == {"difference", "number"}


def effect_of(name, key, first=0, second=0):
    file = claim_spec.load(name)
    claim = file.claims[key]
    return published_effect(claim, claim.first[first], claim.second[second], [], file.backbone)


def test_a_published_difference_below_its_own_error_is_named():
    """The mean is over tasks; of MNLI's two columns it has the matched one, as runs do."""
    effect = effect_of("hifi", "above-full-ft")
    hifi = [93.5, 94.3, 85.9, 60.4, 89.7, 87.2, 71.5, 72.0]
    full = [93.4, 94.1, 86.7, 59.6, 88.9, 86.6, 71.2, 71.7]
    deviations = np.array([0.6, 0.3, 0.7, 0.7, 0.4, 0.3, 0.2, 0.4] * 2)
    variances = deviations**2 / 3 / 64
    half = stats.t.ppf(0.975, variances.sum() ** 2 / (variances**2 / 2).sum()) * variances.sum() ** 0.5
    assert effect.value == pytest.approx(np.mean(hifi) - np.mean(full))
    assert effect.half_width == pytest.approx(half) and half > effect.value
    assert effect.doubts == ["on the GLUE test server", "less than its own error from the printed standard deviations"]
    assert effect_of("hifi", "above-peft").doubts == ["on the GLUE test server"]  # +0.71 over Adapter is more than its error


def test_misprints_and_opposite_numbers_are_named():
    assert any("68.31 here" in doubt for doubt in effect_of("ehft", "above-first-stages").doubts)
    assert "the published numbers say the opposite" in effect_of("hifi", "sparse-above-structured", 1, 0).doubts


def test_verdicts_of_runs(own):
    cells, note, missing = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "not run" and note.startswith("BitFit beats Full-FT (chapter 3)")
    command = "hifi train --task rte,cola --method {} --backbone bert-large --protocol hifi --seeds 1,2,3"
    assert [entry["command"] for entry in missing] == [command.format("bitfit"), command.format("full-ft")]
    assert f"- missing: `{command.format('bitfit,full-ft')}`\n" in own("--format", "md").out
    write_pairs(2.0)
    cells, _, missing = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "reproduced" and cells["runs"]["value"] == 16 and not missing
    assert cells["ours"]["value"] == pytest.approx(2.0) and cells["required"]["text"] == "> 0"
    write_pairs(-2.0)
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "not reproduced"
    assert (own("--strict").code, own().code) == (1, 0)


def test_an_undecided_claim_says_how_many_seeds_it_needs(own):
    write_pairs(0.5, noise=0.012)
    cells, _, missing = row_of(own("--format", "json"))
    words = cells["verdict"]["value"].split()
    assert words == ["undecided", "(about", words[2], "more", "seeds)"] and 4 <= int(words[2]) <= 100 and not missing


def test_a_difference_whose_interval_is_below_the_margin_is_not_reproduced(own):
    write_pairs(0.3, seeds=range(1, 9), noise=0.0005)
    cells, note, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "not reproduced" and "There is a difference, but smaller than +0.40 points" in note


def test_shared_runs_are_counted_once(hifi):
    content = yaml.safe_load(OWN)
    content["claims"] = {"order": {**SIMPLE, "first": "full-ft", "second": ["bitfit", "lora"]}}
    Path("order.yaml").write_text(yaml.safe_dump(content))
    write_pairs(-2.0)
    for seed in (1, 2):
        write_run("results", "lora", "rte", seed, 0.5)
    cells, _, _ = row_of(hifi("claims", "order.yaml", "--format", "json"), "order")
    assert cells["runs"]["value"] == 2 * 2 * 4 + 2


def test_one_seed_per_task_decides_nothing(own):
    write_pairs(5.0, seeds=[1])
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "undecided (a task has one seed)"


def test_collapsed_runs_count_unless_they_are_excluded(own):
    write_pairs(2.0)
    write_run("results", "bitfit", "rte", 9, 0.5, collapsed=True)
    write_run("results", "full-ft", "rte", 9, 0.5)
    for words, runs in (((), 18), (("--exclude", "collapsed"), 16)):
        cells, note, _ = row_of(own("--format", "json", *words))
        assert cells["runs"]["value"] == runs and ("1 collapsed run left out" in note) is bool(words)


def test_a_claim_is_undecided_before_all_of_its_tasks_have_runs(own):
    write_pairs(2.0, tasks=["rte"])
    cells, note, missing = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "undecided (1 of 2 tasks)" and cells["ours"]["value"] == pytest.approx(2.0)
    assert "On RTE." in note and "--task cola" in missing[0]["command"]
    write_pairs(-2.0, tasks=["rte"])
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "undecided (1 of 2 tasks)"
    write_pairs(-2.0)
    cells, note, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "not reproduced" and "On CoLA, RTE" in note


DIVERGED = {"status": "diverged", "scores": None, "metrics": None, "collapsed": True}


def test_no_verdict_rests_on_the_scores_of_the_side_that_diverged_more_often(own):
    write_pairs(-2.0)
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "not reproduced"
    write_run("results", "full-ft", "rte", 10, 0.0, **DIVERGED)  # the runs of Full-FT that are left are its better ones
    cells, _, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "undecided (the method that is ahead diverged more often)"
    write_run("results", "bitfit", "rte", 10, 0.0, **DIVERGED)
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "not reproduced"


def test_an_order_holds_if_every_comparison_does(hifi):
    content = yaml.safe_load(OWN)
    content["claims"] = {"order": {**SIMPLE, "first": ["bitfit", "lora"], "second": "full-ft"}}
    Path("order.yaml").write_text(yaml.safe_dump(content))
    write_pairs(2.0)
    cells, note, _ = row_of(hifi("claims", "order.yaml", "--format", "json"), "order")
    assert cells["verdict"]["value"] == "undecided (1 of 2 comparisons not run)" and "LoRA above Full-FT: not run" in note
    for task in ("rte", "cola"):
        for seed in range(1, 5):
            write_run("results", "lora", task, seed, 0.55 + 0.001 * seed)
    cells, note, _ = row_of(hifi("claims", "order.yaml", "--format", "json"), "order")
    assert cells["verdict"]["value"] == "not reproduced" and cells["ours"]["value"] == pytest.approx(-4.75)
    assert "BitFit above Full-FT: ours +2.00" in note and "LoRA above Full-FT: ours -4.75" in note


def test_a_claim_may_be_about_every_task(hifi):
    content = yaml.safe_load(OWN)
    claim = {**SIMPLE, "first": "bitfit", "second": "full-ft", "every_task": True, "at_least": -0.5}
    Path("every.yaml").write_text(yaml.safe_dump({**content, "claims": {"every": claim}}))
    write_pairs(4.0, tasks=["rte"], seeds=range(1, 9))
    write_pairs(-3.0, tasks=["cola"], seeds=range(1, 9))
    cells, note, _ = row_of(hifi("claims", "every.yaml", "--format", "json"), "every")
    assert cells["verdict"]["value"] == "not reproduced" and cells["ours"]["value"] == pytest.approx(-3.0)
    assert "BitFit above Full-FT on RTE: ours +4.00" in note and "on CoLA: ours -3.00" in note
    write_pairs(0.0, tasks=["cola"], seeds=range(1, 9), noise=0.001)
    assert row_of(hifi("claims", "every.yaml", "--format", "json"), "every")[0]["verdict"]["value"] == "reproduced"


def test_bounds_of_a_difference(hifi):
    content = yaml.safe_load(OWN)
    claim = {**SIMPLE, "first": "bitfit", "second": "full-ft"}
    equal = {**claim, "at_least": -1.0, "at_most": 1.0}
    Path("bounds.yaml").write_text(
        yaml.safe_dump({**content, "claims": {"not-worse": {**claim, "at_least": -1.0}, "equal": equal}})
    )
    for gap, not_worse, equal in (
        (0.0, "reproduced", "reproduced"),
        (3.0, "reproduced", "not reproduced"),
        (-3.0, "not reproduced", "not reproduced"),
    ):
        write_pairs(gap)
        rows = json.loads(hifi("claims", "bounds.yaml", "--format", "json").out)["rows"]
        assert {row["name"]: row["verdict"] for row in rows} == {"not-worse": not_worse, "equal": equal}


SWEEP = {**SIMPLE, "kind": "number", "figure": "hifi-6-k", "column": "score", "scale": 100, "unit": "points"}


def test_groups_of_values_of_a_sweep_are_compared(hifi):
    higher = {**SWEEP, "rows": {"x": 3}, "second_rows": {"x": [1, 6]}, "at_least": 0.0, "margin": 0.5}
    absent = {**SWEEP, "rows": {"x": 3}, "second_rows": {"x": [1, 8]}, "at_least": 0.0}
    content = {**yaml.safe_load(OWN), "protocol": "laptop", "backbone": "minilm", "claims": {"k": higher, "absent": absent}}
    Path("k.yaml").write_text(yaml.safe_dump(content))
    for low, verdict in ((0.50, "reproduced"), (0.599, "not reproduced")):
        scores = {1: low, 3: 0.6, 6: low + 0.002}
        rows = [
            ["cb", x, seed, score + 0.001 * seed + 0.0001 * (x == 3) * (seed - 4)]
            for x, score in scores.items()
            for seed in range(1, 8)
        ]
        write_figure("results", "hifi-6-k", pd.DataFrame(rows, columns=["task", "x", "seed", "score"]))
        answer = hifi("claims", "k.yaml", "--format", "json")
        cells, _, _ = row_of(answer, "k")
        assert cells["ours"]["value"] == pytest.approx(100 * (0.6 - low - 0.001)) and cells["verdict"]["value"] == verdict
        assert row_of(answer, "absent")[0]["verdict"]["value"] == "not run", "no run has x = 8"


FLATTER = ("claims", "hifi/flatter-minimum", "--protocol", "laptop", "--format", "json")


def test_ratios_are_read_from_a_figure_and_decided_as_logarithms(hifi):
    ratios = [1.5 * (1 + 0.02 * (seed % 3 - 1)) for seed in range(1, 8)]
    write_figure("results", "hifi-7-flatness", flatness(range(1, 8), 1.5))
    cells, _, missing = row_of(hifi(*FLATTER), "flatter-minimum")
    logs = np.log(ratios)
    assert cells["ours"]["value"] == pytest.approx(np.exp(logs.mean()))
    interval = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    assert cells["interval"]["value"] == pytest.approx(np.exp(interval).tolist())
    assert cells["verdict"]["value"] == "not reproduced" and not missing
    _, note, _ = row_of(hifi(*FLATTER, "--score", "last"), "flatter-minimum")
    assert "Read from a figure, whose numbers are not those of --score last" in note


def test_a_figure_of_one_seed_or_with_overrides_decides_no_claim(hifi):
    write_figure("results", "hifi-7-flatness", flatness([1], 0.5))
    cells, _, _ = row_of(hifi(*FLATTER), "flatter-minimum")
    assert (cells["verdict"]["value"], cells["ours"]["value"]) == ("undecided (a single seed)", pytest.approx(0.5))
    frame = pd.DataFrame([["mrpc", 0.85, layer, 7] for layer in range(12)], columns=["task", "damping", "layer", "iterations"])
    write_figure("results", "hifi-6-d", frame)
    words = ("claims", "hifi/pagerank-12-steps", "--protocol", "laptop", "--format", "json")
    assert row_of(hifi(*words), "pagerank-12-steps")[0]["verdict"]["value"] == "undecided (a single seed)"
    csv = write_figure("results", "hifi-7-flatness", flatness(range(1, 8), 0.5))
    csv.rename(csv.with_stem(f"{csv.stem}-limit-32"))
    cells, _, missing = row_of(hifi(*FLATTER), "flatter-minimum")
    assert cells["verdict"]["value"] == "not run"
    assert missing[0]["command"].startswith("hifi figure hifi-7-flatness --protocol laptop")


def test_a_figure_that_was_not_computed_is_named_with_its_command(hifi):
    _, _, missing = row_of(hifi("claims", "hifi/flatter-minimum", "--protocol", "demo", "--format", "json"), "flatter-minimum")
    assert missing[0]["command"] == "hifi figure hifi-7-flatness --protocol demo"
    answer = hifi("claims", "hifi/flatter-minimum", "--backbone", "minilm", "--format", "json")
    command = json.loads(answer.out)["missing"][0]["command"]
    assert command == "hifi figure hifi-7-flatness --backbone minilm --protocol hifi"


def test_the_time_of_runs_decides_relative_to_full_ft(hifi):
    """Within 5 %: EH-FT's section 4.3."""
    words = ("claims", "ehft/same-time", "--protocol", "laptop-ehft", "--format", "json")
    place = {"protocol": "laptop-ehft", "backbone": "minilm"}
    missing = row_of(hifi(*words), "same-time")[2]
    commands = " ".join(entry["command"] for entry in missing)
    assert "--method eh-ft-bitfit" in commands and "--method full-ft" in commands
    for slower, verdict in ((1.0, "reproduced"), (1.5, "not reproduced")):
        for task in ("cb", "rte", "mrpc", "cola", "stsb"):
            for seed in (1, 2, 3):
                write_run("results", "full-ft", task, seed, 0.5, time_s=30.0 + seed / 100, **place)
                write_run("results", "eh-ft-bitfit", task, seed, 0.5, time_s=slower * (30.0 + seed / 50), **place)
        cells = row_of(hifi(*words), "same-time")[0]
        assert cells["ours"]["value"] == pytest.approx(slower, rel=0.01)
        assert cells["verdict"]["value"] == verdict, cells


def test_trained_percent_is_of_the_encoder_that_the_paper_states(hifi):
    params = {"trainable_backbone": 42, "total": 1000}
    write_run("results", "hifi-layerwise", "rte", 1, 0.5, params=params)
    write_run("results", "hifi-layerwise", "rte", 1, 0.5, params={**params, "total": 100}, backbone="minilm")
    for words in ((), ("--backbone", "minilm")):
        cells, note, _ = row_of(hifi("claims", "hifi/trains-4-percent", *words, "--format", "json"), "trains-4-percent")
        assert (cells["ours"]["value"], cells["verdict"]["value"]) == (4.2, "reproduced")
    assert "(section 5.3; bert-large)" in note


def test_few_shot_claims_read_few_shot_runs(hifi):
    for seed in range(1, 7):
        for method, score in (("hifi-layerwise", 0.6), ("full-ft", 0.5)):
            for task in ("qnli", "sst2", "mnli", "cola", "mrpc", "rte", "qqp"):
                write_run("results", method, task, seed, score + 0.001 * seed, shots=16, protocol="hifi-fewshot")
    words = ("claims", "hifi/few-shot-above-full-ft", "hifi/above-full-ft", "--format", "json")
    answer = hifi(*words)
    cells, _, missing = row_of(answer, "few-shot-above-full-ft")
    assert cells["ours"]["value"] == pytest.approx(10.0) and cells["verdict"]["value"] == "reproduced"
    assert all("--shots" not in entry["command"] and "--protocol hifi " in entry["command"] for entry in missing)


def test_a_time_may_be_relative_to_another_methods(hifi):
    for task in ("demo-acceptability", "demo-entailment"):
        for seed in range(1, 8):
            for method, seconds in (("hifi-layerwise", 36.0), ("bitfit", 30.0)):
                write_run("results", method, task, seed, 0.5, protocol="demo", backbone="demo", time_s=seconds + seed / 100)
    words = ("claims", "hifi/as-fast-as-bitfit", "--protocol", "demo", "--format", "json")
    cells = row_of(hifi(*words), "as-fast-as-bitfit")[0]
    assert cells["ours"]["value"] == pytest.approx(1.2, rel=0.01), cells
    assert cells["verdict"]["value"] == "not reproduced"


def test_the_report_says_the_claims_in_words(own, hifi):
    write_pairs(2.0)
    assert hifi("report", "--claims", "mine.yaml").code == 0
    page = Path("results/report.html").read_text()
    assert "My thesis (protocol hifi, backbone bert-large)" in page
    assert "<li>reproduced: BitFit beats Full-FT (chapter 3): ours +2.00 [" in page
    hifi("report")
    page = Path("results/report.html").read_text()
    assert "Claims of Gui &amp; Xiao" in page and "Claims of Yang" not in page  # EH-FT claims nothing under this protocol
    assert re.search("not run: .*above-sparse, midtop-close", page)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "better"}, "kind"),
        ({"frist": "bitfit"}, "unknown key"),
        ({"margin": 0}, "margin"),
        ({"kind": "number", "measure": "time", "at_most": 1}, "a measured number requires `method`"),
        ({"kind": "number", "figure": "ehft-1"}, "`at_least`, `at_most` or both are required"),
        ({"kind": "number", "figure": "ehft-1", "measure": "time", "at_most": 1}, "either `figure` or `measure`"),
        ({"kind": "number", "figure": "ehft-111", "at_most": 1}, "unknown figure 'ehft-111'; did you mean 'ehft-1"),
        ({"first": ["bitfit", "full-ft"]}, "a method is in `first` and in `second`"),
        ({"second": []}, "second"),
        ({"at_least": 2, "at_most": 1}, "`at_least` is above `at_most`"),
        ({"second": "full-fft"}, "unknown method 'full-fft'; did you mean 'full-ft'?"),
    ],
)
def test_mistakes_in_a_file_of_claims_are_named(hifi, change, message):
    content = yaml.safe_load(OWN)
    claim = content["claims"]["mine"]
    for key in ("first", "second") if change.get("kind") == "number" else ():
        claim.pop(key)
    claim |= change
    Path("mine.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("claims", "mine.yaml")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1) and message in answer.err


def test_wrong_names_are_told(hifi):
    assert "did you mean 'above-full-ft'?" in hifi("claims", "hifi/above-ful").err
    assert "unknown" in hifi("claims", "nothing").err
    assert hifi("claims", "none.yaml").code == 3
