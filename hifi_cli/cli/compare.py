"""`hifi compare`: what finished runs allow to conclude about methods."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config.sources import run_name
from hifi_cli.errors import UsageError
from hifi_cli.reports import compare as comparisons
from hifi_cli.reports import pairs
from hifi_cli.reports.formats import render
from hifi_cli.reports.table_spec import check_names
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.study import Study


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD OTHER...", help="Methods, or the directories of two runs."),
    ],
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    shots: options.Shots = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    results_dir: options.ResultsDir = options.RESULTS,
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
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
    standalone: options.Standalone = False,
) -> None:
    """Compare the first method with each of the others, paired over seeds and tasks, and say what can be concluded.

    Two run directories are compared by their stored predictions.
    """
    table_format = options.table_format(format, out)
    if len(methods) == 2 and all(Path(word).is_dir() for word in methods):
        tables = [comparisons.of_runs(*(RunDirectory(Path(word)) for word in methods))]
        return options.write_or_print(render(table_format, tables, standalone=standalone), out, "comparison")
    protocol, backbone = protocol and run_name("protocols", protocol), backbone and run_name("backbones", backbone)
    study = Study(results_dir)
    names = options.run_names("methods", [name for word in methods for name in word.split(",")])
    check_names("methods", names, study.names("method"))
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError("hifi compare needs two or more different methods: hifi compare hifi-layerwise full-ft")
    if study.shown.empty:
        raise study.no_run_error(f"hifi compare {' '.join(methods)}")
    task_names = options.run_names("tasks", tasks)
    check_names("tasks", task_names, study.names("task"))
    setting = {"protocol": protocol, "backbone": backbone, "shots": options.shots_of_runs(shots)}
    tables = comparisons.compare(
        study,
        pairs.only_setting(study.runs, names, **setting),
        names,
        tasks=task_names,
        score=score,
        counted=options.counted_flags(include, exclude),
        margin=margin,
        details=details,
    )
    options.write_or_print(render(table_format, tables, standalone=standalone), out, "comparison")
