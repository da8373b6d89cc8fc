"""`hifi table`, `compare`, `claims` and `report`: finished runs beside one another and beside the papers' numbers."""

from typing import Annotated, Any

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.sources import run_name
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import command_line, suffix_of_output, write_text
from hifi_cli.reports import claim_spec, html, other_tables, pairs, table_spec
from hifi_cli.reports import claims as verdicts
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.render import emit
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
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    shots: options.Shots = None,
    score: options.ScoreChoice = None,
    metrics: Annotated[
        list[str] | None,
        options.several(
            "--metrics",
            help="A column of each for every task: score, metrics by name, nll, brier, ece, churn.",
        ),
    ] = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    variants: Annotated[
        bool,
        typer.Option(
            "--variants",
            help="A row for each variant=NAME, as METHOD/NAME.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
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
    layout = table_spec.load(name) if name and name != "search" else None
    kind = layout.kind if layout else "scores"
    study = Study(results_dir).with_variants() if variants else Study(results_dir)
    of_shots, counted = options.shots_of_runs(shots), pairs.counted_flags(include, exclude)
    where: dict[str, Any] = {
        "protocol": protocol and run_name("protocols", protocol),
        "backbone": backbone,
    }
    where |= {
        "tasks": options.run_names("tasks", task),
        "methods": options.run_names("methods", method),
    }
    if kind in ("scores", "costs"):  # whose names are those that runs have
        where["backbone"] = backbone and run_name("backbones", backbone)
        layout = layout and table_spec.by_names(layout)
    if name == "search":
        return emit(other_tables.searches(study, **where), format, out)
    setting = {"protocol": where["protocol"], "backbone": where["backbone"], "shots": of_shots}
    specs = [layout] if layout else score_tables.specs_of(study, **setting)
    if not specs:
        raise study.no_run_error() if study.shown.empty else study.no_setting_error(**setting)
    known = {"score", *score_tables.METRIC_NAMES}.union(*study.runs["metrics"])
    if unknown := [metric for metric in metrics or () if metric not in known]:
        raise UsageError(
            f"--metrics: no run has '{unknown[0]}'{registry.nearest(unknown[0], known)}"
        )
    numbers = options.parse_seeds(seeds)
    specs = [
        table_spec.with_changes(spec, **where, seeds=numbers, shots=of_shots, metrics=metrics or ())
        for spec in specs
    ]
    table_spec.check_names("methods", specs[0].methods, study.names("method"))
    table_spec.check_names("tasks", specs[0].tasks, study.names("task"))
    if kind == "settings":
        shown = [other_tables.settings(specs[0], show_published=published)]
    elif kind == "statistics":
        counts = data_sources.count_rows(specs[0].tasks, data_dir=data_dir)
        shown = [other_tables.row_counts(specs[0], counts, show_published=published)]
    elif kind == "costs":
        shown = [other_tables.costs(specs[0], study, counted=counted)]
    else:
        given = {
            "tasks": ",".join(task or []),
            "methods": ",".join(method or []),
            "seeds": seeds,
            "protocol": protocol,
        }
        words = options.arguments(
            **given, backbone=backbone, data_dir=data_dir, results_dir=results_dir
        )
        words += [f"shots={'null' if of_shots == 'full' else of_shots}"] if of_shots else []
        grid = (
            command_line(["hifi", "grid", str(name), *words]) if layout else ""
        )  # it makes the runs of the table
        shown = [
            score_tables.build(
                spec, study, score=score, counted=counted, show_published=published, grid=grid
            )
            for spec in specs
        ]
        if layout and study.shown.empty:
            options.logger.warning(str(study.no_run_error()))
    for built in shown if layout else ():
        changes = [
            (key, getattr(layout, key), getattr(specs[0], key)) for key in ("protocol", "backbone")
        ]
        if changed := [
            f"{key} {now} instead of {before}" for key, before, now in changes if now != before
        ]:
            built.notes.insert(0, f"not the table's own setting: {', '.join(changed)}")
    emit(shown, format, out)
    if strict and any(built.is_incomplete for built in shown):
        raise typer.Exit(1)


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
    backbones: Annotated[
        list[str] | None,
        options.several(
            "--backbones", help="Compare the first backbone with each of the others instead."
        ),
    ] = None,
    protocol: options.Protocol = None,
    shots: options.Shots = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    results_dir: options.ResultsDir = options.RESULTS,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Compare the first method with each of the others, paired over seeds and tasks, and say what can be concluded."""
    protocol, backbone = (
        protocol and run_name("protocols", protocol),
        backbone and run_name("backbones", backbone),
    )
    names = options.run_names("methods", [name for word in methods for name in word.split(",")])
    study = (
        Study(results_dir).with_variants()
        if any("/" in name for name in names)
        else Study(results_dir)
    )
    table_spec.check_names("methods", names, study.names("method"))
    by, compared = (
        ("backbone", options.run_names("backbones", backbones)) if backbones else ("method", names)
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
    task_names = options.run_names("tasks", tasks)
    table_spec.check_names("tasks", task_names, study.names("task"))
    runs = study.runs[study.runs["task"].isin(task_names)] if task_names else study.runs
    setting = {"protocol": protocol, "backbone": backbone, "shots": options.shots_of_runs(shots)}
    runs = pairs.only_setting(runs[runs["method"].isin(names)], compared, by=by, **setting)
    counted = pairs.counted_flags(include, exclude)
    emit(pairs.compare(study, runs, compared, by=by, score=score, counted=counted), format, out)


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|PAPER/CLAIM]...",
            help="Papers, single claims, or a YAML of your own; default: all papers.",
        ),
    ] = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
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
    files = claim_spec.select(names or [], protocol=protocol, backbone=backbone)
    study, counted = Study(results_dir), pairs.counted_flags(include, exclude)
    for name in {registry.name_of(file.protocol): None for file in files.values()}:
        if len(study.shown) and name not in study.names("protocol"):
            options.logger.warning(f"note: {study.no_setting_error(protocol=name)}")
    place = options.arguments(results_dir=results_dir, data_dir=data_dir)
    setting = options.arguments(protocol=protocol, backbone=backbone)
    tables = [
        verdicts.evaluate(
            name, file, study, score=score, counted=counted, setting=setting, place=place
        )
        for name, file in files.items()
    ]
    emit(tables, format, out)
    if strict and any((table.frame["verdict"] != "reproduced").any() for table in tables):
        raise typer.Exit(1)


def report(
    tables: Annotated[
        list[str] | None,
        options.several("--tables", "--table", help="Tables by name; default: all finished runs."),
    ] = None,
    claims: Annotated[
        list[str] | None,
        options.several(
            "--claims", help="Claims of papers or your own YAMLs; default: all with a result."
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Compare this method with each of the others; default: full-ft.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    out: options.Out = None,
) -> None:
    """Write tables, comparisons, claims, figures and learning curves to one HTML file.

    It is RESULTS_DIR/report.html where --out names no other.
    """
    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study = Study(results_dir)
    searches = other_tables.searches(study) if study.runs["variant"].notna().any() else []
    if study.shown.empty and not searches:
        raise study.no_run_error()
    reference = (compare and run_name("methods", compare)) or html.REFERENCE
    table_spec.check_names("methods", [reference], study.names("method"))
    if compare and reference not in study.names("method"):
        raise MissingError(
            f"no finished run of {reference}; make one with hifi train --method {reference}"
        )
    own_specs = {name: table_spec.by_names(table_spec.load(name)) for name in tables or ()}
    if unfit := [name for name, spec in own_specs.items() if spec.kind != "scores"]:
        raise UsageError(
            f"hifi report shows tables of scores, and {unfit[0]} is none: hifi table {unfit[0]}"
        )
    place = options.arguments(results_dir=results_dir)
    specs = [
        (spec, command_line(["hifi", "grid", name, *place])) for name, spec in own_specs.items()
    ]
    specs = specs or [(spec, "") for spec in score_tables.specs_of(study)]
    counted = pairs.counted_flags(include, exclude)
    claim_tables = []
    settings = [
        (spec.protocol, spec.backbone)
        for spec, _ in specs
        if spec.protocol in registry.names("protocols")
    ]
    for protocol, backbone in dict.fromkeys(settings):
        for name in claims or registry.names("claims"):
            file = claim_spec.load(name, protocol=protocol, backbone=backbone)
            setting = options.arguments(protocol=protocol, backbone=backbone)
            judged = verdicts.evaluate(
                name, file, study, score=score, counted=counted, setting=setting, place=place
            )
            if claims or (judged.frame["verdict"] != "not run").any():
                claim_tables.append(judged)
    built = [
        score_tables.build(
            spec, study, score=score, counted=counted, show_published=published, grid=grid
        )
        for spec, grid in specs
    ]
    measured = [
        score_tables.build(
            table_spec.with_changes(spec, metrics=[*MEASURES]), study, score=score, counted=counted
        )
        for spec, _ in specs
    ]
    for measures in measured:
        measures.title = f"Calibration and churn: {measures.title}"
    built += [measures for measures in measured if len(measures.scores)]
    shown = [
        *built,
        *html.comparisons(study, reference, score=score, counted=counted),
        *claim_tables,
        *searches,
    ]
    target = out or study.directory / "report.html"
    write_text(target, html.render(study, shown))
    print(target)
