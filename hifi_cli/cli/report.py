"""`hifi report`: tables, comparisons, claims, figures and learning curves on one page."""

from typing import Annotated, Any

from hifi_cli.cli import options
from hifi_cli.cli.claims import verdict_tables
from hifi_cli.cli.table import built_table
from hifi_cli.config import registry
from hifi_cli.files import command_line, suffix_of_output, write_text
from hifi_cli.records.study import Study
from hifi_cli.reports import comparable, table_spec
from hifi_cli.reports import searches as search_tables
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.calibration import MEASURES


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
    from hifi_cli.reports import page as report_page  # jinja2, which tables do not need

    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study, task_names = Study(results_dir), options.stored_names("tasks", tasks)
    if task_names:
        table_spec.check_names("tasks", task_names, study.names("task"))
        study.runs = study.runs[study.runs["task"].isin(task_names)]
    searches = search_tables.searches(study) if study.runs["variant"].notna().any() else []
    if study.table_runs.empty and not searches:
        raise study.no_run_error()
    place = options.arguments(results_dir=results_dir)
    how: dict[str, Any] = {
        "score": score,
        "included": comparable.INCLUDED_BY_DEFAULT.union(include or ()),
    }
    specs = [
        (
            table_spec.with_changes(table_spec.load(name), tasks=task_names),
            command_line(
                ["hifi", "grid", name, *options.arguments(tasks=",".join(task_names)), *place]
            ),
        )
        for name in tables or ()
    ] or [(spec, "") for spec in score_tables.specs_of(study)]
    shown = [
        built_table(spec, study, grid=grid, published=published, **how) for spec, grid in specs
    ]
    shown += report_page.comparisons(study, **how)
    settings = dict.fromkeys((spec.protocol, spec.backbone) for spec, _ in specs)
    for protocol, backbone in [each for each in settings if each[0] in registry.names("protocols")]:
        for verdicts_of in verdict_tables(
            claims or [],
            study,
            protocol=protocol,
            backbone=backbone,
            tasks=task_names,
            place=place,
            **how,
        ):
            has_runs = (verdicts_of.frame["verdict"] != "not run").any()
            shown += [verdicts_of] if claims or has_runs else []
    for spec, _ in specs:
        measures = table_spec.with_changes(spec, metrics=[*MEASURES])
        calibration = built_table(measures, study, grid="", published=False, **how)
        calibration.title = f"Calibration and churn: {calibration.title}"
        shown += [calibration] if len(calibration.scores) else []
    target = out or study.directory / "report.html"
    write_text(target, report_page.render(study, [*shown, *searches]))
    print(target)
