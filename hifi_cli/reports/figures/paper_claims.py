"""Where the numbers of a figure are not what its paper claims about it."""

from dataclasses import replace
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.reports import claim_spec, claim_table, claims
from hifi_cli.reports.claim_evidence import ClaimContext
from hifi_cli.reports.claim_spec import PropertyClaim, TrendClaim
from hifi_cli.reports.figures import figure_spec
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results


def differences(csv: Path, metadata: FigureMetadata) -> list[str]:
    """Return a sentence for every claim of a paper about a figure whose number in the figure's CSV is another.

    The claims are decided as `hifi claims` decides them, from this CSV alone.
    """
    name = figure_spec.name_of(csv)
    if not name or metadata.protocol not in registry.names("protocols"):
        return []
    results = []
    for paper in registry.names("claims"):
        file = claim_spec.load(paper, protocol=metadata.protocol)
        for key, claim in file.claims.items():
            if isinstance(claim, TrendClaim | PropertyClaim) and claim.figure == name:
                context = ClaimContext.of(claim, file, Results(csv.parent), None, COUNTED)
                results.append(claims.evaluate_claim(key, claim, file, replace(context, figure_csv=csv)))
    return claim_table.differences_from_paper(results)
