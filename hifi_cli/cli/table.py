"""`hifi table`: finished runs beside one another and beside the papers' numbers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hifi_cli.cli import options

_OF_RUNS = ("seeds", "shots", "score", "compare_scores", "include", "exclude")  # options that select runs and scores
_UNUSED = {  # options that have no effect, by kind of table
    "scores": (),
    "settings": _OF_RUNS,
    "costs": ("tasks", "shots", "score", "compare_scores", "published"),
    "statistics": (*_OF_RUNS, "methods", "protocol", "backbone"),
    "search": (*_OF_RUNS, "published"),
}


def table(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table's name or YAML, or search; default: all finished runs.", autocompletion=options.complete("tables")
        ),
    ] = None,
    format: options.TableFormat = None,  # noqa: A002
    score: options.ScoreChoice = None,
    compare_scores: Annotated[
        bool,
        typer.Option(
            "--compare-scores", help="Print the table for each score: best, last, max.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    published: Annotated[
        bool,
        typer.Option("--published", help="Also show the paper's numbers and the differences.", rich_help_panel=options.OUTPUT),
    ] = False,
    test_scores: Annotated[
        Path | None,
        typer.Option(
            help="Scores that the GLUE server returned, CSV or JSON, in place of validation scores.",
            rich_help_panel=options.WHICH,
        ),
    ] = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT)
    ] = False,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.BackboneOfRuns = None,
    protocol: options.ProtocolOfRuns = None,
    shots: options.ShotsOfRuns = None,
    seeds: options.SeedsOfRuns = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    standalone: options.Standalone = False,
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried.
    """
    from hifi_cli.cli.option_checks import refuse_unused
    from hifi_cli.cli.run_names import only_run_name, run_names
    from hifi_cli.cli.show import write_or_print
    from hifi_cli.config import registry
    from hifi_cli.errors import UsageError
    from hifi_cli.files import command_line
    from hifi_cli.reports import other_tables, server_scores, table_spec, tables
    from hifi_cli.reports.render import render
    from hifi_cli.results.study import Study

    table_format = options.table_format(format, out)
    counted, shots = options.counted_flags(include, exclude), options.shots_of_runs(shots)
    layout = table_spec.load(name) if name and name != "search" else None
    kind = "search" if name == "search" else layout.kind if layout else "scores"
    if test_scores and (not layout or kind != "scores" or score or compare_scores):
        raise UsageError(
            "--test-scores requires the name of a table of scores, without --score: hifi table hifi-2 --test-scores FILE"
        )
    given: dict[str, Any] = {"seeds": seeds, "shots": shots, "score": score, "compare_scores": compare_scores}
    given |= {"include": include, "exclude": exclude, "tasks": tasks, "methods": methods, "published": published}
    given |= {"protocol": protocol, "backbone": backbone}
    refuse_unused(f"hifi table {name}", {option: given[option] for option in _UNUSED[kind]})
    if kind in ("scores", "costs", "search"):  # whose names are those that runs have
        protocol, backbone = only_run_name("protocols", protocol), only_run_name("backbones", backbone)
        task_names, method_names = run_names("tasks", tasks), run_names("methods", methods)
        layout = layout and table_spec.by_names(layout)
    else:
        task_names, method_names = options.names(tasks), options.names(methods)
    study = Study(results_dir).or_only_subdirectory(protocol or (layout.protocol if layout else None))
    if kind == "search":
        shown = other_tables.searches(study, protocol=protocol, backbone=backbone, tasks=task_names, methods=method_names)
        return write_or_print(render(table_format, shown, standalone=standalone), out, "table")
    if not layout and study.shown.empty:
        raise study.no_run_error("hifi table")
    specs = [layout] if layout else tables.specs_of(study, protocol=protocol, backbone=backbone, shots=shots)
    if not specs:
        raise study.no_setting_error(protocol=protocol, backbone=backbone, shots=shots)
    known: dict[str, set[str]] = {"methods": set(), "tasks": set()}
    if kind in ("scores", "costs"):
        known = {"methods": study.names("method"), "tasks": study.names("task")}
    specs = [
        table_spec.with_changes(
            spec,
            protocol=protocol,
            backbone=backbone,
            methods=method_names,
            tasks=task_names,
            seeds=options.parse_seeds(seeds) if seeds else None,
            shots=shots,
            known=known,
        )
        for spec in specs
    ]
    for spec in specs if layout else ():  # a user's own may name what there is not
        table_spec.check_names("methods", spec.methods, known["methods"])
        table_spec.check_names("tasks", spec.tasks, known["tasks"])
    if kind == "settings":
        shown = [other_tables.settings(spec, show_published=published) for spec in specs]
    elif kind == "statistics":
        from hifi_cli.tasks import row_counts

        counts = [row_counts.collect(spec.tasks, data_dir=data_dir) for spec in specs]
        shown = [other_tables.row_counts(spec, of, show_published=published) for spec, of in zip(specs, counts, strict=True)]
    elif kind == "costs":
        shown = [other_tables.costs(spec, study, counted=counted) for spec in specs]
    else:
        words = ["hifi", "grid", str(name)]  # the command that makes the runs of the table
        every_method = ",".join(registry.argument_of("methods", method) for method in specs[0].methods)  # also of best_of
        named: dict[str, Any] = {"tasks": tasks, "methods": methods and every_method, "seeds": seeds}
        named |= {"protocol": given["protocol"], "backbone": given["backbone"], "data-dir": data_dir}
        named |= {"results-dir": results_dir if results_dir != Path("results") else None}
        words += [word for option, value in named.items() if value for word in (f"--{option}", str(value))]
        words += {None: [], "full": ["shots=null"]}.get(shots, [f"shots={shots}"])
        server = server_scores.read(test_scores) if test_scores else None
        table_options = tables.TableOptions(score, counted, published, server, command_line(words) if layout else "")
        build_all = tables.build_under_all_scores if compare_scores else tables.build_all
        shown = build_all(specs, study, table_options)
        if layout and study.shown.empty and not server:
            options.logger.warning(str(study.no_run_error(f"hifi table {name}")))
    for table in shown if layout else ():
        changes = [(key, getattr(layout, key), getattr(specs[0], key)) for key in ("protocol", "backbone")]
        if changed := [f"{key} {now} instead of {before}" for key, before, now in changes if now != before]:
            table.notes.insert(0, f"not the table's own setting: {', '.join(changed)}")
    write_or_print(render(table_format, shown, standalone=standalone), out, "table")
    if strict and any(table.is_incomplete for table in shown):
        raise typer.Exit(1)
