"""The study and its pilot: their claims, tables, grids and pages fit each other."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import mean

import pandas as pd
import pytest
from project_files import ROOT, load_script

import hifi_cli
from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.sources import resolve
from hifi_cli.grids import cells, grid_spec
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.claims.spec import methods_of

CONSTRAINTS = (ROOT / "constraints.txt").read_text()
(PINNED_MATPLOTLIB,) = re.findall(r"^matplotlib==(.+)$", CONSTRAINTS, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        *[("hifi", "laptop"), ("ehft", "laptop-ehft"), ("rankings", "laptop")],
        *[("hifi", "study"), ("ehft", "study-ehft"), ("rankings", "study")],
    ],
)
def test_the_runs_of_the_study_can_decide_its_claims(name, table):
    file = claims_spec.load(name, protocol=table)
    content = registry.load("tables", table)
    decided_by_runs = {key: claim for key, claim in file.claims.items() if methods_of(claim)}
    for key, claim in decided_by_runs.items():
        assert set(methods_of(claim)) <= set(content["rows"]), key
        assert set(claim.tasks or file.tasks) <= set(content["columns"]), key
    assert decided_by_runs and file.seeds == content["seeds"]


@pytest.mark.parametrize("table", ["laptop", "laptop-ehft"])
def test_every_method_of_the_study_has_a_searched_rate_or_takes_that_of_one(table):
    """`hifi_*` selections take HiFi's rate; LP-FT and EH-FT take those of their stages."""
    searched = set(registry.load("grids", f"{table}-rates")["methods"])
    for method in registry.load("tables", table)["rows"]:
        base, stage1 = (
            registry.load("methods", method).get("base"),
            registry.load("methods", method)["config"].get("stage1", {}),
        )
        assert method in searched or base in searched or method.startswith("hifi-"), method
        assert not stage1 or stage1["method"] in searched, method


@pytest.mark.parametrize(
    ("name", "runs"),
    [("study", 264), ("study-ehft", 192), ("study-rates", 27), ("study-ehft-rates", 15)],
)
def test_the_grids_of_the_study_have_the_runs_of_the_design_page(name, runs):
    found = cells.cells(grid_spec.load(name, {}), name)
    assert len(found) == runs
    seeds = {2} if name.endswith("-rates") else {*range(4, 12)}
    assert {cell.config.seed for cell in found} == seeds
    how = {(cell.config.device, cell.config.precision, cell.config.kernels) for cell in found}
    assert how == {("cuda", "bf16", "auto")}


@pytest.mark.parametrize(("pilot", "table"), [("laptop", "study"), ("laptop-ehft", "study-ehft")])
def test_the_study_differs_from_its_pilot_in_what_the_design_page_says(pilot, table):
    content = registry.load("tables", table)
    allowed = {"protocol", "device", "precision", "kernels", "log_every"}
    for task, method in product(content["columns"], content["rows"]):
        own, other = (
            flatten(resolve(task=task, method=method, protocol=name).model_dump(mode="json"))
            for name in (table, pilot)
        )
        differing = {key for key in own | other if own.get(key) != other.get(key)}
        # searched again, or of their own: the learning rates and BitFit's epochs
        searched = {"learning_rate", "stage1.learning_rate"}
        assert differing <= allowed | searched | ({"epochs"} if method == "bitfit" else set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "studies", "files"),
    [("laptop-tables", ["laptop-pilot"], 6), ("study-tables", ["study", "study-cpu"], 18)],
)
def test_the_committed_tables_claims_and_report_follow_from_the_packed_runs(
    tmp_path, target, studies, files
):
    """`make laptop-tables` and `make study-tables` write them again, byte for byte."""
    committed = ROOT / "results"
    rebuilt = tmp_path / "results"
    written = shutil.ignore_patterns("tables", "report.html", "*.lock")
    for study in studies:
        shutil.copytree(committed / study, rebuilt / study, ignore=written)
    # Nothing is installed.
    for name in ("pyproject.toml", "constraints.txt", "environment"):
        (tmp_path / name).touch()
    # An outer make hands its own variables down.
    make = ["make", "-f", ROOT / "Makefile", target, "READY=environment", "CONSTRAINTS="]
    bin_directory = f"BIN={Path(sys.executable).parent}"
    subprocess.run([*make, bin_directory], cwd=tmp_path, check=True, capture_output=True)
    found = []
    for study in studies:
        found += [*(committed / study).glob("tables/*.md")]
        found += [*(committed / study).glob("report.html")]
    assert len(found) == files
    for path in found:
        # Another matplotlib draws the report's pictures otherwise.
        if path.suffix == ".html" and version("matplotlib") != PINNED_MATPLOTLIB:
            continue
        assert (rebuilt / path.relative_to(committed)).read_bytes() == path.read_bytes(), path


def _numbers(text):
    return [float(number) for number in re.findall(r"[+-]?\d+\.\d+", text)]


@pytest.mark.parametrize(
    ("protocol", "tasks", "methods"),
    [
        ("study", ["cola", "mrpc", "stsb"], ["full-ft", "hifi-layerwise", "hifi-random"]),
        (
            "study-ehft",
            ["cb"],
            ["full-ft", "eh-ft-bitfit", "eh-ft-lora", "eh-ft-prefix", "lp-ft", "linear-probing"],
        ),
    ],
)
def test_the_page_of_results_has_the_scores_of_the_study(protocol, tasks, methods):
    """Mean and deviation over the seeds, of the best and of the last epoch, task by task."""
    page = (ROOT / "docs" / "results.md").read_text()
    section = page.partition("## The study with new seeds")[2].partition("\n## ")[0]
    part = section.partition(f"protocol `{protocol}`")[2].partition("\n\n**")[0]
    rows = {line.split("|")[1].strip(): line for line in part.splitlines() if "±" in line}
    runs = hifi_cli.read_results(ROOT / "results" / "study")
    runs = runs[(runs["protocol"] == protocol) & runs["variant"].isna()]
    assert {*rows} == {registry.label_of("methods", method) for method in methods}
    for method in methods:
        measured = []
        for task, column in product(tasks, ["best", "last"]):
            scores = runs[(runs["method"] == method) & (runs["task"] == task)][column]
            measured += [scores.mean(), scores.std()]
        printed = _numbers(rows[registry.label_of("methods", method)])
        assert printed[: len(measured)] == pytest.approx(measured, abs=0.051), method


# Claims about the accuracy of task heads are printed in points, and measured as fractions.
_IN_POINTS = {"ehft/probing-head-inaccurate-train": 100, "ehft/probing-head-inaccurate-dev": 100}


def _section(heading):
    page = (ROOT / "docs" / "results.md").read_text()
    return page.partition(f"\n{heading}")[2].partition("\n## ")[0]


def _rounds_to(printed, measured):
    """Say whether each printed number is the measured one, rounded to the digits that are printed."""
    numbers = re.findall(r"[+-]?\d+(?:\.\d+)?", printed)
    assert len(numbers) == len(measured), printed
    for text, number in zip(numbers, measured, strict=True):
        digits = len(text.partition(".")[2])
        assert float(text) == pytest.approx(number, abs=0.51 * 10**-digits), printed


def _printed_claims():
    """Give the cells of the page's table of claims, by the claim's key."""
    rows = {}
    for line in _section("## The claims of both papers").splitlines():
        if line.startswith("|") and "`" in line:
            _, _, key, published, pilot, new, _ = line.split("|")
            rows[key.strip(" `")] = (published.strip(), pilot.strip(), new.strip())
    return rows


def _decided(hifi, claim, protocol, study):
    words = [
        "claims",
        claim,
        "--protocol",
        protocol,
        "--results-dir",
        str(ROOT / "results" / study),
    ]
    return json.loads(hifi(*words, "--format", "json").out)["rows"]


def _check_claim(key, cell, row):
    verdict, _, numbers = cell.partition(", ")
    assert verdict.strip("*") == row["verdict"], key
    scale = _IN_POINTS.get(key, 1)
    _rounds_to(numbers, [scale * row[number] for number in ("ours", "low", "high")])


@pytest.mark.parametrize(
    ("file", "protocol"), [("hifi", "laptop"), ("rankings", "laptop"), ("ehft", "laptop-ehft")]
)
def test_the_page_of_results_has_the_claims_of_the_pilot(hifi, file, protocol):
    rows = {f"{file}/{row['label']}": row for row in _decided(hifi, file, protocol, "laptop-pilot")}
    printed = {key: cells for key, cells in _printed_claims().items() if key.startswith(file)}
    # It rests on CB alone here, where it is the claim about CB.
    rows.pop("ehft/small-tasks", None)
    assert {*printed} == {*rows}
    for key, (published, pilot, _) in printed.items():
        _check_claim(key, pilot, rows[key])
        stated = rows[key]["published"]
        _rounds_to(published, [] if stated is None else [stated])


def test_the_page_of_results_has_the_claims_of_the_study_whose_runs_are_complete(hifi):
    complete = {key: new for key, (_, _, new) in _printed_claims().items() if new != "\N{EN DASH}"}
    makefile = (ROOT / "Makefile").read_text()
    makefile = makefile.replace("\\\n", "")
    of_runs = re.search(r"^STUDY_CLAIMS := (.+)$", makefile, re.MULTILINE)[1].split()
    of_figures = re.search(r"^STUDY_FIGURE_CLAIMS := (.+)$", makefile, re.MULTILINE)[1].split()
    assert {*complete} == {*of_runs, *(f"ehft/{claim}" for claim in of_figures)}
    for key, cell in complete.items():
        protocol = "study" if key.startswith("hifi") else "study-ehft"
        study = "study" if key in of_runs else "study-cpu"
        (row,) = _decided(hifi, key, protocol, study)
        _check_claim(key, cell, row)


def _ratios_to_full_ft(figure, method, column, step):
    """Give a curve's value in a step of full fine-tuning by that of Full-FT, sorted by size."""
    data = pd.read_csv(ROOT / "results" / "study-cpu" / "figures" / f"{figure}-study-ehft.csv")
    last_stage = data[(data["stage"] == data.groupby("method")["stage"].transform("max"))]
    if step == "last":
        rows = last_stage.sort_values("stage_step").groupby(["method", "seed"]).tail(1)
    else:
        rows = last_stage[last_stage["stage_step"] == step]
    by_seed = rows.pivot_table(index="seed", columns="method", values=column)
    assert [*by_seed.index] == [*range(4, 12)]
    return sorted(by_seed[method] / by_seed["full-ft"])


def _sentences_on_figures():
    """Give the text of each point of the study's section, by what it begins with: `Figure 1`, ..."""
    section = _section("## The study with new seeds")
    texts = {}
    for line in section.replace("\n  ", " ").splitlines():
        name, _, text = line.partition("**: ")
        texts[name.removeprefix("- **")] = text
    return texts


def _distances(figure, pair):
    """Give the mean distance of the features, a row per seed and a column per method."""
    data = pd.read_csv(ROOT / "results" / "study-cpu" / "figures" / f"{figure}-study-ehft.csv")
    by_seed = data[data["pair"] == pair].pivot_table(index="seed", columns="method", values="mean")
    assert [*by_seed.index] == [*range(4, 12)]
    return by_seed


def test_the_page_of_results_has_the_distances_of_features_of_the_study():
    distances = _distances("ehft-1", "pretrained-tuned")
    means, _, ratios = _sentences_on_figures()["Figure 1"].partition("With each seed")
    printed = re.findall(r"(\d+\.\d+)", means)
    # The sentence has the methods in the order of their distances, Full-FT's first.
    _rounds_to(" ".join(printed), sorted(distances.mean(), reverse=True))
    labels = [
        registry.label_of("methods", method) for method in distances.mean().sort_values().index
    ]
    places = [means.index(f"with {label}") for label in reversed(labels)]
    assert places == sorted(places)
    of_full_ft = distances["eh-ft-bitfit"] / distances["full-ft"]
    _rounds_to(" ".join(re.findall(r"0\.\d\d", ratios)), [of_full_ft.min(), of_full_ft.max()])


def test_the_page_of_results_has_the_distances_between_the_stages_of_the_study():
    distances = _distances("ehft-stages", "stage1-stage2")
    means, _, by_epoch = _sentences_on_figures()["Between the stages"].partition("Much of it")
    methods = ["lp-ft", "eh-ft-bitfit", "eh-ft-lora", "eh-ft-prefix"]
    _rounds_to(" ".join(re.findall(r"\d+\.\d+", means)), [*distances.mean()[methods]])
    data = pd.read_csv(ROOT / "results" / "study-cpu" / "figures" / "ehft-stages-study-ehft.csv")
    epochs = data[data["method"] == "lp-ft"].groupby("seed")["epoch"].first()
    early = distances["lp-ft"][epochs <= 7]
    late = distances["lp-ft"][epochs > 7]
    printed = re.findall(r"\d+\.\d+", by_epoch)
    _rounds_to(" ".join(printed), [early.min(), early.max(), late.min(), late.max()])
    assert epochs.min() == 5


def test_the_page_of_results_has_the_curves_of_the_study():
    page = _sentences_on_figures()
    ends = _ratios_to_full_ft("ehft-5", "eh-ft-bitfit", "distance", "last")
    early, late = (
        _ratios_to_full_ft("ehft-5", "eh-ft-bitfit", "distance", step) for step in (10, 50)
    )
    figure_5 = re.search(
        r"(0\.\d\d) to (0\.\d\d) times as far as .*\(([\d.]+) times as far at step 10\).*\(([\d.]+) times at step 50\)",
        page["Figure 5"],
    )
    _rounds_to(" ".join(figure_5.groups()), [ends[0], ends[-1], mean(early), mean(late)])
    bitfit, lora = (
        _ratios_to_full_ft("ehft-7", method, "backbone_gradient", 1)
        for method in ("eh-ft-bitfit", "eh-ft-lora")
    )
    figure_7 = re.search(
        r"is (\d+) to (\d+) times .* and (\d+) times with one.*it is (\d+) to (\d+) times",
        page["Figure 7"],
    )
    measured = [bitfit[0], bitfit[-2], bitfit[-1], lora[0], lora[-1]]
    _rounds_to(" ".join(figure_7.groups()), measured)


def test_the_page_of_results_has_the_scores_of_both_devices():
    """A row is a cell with two seeds or more on both devices; its last column is the last epoch."""
    studies = [ROOT / "results" / name for name in ("study", "study-cpu")]
    rows = load_script("compare_studies").compare(*studies)
    part = _section("## The study with new seeds").partition("**The same runs on a GPU")[2]
    printed = {}
    for line in part.partition("\n\n|")[2].partition("\n\n")[0].splitlines():
        if re.search(r"\d\.\d", line):
            task, method, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            printed[task, method] = " ".join(cells)
    measured = {}
    for _, row in rows.iterrows():
        key = (registry.label_of("tasks", row["task"]), registry.label_of("methods", row["method"]))
        scores = [row["first"], row["second"]] if row["epoch"] == "best" else []
        scores += [row["difference"], row["low"], row["high"]]
        measured[key] = measured.get(key, []) + scores
    assert {*printed} == {*measured}
    for key, text in printed.items():
        _rounds_to(text, measured[key])


def test_the_page_of_results_has_the_verdicts_of_a_cpu(hifi):
    """HiFi against Full-FT on CoLA, and EH-FT (BitFit) against it on CB."""
    part = _section("## The study with new seeds").partition("The verdicts on a CPU")[2]
    numbers = re.findall(r"[+-]?\d+\.\d", part.partition("\n\n")[0])
    measured = []
    for method, protocol, task in [
        ("hifi-layerwise", "study", "cola"),
        ("eh-ft-bitfit", "study-ehft", "cb"),
    ]:
        words = ["compare", method, "full-ft", "--protocol", protocol, "--tasks", task]
        answer = hifi(*words, "--results-dir", str(ROOT / "results/study-cpu"), "--format", "json")
        (row,) = json.loads(answer.out)[0]["rows"]
        assert row["verdict"] == "worse"
        # The sentence says how much lower it is.
        measured += [-row["mean"], row["low"], row["high"]]
    _rounds_to(" ".join(numbers), measured)


@pytest.mark.parametrize(
    ("heading", "protocol", "tasks", "methods"),
    [
        ("### HiFi on", "laptop", ["cola", "mrpc", "stsb", "rte"], 11),
        ("### EH-FT on", "laptop-ehft", ["cb", "rte", "mrpc", "cola", "stsb"], 6),
    ],
)
def test_the_page_of_results_has_the_scores_of_the_pilot(heading, protocol, tasks, methods):
    """Mean and deviation task by task, and the averages of both epochs over all tasks but RTE."""
    section = _section("## The pilot").partition(heading)[2].partition("\n### ")[0]
    rows = {line.split("|")[1].strip("* "): line for line in section.splitlines() if "±" in line}
    runs = hifi_cli.read_results(ROOT / "results" / "laptop-pilot")
    runs = runs[(runs["protocol"] == protocol) & runs["variant"].isna()]
    method_of = {}
    for method in registry.load("tables", protocol)["rows"]:
        label = registry.label_of("methods", method).replace("(row)", "rows")
        method_of[label.casefold()] = method
    assert len(rows) == methods
    for name, line in rows.items():
        of_method = runs[runs["method"] == method_of[name.casefold()]]
        measured = []
        for task in tasks:
            scores = of_method[of_method["task"] == task]["best"]
            measured += [scores.mean(), scores.std()]
        counted = of_method[of_method["task"].isin({*tasks} - {"rte"})]
        for column in ("best", "last"):
            measured.append(counted.groupby("task")[column].mean().mean())
        printed = "|".join(line.split("|")[2 : 4 + len(tasks)]).replace("±", "")
        _rounds_to(printed, measured)


def test_every_number_of_the_findings_stands_in_a_table_or_sentence_below_them():
    page = (ROOT / "docs" / "results.md").read_text()
    findings, _, below = page.partition("## Eight findings")[2].partition("\n## ")
    assert findings.count("\n1. ") == 1 and findings.count("\n8. ") == 1
    for number in re.findall(r"\d+\.\d+", findings):
        assert number in below, number
