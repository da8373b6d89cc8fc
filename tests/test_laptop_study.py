"""The laptop study: its claims, tables and grids fit each other."""

import pytest

from hifi_cli.config import registry
from hifi_cli.reports import claims
from hifi_cli.reports.claims import methods_of


@pytest.mark.parametrize(
    ("name", "table"), [("hifi", "laptop"), ("ehft", "laptop-ehft"), ("rankings", "laptop")]
)
def test_the_runs_of_the_study_can_decide_its_claims(name, table):
    file = claims.load(name, protocol=table)
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
