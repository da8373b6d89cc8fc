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
            help="Methods by name.",
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
    format: options.TableFormat = None,  # noqa: A002
    results_dir: options.ResultsDir = Path("results"),
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Compare the first method with each of the others, paired over seeds and tasks, and say what can be concluded."""
    from hifi_cli.cli.run_names import only_run_name, run_names
    from hifi_cli.cli.show import write_or_print
    from hifi_cli.errors import UsageError
    from hifi_cli.reports import compare as comparisons
    from hifi_cli.reports import pairs
    from hifi_cli.reports.render import render
    from hifi_cli.reports.table_spec import check_names
    from hifi_cli.results.study import Study

    table_format = options.table_format(format, out)
    protocol, backbone = only_run_name("protocols", protocol), only_run_name("backbones", backbone)
    study = Study(results_dir).or_only_subdirectory(protocol)
    methods = [name for word in methods for name in run_names("methods", word)]
    check_names("methods", methods, study.names("method"))
    if len(methods) < 2 or len(set(methods)) < len(methods):
        raise UsageError("hifi compare needs two or more different methods: hifi compare hifi-layerwise full-ft")
    if study.shown.empty:
        raise study.no_run_error(f"hifi compare {' '.join(methods)}")
    task_names = run_names("tasks", tasks)
    check_names("tasks", task_names, study.names("task"))
    runs = study.runs[study.runs["task"].isin(task_names)] if task_names else study.runs
    chosen = {"protocol": protocol, "backbone": backbone, "shots": options.shots_of_runs(shots)}
    runs, counted = pairs.only_setting(runs, methods, **chosen), options.counted_flags(include, exclude)
    tables = comparisons.compare(study, runs, methods, score=score, counted=counted)
    write_or_print(render(table_format, tables), out, "comparison")
