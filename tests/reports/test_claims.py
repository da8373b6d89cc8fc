"""`hifi claims`: what a file of claims may say, what is read as evidence, and which verdict follows."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from json_output import claim_of
from scipy import stats
from synthetic_runs import write_features, write_figure, write_run

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.claims.evidence import published_effect
from hifi_cli.reports.claims.spec import DifferenceClaim, methods_of

RIVALS = "claims: {mine: {kind: difference, text: BitFit beats Full-FT., where: chapter 3, first: bitfit, second: full-ft}}"
SIMPLE = {"kind": "difference", "text": "t", "where": "w"}
OWN = f"description: My thesis\nprotocol: hifi\nbackbone: bert-large\ntasks: [rte, cola]\nmargin: 0.4\n{RIVALS}\n"


@pytest.fixture
def own(hifi):  # the fixture changes the working directory
    Path("mine.yaml").write_text(OWN)
    return lambda *words: hifi("claims mine.yaml", *words)


def write_pairs(gap, *, seeds=range(1, 5), tasks=("rte", "cola"), noise=0.004, **changes):
    """Runs of BitFit and Full-FT whose differences have the mean `gap` (in points) on each task."""
    deviations = noise * stats.norm.ppf((np.arange(len(seeds)) + 0.5) / len(seeds))
    for task in tasks:
        for seed, deviation in zip(seeds, deviations - deviations.mean(), strict=True):
            write_run("results", "full-ft", task, seed, 0.6)
            write_run("results", "bitfit", task, seed, 0.6 + gap / 100 + deviation, **changes)


@pytest.mark.parametrize("name", registry.names("claims"))
@pytest.mark.parametrize("protocol", [None, "laptop", "demo"])
def test_shipped_claims_name_only_what_exists(name, protocol):
    file = claims_spec.load(name, protocol=protocol)
    assert len(file.claims) >= (1 if name == "rankings" else 10)
    for key, claim in file.claims.items():
        named = {
            "methods": methods_of(claim),
            "tasks": [*claim.tasks, *file.tasks],
            "backbones": [file.backbone],
        }
        for kind, names in named.items():
            assert set(names) <= set(registry.names(kind)), (key, kind)
        if (
            isinstance(claim, DifferenceClaim) and claim.published
        ):  # the published rows and columns are there
            for first, second in itertools.product(claim.first, claim.second):
                assert published_effect(claim, first, second, [], "")[0] is not None, key


def test_a_protocol_may_leave_out_claims():
    assert "above-sparse" in claims_spec.load("hifi", protocol="hifi").claims
    assert "above-sparse" not in claims_spec.load("hifi", protocol="laptop").claims
    with pytest.raises(UsageError, match="hifi has no claim 'above-sparse' under protocol laptop"):
        claims_spec.select(["hifi/above-sparse"], protocol="laptop")


def effect_of(name, key, first=0, second=0):
    file = claims_spec.load(name)
    claim = file.claims[key]
    return published_effect(claim, claim.first[first], claim.second[second], [], file.backbone)


def test_the_published_difference_is_the_mean_over_tasks():
    """Of MNLI's two columns it has the matched one, as runs do."""
    value, doubts = effect_of("hifi", "above-full-ft")
    hifi = [93.5, 94.3, 85.9, 60.4, 89.7, 87.2, 71.5, 72.0]
    full = [93.4, 94.1, 86.7, 59.6, 88.9, 86.6, 71.2, 71.7]
    assert value == pytest.approx(np.mean(hifi) - np.mean(full))
    assert doubts == ["on the GLUE test server"]
    claim = claims_spec.load("hifi").claims["above-peft"]
    cells = (claim, "hifi-layerwise", "lora", ["cola", "stsb"], "bert-large")  # CoLA is illegible
    assert published_effect(*cells) == (None, ["the published cells cannot all be read"])


def test_misprints_and_opposite_numbers_are_named():
    assert any("68.31 here" in doubt for doubt in effect_of("ehft", "above-first-stages")[1])
    assert (
        "the published numbers say the opposite"
        in effect_of("hifi", "sparse-above-structured", 1, 0)[1]
    )
    # A claim with a bound of its own does not say that the difference is above 0.
    claim = claims_spec.load("hifi").claims["sparse-above-structured"]
    bounded = claim.model_copy(update={"at_least": -5.0})
    names = (claim.first[1], claim.second[0], [], "bert-large")
    assert not any("opposite" in doubt for doubt in published_effect(bounded, *names).doubts)


def test_verdicts_of_runs(own, hifi):
    row, note, missing = claim_of(own("--format", "json"))
    assert row["verdict"] == "not run" and note.startswith("BitFit beats Full-FT (chapter 3)")
    assert missing == ["runs of mine: hifi grid mine.yaml"]
    by_path = hifi("claims ./mine.yaml/mine --format json")
    assert claim_of(by_path)[2] == ["runs of mine: hifi grid ./mine.yaml"]
    write_pairs(2.0)
    row, _, missing = claim_of(own("--format", "json"))
    assert row["verdict"] == "reproduced" and row["runs"] == 16 and not missing
    assert row["ours"] == pytest.approx(2.0) and row["required"] == "> 0"
    write_pairs(-2.0)
    assert (own("--strict").code, own().code) == (1, 0)
    write_pairs(0.5, noise=0.012)
    row, note, _ = claim_of(own("--format", "json"))
    assert (row["verdict"], row["reason"]) == (
        "undecided",
        "interval too wide",
    ) and "Undecided: interval too wide" in note


def test_a_claim_may_be_asked_about_some_of_its_tasks(own, hifi):
    write_pairs(2.0)
    assert claim_of(own("--tasks", "rte", "--format", "json"))[0]["runs"] == 8
    # MRPC is in the paper's table, but not among the tasks of the claim.
    cells, note, _ = claim_of(own("--tasks", "mrpc", "--format", "json"))
    assert cells["verdict"] == "not run" and "no task asked about is among rte, cola" in note
    words = ("grid", "mine.yaml", "--tasks", "rte", "--seeds", "1-9", "--print")
    assert "unknown task" in hifi("claims mine.yaml --tasks rtx").err
    assert {line.split()[3] for line in hifi(*words, "--results-dir", "new").out.splitlines()} == {
        "rte"
    }


def test_a_difference_whose_interval_is_below_the_margin_is_not_reproduced(own):
    write_pairs(0.3, seeds=range(1, 9), noise=0.0005)
    cells, note, _ = claim_of(own("--format", "json"))
    assert (
        cells["verdict"] == "not reproduced"
        and "Not reproduced: there is a difference, but smaller than 0.4" in note
    )


DIVERGED = {"status": "diverged", "scores": None, "metrics": None, "collapsed": True}


def test_no_verdict_rests_on_the_scores_of_the_side_that_diverged_more_often(own):
    write_pairs(-2.0)
    assert claim_of(own("--format", "json"))[0]["verdict"] == "not reproduced"
    write_run(
        "results", "full-ft", "rte", 10, 0.0, **DIVERGED
    )  # the runs of Full-FT that are left are its better ones
    cells, _, _ = claim_of(own("--format", "json"))
    assert cells["reason"].startswith("Full-FT is ahead, but 1 run of it diverged, 0 of BitFit")
    write_run("results", "bitfit", "rte", 10, 0.0, **DIVERGED)
    assert claim_of(own("--format", "json"))[0]["verdict"] == "not reproduced"


def test_an_order_holds_if_every_comparison_does(hifi):
    content = yaml.safe_load(OWN)
    content["claims"] = {"order": {**SIMPLE, "first": ["bitfit", "lora"], "second": "full-ft"}}
    Path("order.yaml").write_text(yaml.safe_dump(content))
    write_pairs(2.0)
    cells, note, _ = claim_of(hifi("claims order.yaml --format json"), "order")
    assert cells["reason"] == "1 of 2 comparisons not run" and "LoRA above Full-FT: not run" in note
    for task in ("rte", "cola"):
        for seed in range(1, 5):
            write_run("results", "lora", task, seed, 0.55 + 0.001 * seed)
    cells, note, _ = claim_of(hifi("claims order.yaml --format json"), "order")
    assert cells["verdict"] == "not reproduced" and cells["ours"] == pytest.approx(-4.75)
    assert "By the best epoch: BitFit above Full-FT: +2.00 [" in note
    assert "; LoRA above Full-FT: -4.75 [" in note


def test_a_claim_that_is_undecided_by_the_last_epoch_shows_the_comparison_that_the_best_one_decides(
    hifi,
):
    content = yaml.safe_load(OWN)
    claim = {**SIMPLE, "first": ["bitfit", "lora"], "second": "full-ft"}
    Path("order.yaml").write_text(yaml.safe_dump({**content, "claims": {"order": claim}}))
    wide = (-0.09, 0.08, -0.08, 0.09, -0.07, 0.05, -0.06, 0.04)
    for task in ("rte", "cola"):
        for seed, far in enumerate(wide, start=1):
            near = 0.0001 * (seed % 3 - 1)
            for method, best in (("full-ft", 0.6), ("bitfit", 0.6 + near), ("lora", 0.6 + far)):
                last = 0.5 if method == "full-ft" else 0.5 + far
                write_run("results", method, task, seed, best, last=last)
    cells, note, _ = claim_of(hifi("claims order.yaml --format json"), "order")
    assert cells["reason"] == "not reproduced by the best epoch, undecided by the last epoch"
    assert "LoRA above Full-FT: -0.50 [" in note and cells["ours"] == pytest.approx(0, abs=0.01)


def test_a_claim_may_be_about_every_task(hifi):
    content = yaml.safe_load(OWN)
    claim = {**SIMPLE, "first": "bitfit", "second": "full-ft", "every_task": True, "at_least": -0.5}
    Path("every.yaml").write_text(yaml.safe_dump({**content, "claims": {"every": claim}}))
    write_pairs(4.0, tasks=["rte"], seeds=range(1, 9))
    write_pairs(-3.0, tasks=["cola"], seeds=range(1, 9))
    cells, note, _ = claim_of(hifi("claims every.yaml --format json"), "every")
    assert cells["verdict"] == "not reproduced" and cells["ours"] == pytest.approx(-3.0)
    assert "BitFit above Full-FT on RTE: +4.00 [" in note and "on CoLA: -3.00 [" in note
    write_pairs(0.0, tasks=["cola"], seeds=range(1, 9), noise=0.001)
    assert claim_of(hifi("claims every.yaml --format json"), "every")[0]["verdict"] == "reproduced"


SWEEP = {
    **SIMPLE,
    "kind": "number",
    "figure": "hifi-6-k",
    "column": "score",
    "scale": 100,
    "unit": "points",
}


def test_groups_of_values_of_a_sweep_are_compared(hifi):
    higher = {
        **SWEEP,
        "rows": {"x": 3},
        "second_rows": {"x": [1, 6]},
        "at_least": 0.0,
        "margin": 0.5,
    }
    absent = {**SWEEP, "rows": {"x": 3}, "second_rows": {"x": [1, 8]}, "at_least": 0.0}
    content = {
        **yaml.safe_load(OWN),
        "protocol": "laptop",
        "backbone": "minilm",
        "claims": {"k": higher, "absent": absent},
    }
    Path("k.yaml").write_text(yaml.safe_dump(content))
    for low, verdict in ((0.50, "reproduced"), (0.599, "not reproduced")):
        scores = {1: low, 3: 0.6, 6: low + 0.002}
        rows = [
            ["cb", x, seed, score + 0.001 * seed + 0.0001 * (x == 3) * (seed - 4)]
            for x, score in scores.items()
            for seed in range(1, 8)
        ]
        write_figure(
            "results", "hifi-6-k", pd.DataFrame(rows, columns=["task", "x", "seed", "score"])
        )
        answer = hifi("claims k.yaml --format json")
        cells, _, _ = claim_of(answer, "k")
        assert (
            cells["ours"] == pytest.approx(100 * (0.6 - low - 0.001))
            and cells["verdict"] == verdict
        )
        assert "not run: absent" in json.loads(answer.out)["notes"], "no run has x = 8"
    # The tasks are the figure's, which the file's other claims need not have.
    asked = json.loads(hifi("claims k.yaml --tasks cb --format json").out)
    assert asked["rows"] == json.loads(answer.out)["rows"]
    others = json.loads(hifi("claims k.yaml --tasks mrpc --format json").out)
    assert others["rows"] == []
    assert "not run (no task asked about is among cb): absent, k" in others["notes"]


NEARER = ("claims", "ehft/moves-features-less", "--format", "json")
LAPTOP = ("--protocol", "laptop-ehft")


def test_ratios_are_read_from_a_figure_and_decided_as_logarithms(hifi):
    logs = np.log([1.5 * (1 + 0.02 * (seed % 3 - 1)) for seed in range(1, 8)])
    write_features("results", range(1, 8), 1.5)
    cells, _, missing = claim_of(hifi(*NEARER, *LAPTOP), "moves-features-less")
    assert cells["ours"] == pytest.approx(np.exp(logs.mean()))
    interval = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    assert [cells["low"], cells["high"]] == pytest.approx(np.exp(interval).tolist())
    assert cells["verdict"] == "not reproduced" and not missing


def test_a_figure_of_one_seed_or_with_overrides_decides_no_claim(hifi):
    write_features("results", [1], 0.5)
    cells, _, _ = claim_of(hifi(*NEARER, *LAPTOP), "moves-features-less")
    assert (cells["reason"], cells["ours"]) == ("a single seed", pytest.approx(0.5))
    csv = write_features("results", range(1, 8), 0.5)
    csv.rename(csv.with_stem(f"{csv.stem}-limit-32"))
    cells, _, missing = claim_of(hifi(*NEARER, *LAPTOP), "moves-features-less")
    assert cells["verdict"] == "not run"
    assert missing == ["figure: hifi figure ehft-1 --protocol laptop-ehft"]


def test_a_figure_that_was_not_computed_is_named_with_its_command(hifi):
    command = json.loads(hifi(*NEARER, "--backbone", "minilm").out)["missing"][0]
    assert command == "figure: hifi figure ehft-1 --backbone minilm --protocol ehft"
    # A protocol of the user's own is named by its path, as every command takes it.
    Path("mine.yaml").write_text("base: ehft\ndescription: d\n")
    answer = json.loads(hifi(*NEARER, "--protocol", "mine.yaml").out)
    assert answer["missing"] == ["figure: hifi figure ehft-1 --protocol mine.yaml"]


def test_few_shot_claims_read_few_shot_runs(hifi):
    for seed in range(1, 7):
        for method, score in (("hifi-layerwise", 0.6), ("full-ft", 0.5)):
            for task in ("qnli", "sst2", "mnli", "cola", "mrpc", "rte", "qqp"):
                write_run(
                    "results",
                    method,
                    task,
                    seed,
                    score + 0.001 * seed,
                    shots=16,
                    protocol="hifi-fewshot",
                )
    words = ("claims", "hifi/few-shot-above-full-ft", "hifi/above-full-ft", "--format", "json")
    answer = hifi(*words)
    cells, _, missing = claim_of(answer, "few-shot-above-full-ft")
    assert cells["ours"] == pytest.approx(10.0) and cells["verdict"] == "reproduced"
    assert missing == ["runs of above-full-ft: hifi grid claims-hifi"]
    shown = hifi(*words[:-2], "--strict")  # a claim without runs is no row, and not reproduced
    assert shown.code == 1 and "not run: above-full-ft" in shown.out
    assert not any(line.startswith("above-full-ft") for line in shown.out.splitlines())


@pytest.mark.slow
def test_the_report_says_the_claims_in_words(own, hifi):
    write_pairs(2.0)
    assert hifi("report --claims mine.yaml").code == 0
    page = Path("results/report.html").read_text()
    assert (
        "My thesis (protocol hifi, backbone bert-large): 1 reproduced" in page
        and "BitFit beats Full-FT (chapter 3)" in page
    )
    hifi("report")
    page = Path("results/report.html").read_text()
    assert "Claims of" not in page, "these runs decide no claim of a paper"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "better"}, "(one of difference, number)"),
        ({"kind": "differense"}, "unknown value 'differense'; did you mean 'difference'?"),
        (
            {"frist": "bitfit"},
            "unknown key 'claims.mine.frist'; did you mean 'claims.mine.first'?",
        ),
        ({"margin": 0}, "margin"),
        ({"kind": "number", "figure": "ehft-1"}, "`at_least`, `at_most` or both are required"),
        ({"kind": "number", "at_most": 1}, "either `figure`, or `metric` and `methods`"),
        ({"kind": "number", "metric": "ece", "at_most": 1}, "`methods` are required"),
        ({"metric": "ece"}, "`at_least`, `at_most` or both are required"),
        ({"metric": "churn", "at_most": 1}, "churn is of pairs of seeds"),
        (
            {"kind": "number", "figure": "ehft-111", "at_most": 1},
            "unknown figure 'ehft-111'; did you mean 'ehft-1",
        ),
        ({"second": []}, "second"),
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
    answer = hifi("claims mine.yaml")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1) and message in answer.err


def test_wrong_names_are_told(hifi):
    assert "did you mean 'above-full-ft'?" in hifi("claims hifi/above-ful").err
    assert "unknown" in hifi("claims nothing").err
    assert hifi("claims none.yaml").code == 3


def test_a_results_directory_that_is_not_there_is_said(hifi):
    answer = hifi("claims hifi/above-full-ft --results-dir resluts")
    assert answer.code == 0
    assert "note: there is no directory resluts, so that no claim has runs" in answer.err
    assert "there is no directory" not in hifi("claims hifi/above-full-ft").err


def test_the_command_about_one_claim_prints_it_from_the_same_runs(hifi):
    for seed in (1, 2):
        for method, score in (("hifi-layerwise", 0.6), ("full-ft", 0.5)):
            write_run("other", method, "mrpc", seed, score, protocol="laptop", backbone="minilm")
    answer = hifi("claims hifi --protocol laptop --results-dir other")
    command = answer.out.partition("more about one of them: hifi ")[2].splitlines()[0]
    about_one = hifi(command)
    assert about_one.out.splitlines()[0].startswith(
        "Claims of Gui & Xiao, ACL 2023 (HiFi) (protocol laptop,"
    )
    assert "+10.00" in about_one.out


def test_claims_that_a_protocol_does_not_ask_are_named(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5, protocol="laptop", backbone="minilm")
    answer = hifi("claims rankings --protocol laptop")
    assert "rankings does not ask these claims under laptop: above-gradient, " in answer.err
    assert "not ask" not in hifi("claims rankings/above-rocoft --protocol laptop").err
    assert "not ask" not in hifi("claims rankings").err
