"""The comparisons of the HTML report: for each table of scores, one method with the others, as `hifi compare` makes them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError
from hifi_cli.files import command_line
from hifi_cli.reports import method_comparison
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_pairs import paired
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ScoresSpec, TableSpec, check_names, shots_of

REFERENCE = "full-ft"  # both papers ask whether a method reaches full fine-tuning


def build_all(specs: Sequence[TableSpec], request: TableRequest, reference: str | None = None) -> list[Table]:
    """Compare one method with each other one that shares runs with it, in every setting that the tables show.

    Args:
        reference: the first method of the comparisons; None: full fine-tuning.

    Raises:
        UsageError: there is no such method.
        MissingError: it has no finished run.
    """
    finished = request.results.names["methods"]
    if reference and reference not in finished:
        check_names("methods", [reference], finished)
        raise MissingError(f"no finished run of {reference}; make one with hifi train --method {reference}")
    scores = [spec for spec in specs if isinstance(spec, ScoresSpec)]
    return [table for spec in scores for table in _build(spec, request, reference or REFERENCE)]


def _build(spec: ScoresSpec, request: TableRequest, reference: str) -> Iterator[Table]:
    """Yield the comparison of a table's methods, if the reference shares a task and a seed with another one."""
    setting = (spec.protocol, spec.backbone, str(spec.shots or shots_of(spec.protocol)))
    records = [record for record in request.results.records if record.setting == setting]
    tasks = [column.task for column in spec.columns]
    finished = {record.result.method for record in records}
    others = [method for row in spec.rows for method in row.methods] if spec.rows else sorted(finished)
    others = [method for method in dict.fromkeys(others) if method in finished - {reference}]
    score, counted = request.score, request.counted
    without_pairs = [
        method
        for method in others
        if not paired(records, reference, method, tasks=tasks, score=score, counted=counted).differences
    ]
    methods = [reference, *(method for method in others if method not in without_pairs)]
    if len(methods) == 1:
        return
    table, _ = method_comparison.compare(records, methods, tasks=tasks, score=score, counted=counted)
    names = ", ".join(label_of("methods", method) for method in without_pairs)
    others_count = len(methods) - 1
    corrected = f"the verdicts are corrected for {others_count} comparisons; each claim is decided for itself"
    left_out = [corrected] if others_count > 1 else []
    left_out += [f"not compared, because they share no task and seed: {names}"] if names else []
    options = dict(zip(("--protocol", "--backbone", "--shots"), setting, strict=True))
    options |= {"--tasks": ",".join(tasks)} if tasks else {}
    options |= {"--score": score} if score else {}
    options |= {"--include": ",".join(sorted(counted - COUNTED))} if counted - COUNTED else {}
    options |= {"--exclude": ",".join(sorted(COUNTED - counted))} if COUNTED - counted else {}
    command = ["hifi", "compare", *methods, *(word for pair in options.items() for word in pair)]
    command += request.results.results_argument
    yield replace(table, notes=[*table.notes, *left_out, f"the command: {command_line(command)}"])
