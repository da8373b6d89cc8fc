"""The study and its pilot: their claims, tables and grids fit each other."""

import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from project_files import ROOT

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
def test_the_committed_tables_claims_and_report_follow_from_the_packed_runs(tmp_path):
    """`make laptop-tables` writes them again, byte for byte."""
    committed, rebuilt = ROOT / "results/laptop-pilot", tmp_path / "results/laptop-pilot"
    shutil.copytree(
        committed, rebuilt, ignore=shutil.ignore_patterns("tables", "report.html", "*.lock")
    )
    for name in ("pyproject.toml", "constraints.txt", "environment"):  # nothing is installed
        (tmp_path / name).touch()
    make = ["make", "-f", ROOT / "Makefile", "laptop-tables", "READY=environment"]
    bin_directory = f"BIN={Path(sys.executable).parent}"
    subprocess.run([*make, bin_directory], cwd=tmp_path, check=True, capture_output=True)
    for files in (committed, rebuilt):
        assert len(list(files.glob("tables/*.md"))) == 5
    for path in [*committed.glob("tables/*.md"), committed / "report.html"]:
        assert (rebuilt / path.relative_to(committed)).read_bytes() == path.read_bytes(), path
