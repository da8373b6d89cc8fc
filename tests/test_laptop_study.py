"""The laptop study: its claims, tables and grids fit each other, and its stored tables are those of its stored runs."""

import json
import re
import shutil
from pathlib import Path

import pytest

from hifi_cli.config import registry
from hifi_cli.reports import claim_spec
from hifi_cli.reports.claim_spec import methods_of

RESULTS = Path(__file__).parent.parent / "results" / "laptop"
FIGURES = [
    file.with_suffix(".csv")
    for file in sorted((RESULTS / "figures").glob("*.json"))
    if json.loads(file.read_text())["inputs"]["kind"] in ("sweep", "search-budget")  # of results alone
]


@pytest.mark.parametrize("name", ["hifi", "ehft", "rankings"])
def test_the_runs_of_the_study_can_decide_its_claims(name):
    file = claim_spec.load(name, protocol="laptop")
    decided_by_runs = {key: claim for key, claim in file.claims.items() if methods_of(claim)}
    for key, claim in decided_by_runs.items():
        table = registry.load("tables", getattr(claim, "protocol", None) or "laptop")
        assert set(methods_of(claim)) <= set(table["rows"]), key
        assert set(claim.tasks or file.tasks) <= set(table["columns"]), key
    assert len(decided_by_runs) > 2


def test_every_method_of_the_study_has_a_searched_rate_or_takes_that_of_one():
    """`hifi_*` selections take HiFi's rate; LP-FT and EH-FT take those of their stages."""
    searched = set(registry.load("grids", "laptop-rates")["methods"])
    for table in ("laptop", "laptop-more", "laptop-fewshot", "laptop-reserve"):
        for method in registry.load("tables", table)["rows"]:
            base = registry.load("methods", method).get("base")
            assert method in searched or base in searched or method.startswith(("hifi-", "lp-ft", "eh-ft-")), (table, method)


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((RESULTS / "tables").glob("*.md")), ids=lambda file: file.stem)
def test_the_stored_tables_are_those_of_the_stored_runs(hifi, file, monkeypatch):
    """`make laptop-tables` gives the committed files, byte for byte, from results without weights."""
    monkeypatch.delenv("HIFI_DATA_DIR", raising=False)
    Path("results").mkdir()
    Path("results/laptop").symlink_to(RESULTS)
    kind, _, name = file.stem.partition("-")
    words = ["claims", name, "--protocol", "laptop"] if kind == "claims" else ["table", file.stem]
    answer = hifi(*words, "--results-dir", "results/laptop", "--format", "md", "--out", "again.md")
    assert answer.code == 0, answer.err
    assert Path("again.md").read_text() == file.read_text()


@pytest.mark.slow
def test_the_stored_report_is_that_of_the_stored_runs(hifi, monkeypatch):
    monkeypatch.delenv("HIFI_DATA_DIR", raising=False)
    shutil.copytree(RESULTS, "results/laptop")
    copy = Path("results/laptop/report.html")  # its links are relative to it
    copy.unlink()
    answer = hifi("report", "--results-dir", "results/laptop")
    assert answer.code == 0, answer.err
    text = copy.read_text()
    assert "protocol laptop, backbone minilm" in text and "protocol laptop-fewshot, backbone minilm" in text
    assert text == (RESULTS / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("file", FIGURES, ids=lambda file: file.stem)
def test_the_stored_figures_are_those_of_the_stored_runs(hifi, file, monkeypatch):
    monkeypatch.delenv("HIFI_DATA_DIR", raising=False)
    shutil.copytree(RESULTS, "results/laptop")
    copy = Path("results/laptop/figures") / file.name
    copy.unlink()
    name = file.stem.removesuffix("-laptop")
    answer = hifi("figure", name, "--protocol", "laptop", "--results-dir", "results/laptop")
    assert answer.code == 0, answer.err
    assert copy.read_text() == file.read_text()


def test_the_documented_mean_over_runs_is_that_of_the_table():
    page = (RESULTS.parent.parent / "docs" / "python.md").read_text()
    snippet = page.partition("## Results as data\n\n```python\n")[2].partition("```")[0]
    *lines, last = snippet.replace('results("results")', f"results({str(RESULTS)!r})").splitlines()
    names = {}
    exec("\n".join(lines), names)
    groups = eval(last, names).reset_index()
    (row,) = groups[(groups["protocol"] == "laptop") & (groups["task"] == "cb") & (groups["method"] == "adapter")].to_dict(
        "records"
    )
    table = (RESULTS / "tables" / "laptop.md").read_text().splitlines()
    cell = next(line for line in table if line.startswith("| Adapter |")).split("|")[2]
    assert f"{row['mean']:.1f}<sub>±{row['std']:.1f}</sub>" in cell
    assert row["count"] == 5


def test_the_documented_number_of_runs_is_that_of_the_results():
    number = len(list((RESULTS / "runs").rglob("results.json")))
    assert f"these are {number:,} runs of " in (RESULTS.parent.parent / "docs" / "results.md").read_text()


def test_the_verdicts_on_the_page_of_results_are_those_of_the_claims():
    page = (RESULTS.parent.parent / "docs" / "results.md").read_text()
    rows = re.findall(r"^\| .+ \| `(\w+)/([\w-]+)` \| (.+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    for paper, claim, verdict, *numbers in rows:
        lines = (RESULTS / "tables" / f"claims-{paper}.md").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(f"| {claim}<"))
        _, stored_verdict, effect, interval, published, *_ = line.split(" | ")
        assert stored_verdict.split(" (about")[0].split(" (more")[0] == verdict, claim
        assert [effect, interval, published.split()[0]] == numbers, claim
