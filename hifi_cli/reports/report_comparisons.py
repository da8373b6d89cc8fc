"""The comparisons of the HTML report: for each table of scores, one method with the others, as `hifi compare` makes them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError
from hifi_cli.files import command_line
from hifi_cli.reports import method_comparison
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_pairs import paired
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_spec import TableSpec, check_names, shots_of
from hifi_cli.reports.tables import TableOptions

REFERENCE = "full-ft"  # both papers ask whether a method reaches full fine-tuning


def build_all(specs: Sequence[TableSpec], results: Results, options: TableOptions, reference: str | None = None) -> list[Table]:
    """Compare one method with each other one that shares runs with it, in every setting that the tables show.

    Args:
        reference: the first method of the comparisons; None: full fine-tuning.

    Raises:
        UsageError: there is no such method.
        MissingError: it has no finished run.
    """
    finished = results.names["methods"]
    if reference and reference not in finished:
        check_names("methods", [reference], finished)
        raise MissingError(f"no finished run of {reference}; make one with hifi train --method {reference}")
    scores = [spec for spec in specs if spec.kind == "scores"]
    return [table for spec in scores for table in _build(spec, results, options, reference or REFERENCE)]


def _build(spec: TableSpec, results: Results, options: TableOptions, reference: str) -> Iterator[Table]:
    """Yield the comparison of a table's methods, if the reference shares a task and a seed with another one."""
    setting = (spec.protocol, spec.backbone, str(spec.shots or shots_of(spec.protocol)))
    records = [record for record in results.records if record.setting == setting]
    tasks = [column.task for column in spec.columns]
    finished = {record.result.method for record in records}
    others = [method for row in spec.rows for method in row.methods] if spec.rows else sorted(finished)
    others = [method for method in dict.fromkeys(others) if method in finished - {reference}]
    score, counted = options.score, options.counted
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
    words = dict(zip(("--protocol", "--backbone", "--shots"), setting, strict=True))
    words |= {"--tasks": ",".join(tasks)} if tasks else {}
    words |= {"--score": score} if score else {}
    words |= {"--include": ",".join(sorted(counted - COUNTED))} if counted - COUNTED else {}
    words |= {"--exclude": ",".join(sorted(COUNTED - counted))} if COUNTED - counted else {}
    command = ["hifi", "compare", *methods, *(word for pair in words.items() for word in pair)]
    command += results.results_argument
    yield replace(table, notes=[*table.notes, *left_out, f"the command: {command_line(command)}"])
