"""What may decide a claim: tasks of the paper's own table, and runs that train what the paper's method trains."""

from hifi_cli.config import figure_spec
from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of, name_of
from hifi_cli.config.sources import override_value
from hifi_cli.reports import published
from hifi_cli.reports.changed_settings import protocol_config
from hifi_cli.reports.claim_spec import BasePublishedClaim, Claim, ClaimsFile, PropertyClaim, TrendClaim, methods_of


def columns_of(claim: BasePublishedClaim) -> dict[str, str]:
    """Return the columns of a claim's published table, by task; of MNLI's two the matched one, as runs report it."""
    assert claim.published
    _, table = published.load(claim.published)
    columns: dict[str, str] = {}
    for column in claim.columns or table.columns:
        columns.setdefault(column.partition("-")[0], column)
    return columns


def tasks_of(claim: Claim, file: ClaimsFile) -> list[str]:
    """Return the tasks that decide a claim: of its own or the file's tasks, those of the paper's table for it."""
    tasks = claim.tasks or file.tasks
    if not isinstance(claim, BasePublishedClaim) or not claim.published:
        return tasks
    columns = columns_of(claim)
    return [task for task in tasks if name_of(task) in columns]


def unmet(claim: Claim, file: ClaimsFile) -> str:
    """Return why no run under a protocol can decide a claim; empty: runs can.

    Runs with other settings than the protocol's are not used, so that the protocol's configuration is that of every run.
    """
    tasks, own = tasks_of(claim, file), claim.tasks or file.tasks
    if not tasks:
        return f"none of its tasks ({', '.join(label_of('tasks', task) for task in own)}) is in the paper's table"
    required = file.requires if claim.requires is None else claim.requires
    protocol, backbone = claim.protocol or file.protocol, claim.only_backbone or file.backbone
    for method in _trained_methods(claim, protocol) if required else ():
        config = protocol_config(task=tasks[0], method=method, backbone=backbone, protocol=protocol)
        values = flatten(config.model_dump(mode="json")) if config else {}
        for key, value in required.items():
            if values.get(key) != value:
                found = override_value(values[key]) if key in values else "a value that is not known here"
                return (
                    f"the paper's methods train with {key}={override_value(value)}, runs under protocol {protocol} with {found}"
                )
    return ""


def _trained_methods(claim: Claim, protocol: str) -> list[str]:
    """Return the methods whose models a claim is about."""
    figure = claim.figure if isinstance(claim, TrendClaim | PropertyClaim) else None
    if figure:
        return figure_spec.load(figure, protocol=protocol).methods
    return methods_of(claim) or ([claim.method] if isinstance(claim, PropertyClaim) and claim.method else [])
