"""The laptop study: its claims, tables and grids fit each other, and the page says what its tables say."""

import re
from pathlib import Path

import pytest

from hifi_cli.config import registry
from hifi_cli.reports import claim_spec
from hifi_cli.reports.claim_spec import methods_of

RESULTS = Path(__file__).parent.parent / "results" / "laptop"


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
