"""The study and its pilot: their claims, tables, grids and pages fit each other."""

import json
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from project_files import ROOT

import hifi_cli
from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.sources import resolve
from hifi_cli.grids import cells
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.claims.spec import methods_of


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
    found = cells.cells(cells.load(name, {}), name)
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
    ("target", "study", "files"),
    [("laptop-tables", "laptop-pilot", 6), ("study-tables", "study", 9)],
)
def test_the_committed_tables_claims_and_report_follow_from_the_packed_runs(
    tmp_path, target, study, files
):
    """`make laptop-tables` and `make study-tables` write them again, byte for byte."""
    committed, rebuilt = ROOT / "results" / study, tmp_path / "results" / study
    shutil.copytree(
        committed, rebuilt, ignore=shutil.ignore_patterns("tables", "report.html", "*.lock")
    )
    # Nothing is installed.
    for name in ("pyproject.toml", "constraints.txt", "environment"):
        (tmp_path / name).touch()
    make = ["make", "-f", ROOT / "Makefile", target, "READY=environment"]
    bin_directory = f"BIN={Path(sys.executable).parent}"
    subprocess.run([*make, bin_directory], cwd=tmp_path, check=True, capture_output=True)
    found = [*committed.glob("tables/*.md"), *committed.glob("report.html")]
    assert len(found) == files
    for path in found:
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


@pytest.mark.parametrize(
    ("claim", "protocol", "says", "scale"),
    [
        ("hifi/above-full-ft", "study", "HiFi scores higher than Full-FT", 1),
        ("hifi/above-random", "study", "HiFi scores higher than random heads", 1),
        ("ehft/cb", "study-ehft", "higher than Full-FT on CB", 1),
        ("ehft/head-clusters-train", "study-ehft", "on training rows (figure 4, silhouette)", 1),
        ("ehft/head-clusters-dev", "study-ehft", "separates them better on new rows", 1),
        ("ehft/probing-head-inaccurate-train", "study-ehft", "rows (figure 4, points)", 100),
        ("ehft/probing-head-inaccurate-dev", "study-ehft", "less accurate on new rows", 100),
    ],
)
def test_the_page_of_results_has_the_verdicts_of_the_study(hifi, claim, protocol, says, scale):
    page = (ROOT / "docs" / "results.md").read_text()
    section = page.partition("## The study with new seeds")[2].partition("\n## ")[0]
    words = ["claims", claim, "--protocol", protocol, "--results-dir", str(ROOT / "results/study")]
    (row,) = json.loads(hifi(*words, "--format", "json").out)["rows"]
    (line,) = [line for line in section.splitlines() if line.startswith("| ") and says in line]
    _, _, verdict, ours, published, _ = line.split("|")
    assert verdict.strip("* ") == row["verdict"]
    # The page rounds points to one decimal, and a silhouette to three.
    tolerance = 0.00051 if "head-clusters" in claim else 0.051
    measured = [scale * row[key] for key in ("ours", "low", "high")]
    assert _numbers(ours) == pytest.approx(measured, abs=tolerance)
    assert _numbers(published) == pytest.approx(
        [] if row["published"] is None else [row["published"]], abs=0.051
    )
