"""Files of claims with the names that finished runs have, in place of the paths of a user's own YAMLs."""

from typing import Any

from hifi_cli.config.sources import run_name
from hifi_cli.reports.claim_spec import Claim, ClaimsFile, ComparisonClaim, OrderClaim, PropertyClaim, TrendClaim


def by_names(file: ClaimsFile) -> ClaimsFile:
    """Return a file of claims with names only, as finished runs are read; runs are made with the paths.

    Raises:
        MissingError: there is no such file.
        UsageError: there is no such backbone.
    """
    update = {
        "protocol": run_name("protocols", file.protocol),
        "backbone": run_name("backbones", file.backbone),
        "tasks": [run_name("tasks", task) for task in file.tasks],
        "claims": {name: _by_names(claim) for name, claim in file.claims.items()},
    }
    return file.model_copy(update=update)


def _by_names(claim: Claim) -> Claim:
    update: dict[str, Any] = {
        "protocol": claim.protocol and run_name("protocols", claim.protocol),
        "only_backbone": claim.only_backbone and run_name("backbones", claim.only_backbone),
        "tasks": [run_name("tasks", task) for task in claim.tasks],
    }
    match claim:
        case ComparisonClaim():
            update |= {"first": run_name("methods", claim.first), "second": run_name("methods", claim.second)}
        case OrderClaim():
            update |= {"levels": [[run_name("methods", method) for method in level] for level in claim.levels]}
        case TrendClaim():
            update |= {"values": {run_name("methods", method): value for method, value in claim.values.items()}}
        case PropertyClaim():
            update |= {"method": claim.method and run_name("methods", claim.method)}
    return claim.model_copy(update=update)
