"""`hifi report`: tables, comparisons, claims, figures and learning curves on one page."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from hifi_cli.cli import options
from hifi_cli.cli.claims import verdict_tables, verdicts_in
from hifi_cli.cli.table import built_table
from hifi_cli.config import registry
from hifi_cli.files import command_line, suffix_of_output, write_text
from hifi_cli.records.study import Study
from hifi_cli.reports import searches as search_tables
from hifi_cli.reports import table_spec
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_spec import TableSpec


def report(
    tables: Annotated[
        list[str] | None,
        options.several("--tables", "--table", help="Tables by name; default: all finished runs."),
    ] = None,
    tasks: options.Tasks = None,
    claims: Annotated[
        list[str] | None,
        options.several(
            "--claims", help="Claims of papers or your own YAMLs; default: all with a result."
        ),
    ] = None,
    score: options.Score = None,
    include: options.Include = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    out: options.Out = None,
) -> None:
    """Write tables, comparisons, claims, figures and learning curves to one HTML file.

    It is RESULTS_DIR/report.html where --out names no other.
    """
    # jinja2, which tables do not need
    from hifi_cli.reports import page

    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study = Study(results_dir)
    # Reading the records of a large study takes long.
    study.refuse_missing_predictions()
    task_names = options.stored_names("tasks", tasks)
    if task_names:
        table_spec.check_names("tasks", task_names, study.names("task"))
        study = study.with_runs(study.runs[study.runs["task"].isin(task_names)])
    searches = []
    if study.runs["variant"].notna().any():
        searches = search_tables.searches(study)
    if study.table_runs.empty and not searches:
        raise study.no_run_error()
    how = ReportOptions.of_command(score, include, show_published=published)
    place = options.arguments(results_dir=results_dir)
    specs = [
        table_spec.with_changes(table_spec.load(name), tasks=task_names) for name in tables or ()
    ]
    grids = [_grid_command(name, task_names, place) for name in tables or ()]
    if not specs:
        # The tables of all finished runs lack none.
        specs = score_tables.specs_of(study)
        grids = [""] * len(specs)
    shown = [
        built_table(spec, study, how, grid=grid) for spec, grid in zip(specs, grids, strict=True)
    ]
    shown += page.comparisons(study, how)
    for protocol, backbone in dict.fromkeys((spec.protocol, spec.backbone) for spec in specs):
        # The user's own protocols have no claims.
        if protocol not in registry.names("protocols"):
            continue
        verdicts = verdict_tables(
            claims or [],
            study,
            how,
            protocol=protocol,
            backbone=backbone,
            tasks=task_names,
            place=place,
        )
        # Without being asked, only claims are shown that a run says something about.
        shown += [each for each in verdicts if claims or set(verdicts_in(each)) - {"not run"}]
    shown += _tables_of_measures(specs, study, how)
    target = out or study.directory / "report.html"
    write_text(target, page.render(study, [*shown, *searches]))
    print(target)


def _grid_command(name: str, tasks: list[str], place: Sequence[str]) -> str:
    """The command that makes the runs of a table.

    Args:
        name: of the table.
        tasks: those that are asked about; empty: all.
        place: the directories as options.
    """
    chosen = options.arguments(tasks=",".join(tasks))
    return command_line(["hifi", "grid", name, *chosen, *place])


def _tables_of_measures(
    specs: Sequence[TableSpec], study: Study, how: ReportOptions
) -> list[Table]:
    """Tables of calibration and churn, of the same runs; none where no predictions are stored."""
    without_paper = replace(how, show_published=False)
    found = []
    for spec in specs:
        measures = table_spec.with_changes(spec, metrics=[*MEASURES])
        table = built_table(measures, study, without_paper)
        if len(table.scores):
            found.append(replace(table, title=f"Calibration and churn: {table.title}"))
    return found
