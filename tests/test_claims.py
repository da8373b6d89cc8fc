"""`hifi claims`: what a file of claims may say, what is read as evidence, and which verdict follows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats
from synthetic_runs import flatness, write_figure, write_run

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.records.cost_files import ResultCosts
from hifi_cli.records.run_files import Provenance
from hifi_cli.reports import claim_spec
from hifi_cli.reports.claim_published import published_effects
from hifi_cli.reports.claim_spec import OrderClaim, methods_of

RIVALS = "claims: {mine: {kind: superior, text: BitFit beats Full-FT., where: chapter 3, first: bitfit, second: full-ft}}"
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
    assert len(file.claims) >= (1 if name == "rankings" else 18)
    for key, claim in file.claims.items():
        named = {"methods": methods_of(claim), "tasks": [*claim.tasks, *file.tasks], "backbones": [file.backbone]}
        for kind, names in named.items():
            assert set(names) <= set(registry.names(kind)), (key, kind)
        for effect in published_effects(claim):  # the published rows and columns are there
            assert effect.value is not None or not getattr(claim, "published", None), key


def test_a_protocol_may_leave_out_claims_and_a_report_shows_only_those_about_its_protocols():
    assert "trains-4-percent" in claim_spec.load("hifi", protocol="hifi").claims
    assert "trains-4-percent" not in claim_spec.load("hifi", protocol="laptop").claims
    with pytest.raises(UsageError, match="trains-4-percent is not asked under protocol laptop"):
        claim_spec.select(["trains-4-percent"], protocol="laptop")
    settings = [("hifi-fewshot", "minilm"), ("laptop", "minilm")]
    laptop = [claim_spec.load(name, protocol="laptop", backbone="minilm") for name in ("ehft", "hifi", "rankings")]
    assert claim_spec.claims_of_settings([], settings) == laptop
    assert claim_spec.claims_of_settings([], settings[:1]) == []
    assert [file.protocol for file in claim_spec.claims_of_settings(["hifi"], settings)] == ["hifi-fewshot", "laptop"]


def test_every_kind_of_claim_is_shipped():
    kinds = {claim.kind for name in registry.names("claims") for claim in claim_spec.load(name).claims.values()}
    assert kinds == {"superior", "not-worse", "order", "trend", "property", "cost"}


def effect_of(name, claim, number=0):
    return published_effects(claim_spec.load(name).claims[claim])[number]


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
    assert "less than its own error" in effect.doubts[0] and "Full-FT has none" in effect.doubts[0]
    assert effect_of("hifi", "above-peft").doubts == []  # +0.71 over Adapter is more than its error


def test_misprints_and_what_one_task_decides_are_named():
    assert "68.31 here" in effect_of("ehft", "above-first-stages").misprints[0]
    assert effect_of("ehft", "above-full-ft", 2).doubts[1] == "mostly from one task: +0.20 without CB"
    claim = claim_spec.load("hifi").claims["sparse-above-structured"]
    assert isinstance(claim, OrderClaim) and claim.levels[1][0] == "adapter"
    assert effect_of("hifi", "sparse-above-structured", 5).doubts[0] == "the published numbers say the opposite"


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


def test_an_undecided_claim_says_how_many_seeds_and_which_command(own):
    write_pairs(0.5, noise=0.012)
    cells, _, missing = row_of(own("--format", "json"))
    words = cells["verdict"]["value"].split()
    more = int(words[2])
    assert words == ["undecided", "(about", str(more), "more", "seeds)"] and 4 <= more <= 100
    assert missing[0]["command"].endswith(f"--method bitfit --backbone bert-large --protocol hifi --seeds 5-{4 + more}")


def test_a_difference_whose_interval_is_below_the_margin_is_not_reproduced(own):
    write_pairs(0.3, seeds=range(1, 9), noise=0.0005)
    cells, note, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "not reproduced" and "There is a difference, but smaller than +0.40 points" in note


def test_shared_runs_are_counted_once(hifi):
    content = yaml.safe_load(OWN)
    content["claims"] = {"order": {"kind": "order", "text": "t", "where": "w", "levels": [["full-ft"], ["bitfit", "lora"]]}}
    Path("order.yaml").write_text(yaml.safe_dump(content))
    write_pairs(-2.0)
    for seed in (1, 2):
        write_run("results", "lora", "rte", seed, 0.5)
    cells, _, _ = row_of(hifi("claims", "order.yaml", "--format", "json"), "order")
    assert cells["runs"]["value"] == 2 * 2 * 4 + 2


def test_one_seed_per_task_decides_nothing(own):
    write_pairs(5.0, seeds=[1])
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "undecided (a task has one seed)"


def test_failed_runs_are_shown_and_part_of_the_verdict(own):
    write_pairs(2.0)
    write_run("results", "bitfit", "rte", 9, 0.5, collapsed=True)
    write_run("results", "full-ft", "rte", 9, 0.5)
    _, note, _ = row_of(own("--format", "json"))
    interval = stats.binomtest(1, 9).proportion_ci(method="wilson")
    assert (
        f"BitFit: 1 of 9 ({100 * interval.low:.0f} to {100 * interval.high:.0f} %), Full-FT: 0 of 9 (0 to 30 %); p = 1" in note
    )
    write_run("results", "bitfit", "rte", 10, 0.0, status="diverged", scores=None, metrics=None, collapsed=True)
    cells, note, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "undecided (failed runs)"
    assert "BitFit diverged more often, and a diverged run has no score" in note


def test_a_claim_is_undecided_before_all_of_its_tasks_have_runs(own):
    write_pairs(2.0, tasks=["rte"])
    cells, note, missing = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "undecided (1 of 2 tasks)" and cells["ours"]["value"] == pytest.approx(2.0)
    assert "On RTE. 1 of its 2 tasks have no runs to compare" in note and "--task cola" in missing[0]["command"]
    write_pairs(-2.0, tasks=["rte"])
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "undecided (1 of 2 tasks)"
    write_pairs(-2.0)
    cells, note, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "not reproduced" and "On RTE, CoLA" in note


DIVERGED = {"status": "diverged", "scores": None, "metrics": None, "collapsed": True}


def test_no_verdict_rests_on_the_scores_of_the_side_that_diverged_more_often(own):
    write_pairs(-2.0)
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "not reproduced"
    write_run("results", "full-ft", "rte", 10, 0.0, **DIVERGED)  # the runs of Full-FT that are left are its better ones
    cells, note, _ = row_of(own("--format", "json"))
    assert cells["verdict"]["value"] == "undecided (failed runs)" and "Full-FT diverged more often" in note
    write_run("results", "bitfit", "rte", 10, 0.0, **DIVERGED)
    assert row_of(own("--format", "json"))[0]["verdict"]["value"] == "not reproduced"


def test_an_order_holds_if_every_comparison_does(hifi):
    content = yaml.safe_load(OWN)
    content["claims"] = {"order": {"kind": "order", "text": "t", "where": "w", "levels": [["bitfit", "lora"], ["full-ft"]]}}
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


def test_a_trend_over_methods_is_a_contrast_of_their_scores(hifi):
    methods = {"bitfit": 1, "lora": 2, "full-ft": 3}
    trend = {"kind": "trend", "text": "t", "where": "w", "values": methods, "first": [2, 3], "second": [1]}
    content = {**yaml.safe_load(OWN), "claims": {"rank": {**trend, "expected": "higher"}}}
    Path("trend.yaml").write_text(yaml.safe_dump(content))
    for task in ("rte", "cola"):
        for seed in range(1, 5):
            for method, score in (("bitfit", 0.5), ("lora", 0.52 + 0.001 * seed), ("full-ft", 0.53)):
                write_run("results", method, task, seed, score)
    cells, _, _ = row_of(hifi("claims", "trend.yaml", "--format", "json"), "rank")
    assert cells["ours"]["value"] == pytest.approx((2.25 + 3.0) / 2) and cells["verdict"]["value"] == "reproduced"
    write_run("results", "lora", "rte", 5, 0.0, **DIVERGED)
    cells, note, _ = row_of(hifi("claims", "trend.yaml", "--format", "json"), "rank")
    assert cells["verdict"]["value"] == "undecided (failed runs)" and "X = 2, 3 diverged more often" in note
    write_run("results", "bitfit", "rte", 5, 0.0, **DIVERGED)  # one of 9 runs, more often than one of 18
    assert row_of(hifi("claims", "trend.yaml", "--format", "json"), "rank")[0]["verdict"]["value"] == "reproduced"


def test_a_trend_compares_only_runs_with_the_same_epochs_and_data(hifi):
    trend = {"kind": "trend", "text": "t", "where": "w", "values": {"bitfit": 1, "lora": 2}, "first": [2], "second": [1]}
    content = {**yaml.safe_load(OWN), "claims": {"rank": {**trend, "expected": "higher"}}}
    Path("trend.yaml").write_text(yaml.safe_dump(content))
    for task, epochs in (("rte", 3), ("cola", 30)):
        for seed in range(1, 7):
            write_run("results", "bitfit", task, seed, 0.5)
            write_run("results", "lora", task, seed, 0.52 if task == "rte" else 0.9, epochs=epochs)
    cells, note, _ = row_of(hifi("claims", "trend.yaml", "--format", "json"), "rank")
    assert cells["ours"]["value"] == pytest.approx(2.0) and "CoLA: runs left out, which differ in epochs (3 and 30)" in note
    cells, _, _ = row_of(hifi("claims", "trend.yaml", "--include", "unequal", "--format", "json"), "rank")
    assert cells["ours"]["value"] == pytest.approx((2.0 + 40.0) / 2)


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
    cells, note, _ = row_of(hifi(*FLATTER), "flatter-minimum")
    assert (cells["verdict"]["value"], cells["ours"]["value"]) == ("undecided (a single seed)", pytest.approx(0.5))
    assert "It rests on a single seed" in note
    frame = pd.DataFrame([["mrpc", 0.85, layer, 7] for layer in range(12)], columns=["task", "damping", "layer", "iterations"])
    write_figure("results", "hifi-6-d", frame, tasks=["mrpc", "cola", "rte", "mnli"])
    words = ("claims", "hifi/pagerank-12-steps", "--protocol", "laptop", "--format", "json")
    assert row_of(hifi(*words), "pagerank-12-steps")[0]["verdict"]["value"] == "undecided (a single seed)"
    write_figure("results", "hifi-7-flatness", flatness(range(1, 8), 0.5), overrides=["limit=32"])
    cells, _, missing = row_of(hifi(*FLATTER), "flatter-minimum")
    assert cells["verdict"]["value"] == "not run"
    assert missing[0]["command"].startswith("hifi figure hifi-7-flatness --protocol laptop")


def test_a_figure_that_was_not_computed_is_named_with_its_command(hifi):
    _, _, missing = row_of(hifi("claims", "hifi/flatter-minimum", "--protocol", "demo", "--format", "json"), "flatter-minimum")
    assert missing[0]["command"] == "hifi figure hifi-7-flatness --protocol demo"
    answer = hifi("claims", "hifi/flatter-minimum", "--backbone", "minilm", "--format", "json")
    command = json.loads(answer.out)["missing"][0]["command"]
    assert command == "hifi figure hifi-7-flatness --backbone minilm --protocol hifi"


def test_measured_costs_decide_and_missing_ones_are_named(hifi):
    arguments = ("claims", "hifi/no-latency", "hifi/no-added-parameters", "--protocol", "demo", "--format", "json")
    assert json.loads(hifi(*arguments).out)["missing"][0]["command"] == (
        "hifi table hifi-1 --methods hifi-layerwise --backbone demo --protocol demo"
    )
    config = ResultCosts.config_of("hifi-layerwise", protocol="demo", backbone="demo")
    origin = Provenance(command=[], hifi="", git=None, python="", libraries={}, device="", threads=1, platform="")
    costs = {"added_in_training": 0, "added_in_result": 0, "modules_added": 0, "latency": 1.2, "stored_bytes": 1}
    costs["latency_rounds"] = [1.2]
    path = ResultCosts.path_of(config, Path("results"))
    path.parent.mkdir(parents=True)
    ResultCosts(method="hifi-layerwise", **costs, plain_bytes=100, total=25, provenance=origin).write(path)
    answer = hifi(*arguments)
    assert row_of(answer, "no-latency")[0]["verdict"]["value"] == "not reproduced"
    assert row_of(answer, "no-added-parameters")[0]["verdict"]["value"] == "reproduced"
    for shift, verdict in (
        (0.0, "reproduced"),
        (0.05, "undecided (within the noise of the measurement)"),
        (0.2, "not reproduced"),
    ):
        costs["latency_rounds"] = [shift + ratio for ratio in (1.0, 0.98, 1.03, 0.99, 1.01, 1.02, 0.97)]
        ResultCosts(method="hifi-layerwise", **costs, plain_bytes=100, total=25, provenance=origin).write(path)
        cells, note, missing = row_of(hifi(*arguments), "no-latency")
        assert cells["verdict"]["value"] == verdict and "rounds of one measurement" in note and not missing


def test_trained_percent_is_of_the_encoder_that_the_paper_states(hifi):
    params = {"trainable_backbone": 42, "total": 1000}
    write_run("results", "hifi-layerwise", "rte", 1, 0.5, params=params)
    write_run("results", "hifi-layerwise", "rte", 1, 0.5, params={**params, "total": 100}, backbone="minilm")
    for words in ((), ("--backbone", "minilm")):
        cells, note, _ = row_of(hifi("claims", "trains-4-percent", *words, "--format", "json"), "trains-4-percent")
        assert (cells["ours"]["value"], cells["verdict"]["value"]) == (4.2, "reproduced")
    assert "(section 5.3; bert-large)" in note


def test_few_shot_claims_read_few_shot_runs(hifi):
    for seed in range(1, 7):
        for method, score in (("hifi-layerwise", 0.6), ("full-ft", 0.5)):
            for task in ("qnli", "sst2", "mnli", "cola", "mrpc", "rte", "qqp"):
                write_run("results", method, task, seed, score + 0.001 * seed, shots=16, protocol="hifi-fewshot")
    words = ("claims", "few-shot-above-full-ft", "hifi/above-full-ft", "--format", "json")
    answer = hifi(*words)
    cells, _, missing = row_of(answer, "few-shot-above-full-ft")
    assert cells["ours"]["value"] == pytest.approx(10.0) and cells["verdict"]["value"] == "reproduced"
    assert all("--shots" not in entry["command"] and "--protocol hifi " in entry["command"] for entry in missing)


def test_the_picture_and_the_report_show_the_claims(own, hifi):
    write_pairs(2.0)
    assert own("--picture", "claims.svg").code == 0
    svg = Path("claims.svg").read_text()
    assert "mine" in svg and "ours, reproduced" in svg and "required" in svg
    assert hifi("claims", "hifi", "ehft", "--picture", "papers.svg").code == 0  # both have a claim of this name
    papers = Path("papers.svg").read_text()
    assert all(f">{name}/above-full-ft<" in papers for name in ("hifi", "ehft"))
    assert hifi("report", "--claims", "mine.yaml").code == 0
    page = Path("results/report.html").read_text()
    assert "My thesis (protocol hifi, backbone bert-large): 1 reproduced" in page and "the sign-flip test agrees" in page
    assert "Claims of Gui" not in page
    write_run("results", "hifi-layerwise", "rte", 1, 0.7)
    hifi("report")
    page = Path("results/report.html").read_text()
    assert "Claims of Gui &amp; Xiao" in page and "Claims of Yang" not in page  # nothing of EH-FT was run


TREND = {"kind": "trend", "first": [1], "second": [2], "expected": "equal"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "better"}, "kind"),
        ({"frist": "bitfit"}, "unknown key"),
        ({"margin": 0}, "margin"),
        ({"kind": "property", "measure": "latency", "at_most": 1}, "a measured cost requires `method`"),
        ({"kind": "property", "figure": "ehft-1"}, "`at_least`, `at_most` or both are required"),
        ({"kind": "property", "figure": "ehft-111", "at_most": 1}, "unknown figure 'ehft-111'; did you mean 'ehft-1"),
        (TREND, "a trend has either `figure` or `values`"),
        (TREND | {"values": {"lora": 1, "bitfit": 1, "adapter": 2}}, "two methods of `values` stand for the same number"),
        (TREND | {"values": {"lora": 1, "adapter": 2}, "second": [1]}, "a number is in `first` and in `second`"),
        ({"kind": "order", "levels": [[], ["lora"]]}, "`levels` has an empty level, or a method twice"),
        ({"kind": "order", "levels": [["lora"], ["lora"]]}, "`levels` has an empty level, or a method twice"),
        (
            {"kind": "cost", "measure": "latency", "method": "lora", "at_least": 2, "at_most": 1},
            "`at_least` is above `at_most`",
        ),
    ],
)
def test_mistakes_in_a_file_of_claims_are_named(hifi, change, message):
    content = yaml.safe_load(OWN)
    claim = content["claims"]["mine"]
    for key in ("first", "second") if "levels" in change or change.get("kind") in ("property", "trend", "cost") else ():
        claim.pop(key)
    claim |= change
    Path("mine.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("claims", "mine.yaml")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1) and message in answer.err


def test_wrong_names_are_told(hifi):
    assert "did you mean 'above-full-ft'?" in hifi("claims", "hifi/above-ful").err
    assert "unknown paper or claim 'nothing'" in hifi("claims", "nothing").err
    assert hifi("claims", "none.yaml").code == 3
    assert "must end in .png" in hifi("claims", "hifi", "--picture", "x.gif").err
