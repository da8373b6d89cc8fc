"""`hifi compare`: what finished runs allow to conclude about methods."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD OTHER...",
            help="Methods, or the directories of two runs.",
            autocompletion=options.complete("methods"),
        ),
    ],
    tasks: options.Tasks = None,
    backbone: options.OnlyBackbone = None,
    protocol: options.OnlyProtocol = None,
    shots: options.ShotsOfRuns = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    margin: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Also test whether the methods are equal within this many points.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Also print the number of pairs, the spread over tasks, and the seeds that a difference needs.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    format: options.TableFormat = None,  # noqa: A002
    results_dir: options.ResultsDir = Path("results"),
    standalone: options.Standalone = False,
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Compare the first method with each of the others, paired over seeds and tasks, and say what can be concluded.

    Two run directories are compared by their stored predictions.
    """
    from hifi_cli.cli.option_checks import refuse_unused
    from hifi_cli.cli.run_names import only_run_name, run_names
    from hifi_cli.cli.show import write_or_print
    from hifi_cli.errors import UsageError
    from hifi_cli.reports import compare as comparisons
    from hifi_cli.reports import pairs
    from hifi_cli.reports.formats import render
    from hifi_cli.reports.table_spec import check_names
    from hifi_cli.results.directory import RunDirectory
    from hifi_cli.results.study import Study

    table_format = options.table_format(format, out)
    protocol, backbone = only_run_name("protocols", protocol), only_run_name("backbones", backbone)
    study = Study(results_dir)
    are_runs = all(Path(word).is_dir() for word in methods)
    if not are_runs:
        methods = [name for word in methods for name in run_names("methods", word)]
        check_names("methods", methods, study.names("method"))
    if len(set(methods)) < 2 or len(set(methods)) < len(methods):
        raise UsageError("hifi compare needs two or more different methods: hifi compare hifi-layerwise full-ft")
    if are_runs:
        if len(methods) > 2:
            raise UsageError("hifi compare needs two run directories, or methods by name")
        of_methods = {"tasks": tasks, "backbone": backbone, "protocol": protocol, "shots": shots, "score": score}
        of_means = {"include": include, "exclude": exclude, "margin": margin, "details": details}
        refuse_unused("hifi compare of two run directories", {**of_methods, **of_means})
        first, second = (RunDirectory(Path(word)) for word in methods)
        tables = [comparisons.of_runs(first, second)]
    else:
        if study.shown.empty:
            raise study.no_run_error(f"hifi compare {' '.join(methods)}")
        task_names = run_names("tasks", tasks)
        check_names("tasks", task_names, study.names("task"))
        chosen = {"protocol": protocol, "backbone": backbone, "shots": options.shots_of_runs(shots)}
        tables = comparisons.compare(
            study,
            pairs.only_setting(study.runs, methods, **chosen),
            methods,
            tasks=task_names,
            score=score,
            counted=options.counted_flags(include, exclude),
            margin=margin,
            details=details,
        )
    write_or_print(render(table_format, tables, standalone=standalone), out, "comparison")
