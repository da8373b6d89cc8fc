"""`hifi table`, `compare`, `claims` and `report`: finished runs beside one another and beside the papers' numbers."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.errors import UsageError, logger
from hifi_cli.files import command_line, suffix_of_output, write_text
from hifi_cli.reports import claims as paper_claims
from hifi_cli.reports import other_tables, pairs, table_spec
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.render import Table, emit
from hifi_cli.reports.table_spec import TableSpec
from hifi_cli.results.study import Study
from hifi_cli.tasks import data_sources


def table(
    name: Annotated[
        str | None,
        typer.Argument(help="A table's name or YAML, or search; default: all finished runs."),
    ] = None,
    task: options.Tasks = None,
    method: options.Methods = None,
    backbone: options.Backbone = None,
    backbones: options.Backbones = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    shots: options.Shots = None,
    score: options.Score = None,
    metrics: Annotated[
        list[str] | None,
        options.several(
            "--metrics",
            help="A column of each for every task: score, metrics by name, nll, brier, ece, churn.",
        ),
    ] = None,
    include: options.Include = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="A row for each value of this setting, METHOD/KEY=VALUE; of variant, METHOD/NAME.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried.
    """
    study = Study(results_dir).with_rows_by(by) if by else Study(results_dir)
    keys = options.table_keys(protocol, backbones[0] if backbones else backbone, shots)
    tasks, methods = options.stored_names("tasks", task), options.stored_names("methods", method)
    if name == "search":
        chosen = {**keys, "task": tasks, "method": methods}
        searched = other_tables.searches(study, **chosen)
        searched[0].notes += study.notes_on_damage
        return emit(searched, format, out)
    layouts = [table_spec.load(name)] if name else score_tables.specs_of(study, **keys)
    if not layouts:
        raise study.no_run_error() if study.shown.empty else study.no_such_runs_error(**keys)
    if by:
        bases = methods or layouts[0].methods
        runs = pairs.of_table(study.runs, protocol=keys["protocol"] or layouts[0].protocol)
        of_tasks = runs["task"].isin(tasks or layouts[0].tasks or runs["task"])
        methods = [
            row for row in sorted({*runs["method"][of_tasks]}) if row.partition("/")[0] in bases
        ] or bases
    known = {"score", *score_tables.METRIC_NAMES}.union(*study.runs["metrics"])
    if unknown := [metric for metric in metrics or () if metric not in known]:
        raise UsageError(
            f"--metrics: no run has '{unknown[0]}'{registry.nearest(unknown[0], known)}"
        )
    changes: dict[str, Any] = {
        **keys,
        "tasks": tasks,
        "methods": methods,
        "seeds": options.parse_seeds(seeds),
        "metrics": metrics,
        "backbones": backbones,
    }
    specs = [table_spec.with_changes(layout, **changes) for layout in layouts]
    table_spec.check_names("methods", specs[0].methods, study.names("method"))
    table_spec.check_names("tasks", specs[0].tasks, study.names("task"))
    given = {
        "tasks": ",".join(task or []),
        "methods": ",".join(method or []),
        "seeds": seeds,
        "protocol": protocol,
        "backbone": backbone,
        "data_dir": data_dir,
        "results_dir": results_dir,
    }
    words = [f"shots={'null' if shots == 'full' else shots}"] if shots else []
    command = command_line(["hifi", "grid", str(name), *options.arguments(**given), *words])
    how: dict[str, Any] = {
        "score": score,
        "counted": pairs.COUNTED.union(include or ()),
        "grid": command if name and not by else "",  # others show what there is
    }
    tables = [_built(spec, study, data_dir=data_dir, published=published, **how) for spec in specs]
    tables[0].notes += study.notes_on_damage
    emit(tables, format, out)
    if strict and any(built.missing for built in tables):
        raise typer.Exit(1)


def _built(
    spec: TableSpec,
    study: Study,
    *,
    score: EpochChoice | None,
    counted: Collection[str],
    grid: str,
    published: bool,
    data_dir: Path | None = None,
) -> Table:
    """A table of any kind."""
    if spec.kind == "settings":
        return other_tables.settings(spec, show_published=published)
    if spec.kind == "statistics":
        counts = data_sources.count_rows(spec.tasks, data_dir=data_dir)
        return other_tables.row_counts(spec, counts, show_published=published)
    if spec.kind == "costs":
        return other_tables.costs(spec, study, counted=counted)
    return score_tables.build(
        spec, study, score=score, counted=counted, show_published=published, grid=grid
    )


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD OTHER...",
            help="Methods by name; METHOD/NAME: the runs with variant=NAME; with --backbones, one.",
        ),
    ],
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
    backbones: options.Backbones = None,
    protocol: options.Protocol = None,
    shots: options.Shots = None,
    score: options.Score = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Compare this metric, or nll, brier or ece of the stored predictions.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    include: options.Include = None,
    results_dir: options.ResultsDir = options.RESULTS,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Compare the first method with each of the others, paired over seeds and tasks, and say what can be concluded."""
    names = options.stored_names("methods", [name for word in methods for name in word.split(",")])
    study = Study(results_dir)
    study = study.with_rows_by("variant") if any("/" in name for name in names) else study
    table_spec.check_names("methods", names, study.names("method"))
    by, compared = (
        ("backbone", options.stored_names("backbones", backbones))
        if backbones
        else ("method", names)
    )
    if by == "backbone" and (backbone or len(names) > 1):
        raise UsageError(
            "--backbones compares two or more backbones under one method: hifi compare full-ft --backbones a,b"
        )
    if len(compared) < 2 or len(set(compared)) < len(compared):
        raise UsageError(
            f"hifi compare needs two or more different {by}s: hifi compare hifi-layerwise full-ft"
        )
    if study.shown.empty:
        raise study.no_run_error()
    task_names = options.stored_names("tasks", tasks)
    table_spec.check_names("tasks", task_names, study.names("task"))
    runs = study.runs[study.runs["task"].isin(task_names)] if task_names else study.runs
    keys = options.table_keys(protocol, backbone, shots)
    runs = pairs.of_one_table(runs[runs["method"].isin(names)], compared, by=by, **keys)
    counted = pairs.COUNTED.union(include or ())
    how: dict[str, Any] = {"score": score, "metric": metric, "counted": counted}
    tables = pairs.compare(study, runs, compared, by=by, **how)
    tables[0].notes += study.notes_on_damage
    emit(tables, format, out)


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|PAPER/CLAIM]...",
            help="Papers, single claims, or a YAML of your own; default: all papers.",
        ),
    ] = None,
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    score: options.Score = None,
    include: options.Include = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 1 unless every claim is reproduced.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Print each claim with the published effect, yours with its interval, a verdict, and the commands for missing runs."""
    study, task_names = Study(results_dir), options.stored_names("tasks", tasks)
    table_spec.check_names("tasks", task_names, study.names("task"))
    files = paper_claims.select(names or [], protocol=protocol, backbone=backbone)
    for each in dict.fromkeys(file.protocol for file in files.values()):
        if len(study.shown) and registry.name_of(each) not in study.names("protocol"):
            logger.warning(f"note: {study.no_such_runs_error(protocol=each)}")
    place = options.arguments(results_dir=results_dir, data_dir=data_dir)
    how: dict[str, Any] = {"protocol": protocol, "backbone": backbone, "tasks": task_names}
    counted = pairs.COUNTED.union(include or ())
    tables = _verdicts(names or [], study, **how, score=score, counted=counted, place=place)
    tables[0].notes += study.notes_on_damage
    emit(tables, format, out)
    reproduced = sum((table.frame["verdict"] == "reproduced").sum() for table in tables)
    if strict and reproduced < sum(len(file.claims) for file in files.values()):
        raise typer.Exit(1)


def _verdicts(
    words: list[str],
    study: Study,
    *,
    protocol: str | None,
    backbone: str | None,
    tasks: list[str],
    **how: Any,
) -> list[Table]:
    """A table of verdicts for each file of claims that words name."""
    files = paper_claims.select(words, protocol=protocol, backbone=backbone, tasks=tasks)
    names = {"tasks": ",".join(map(registry.argument_of, tasks)), "protocol": protocol}
    given = options.arguments(**names, backbone=backbone)
    return [
        paper_claims.evaluate(name, file, study, given=given, **how) for name, file in files.items()
    ]


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
    from hifi_cli.reports import html  # jinja2, which tables do not need

    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study, task_names = Study(results_dir), options.stored_names("tasks", tasks)
    if task_names:
        table_spec.check_names("tasks", task_names, study.names("task"))
        study.runs = study.runs[study.runs["task"].isin(task_names)]
    searches = other_tables.searches(study) if study.runs["variant"].notna().any() else []
    if study.shown.empty and not searches:
        raise study.no_run_error()
    place = options.arguments(results_dir=results_dir)
    how: dict[str, Any] = {"score": score, "counted": pairs.COUNTED.union(include or ())}
    specs = [
        (
            table_spec.with_changes(table_spec.load(name), tasks=task_names),
            command_line(
                ["hifi", "grid", name, *options.arguments(tasks=",".join(task_names)), *place]
            ),
        )
        for name in tables or ()
    ] or [(spec, "") for spec in score_tables.specs_of(study)]
    shown = [_built(spec, study, grid=grid, published=published, **how) for spec, grid in specs]
    shown += html.comparisons(study, **how)
    settings = dict.fromkeys((spec.protocol, spec.backbone) for spec, _ in specs)
    for protocol, backbone in [each for each in settings if each[0] in registry.names("protocols")]:
        for verdicts_of in _verdicts(
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
        calibration = _built(measures, study, grid="", published=False, **how)
        calibration.title = f"Calibration and churn: {calibration.title}"
        shown += [calibration] if len(calibration.scores) else []
    target = out or study.directory / "report.html"
    write_text(target, html.render(study, [*shown, *searches]))
    print(target)
