"""`hifi compare`: what finished runs allow to conclude about methods."""

from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config.sources import run_name
from hifi_cli.errors import UsageError
from hifi_cli.reports import compare as comparisons
from hifi_cli.reports import pairs
from hifi_cli.reports.render import render
from hifi_cli.reports.table_spec import check_names
from hifi_cli.results.study import Study


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD OTHER...", help="Methods by name."),
    ],
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
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
    table_format = options.table_format(format, out)
    protocol, backbone = protocol and run_name("protocols", protocol), backbone and run_name("backbones", backbone)
    study = Study(results_dir)
    names = options.run_names("methods", [name for word in methods for name in word.split(",")])
    check_names("methods", names, study.names("method"))
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError("hifi compare needs two or more different methods: hifi compare hifi-layerwise full-ft")
    if study.shown.empty:
        raise study.no_run_error()
    task_names = options.run_names("tasks", tasks)
    check_names("tasks", task_names, study.names("task"))
    runs = study.runs[study.runs["task"].isin(task_names)] if task_names else study.runs
    setting = {"protocol": protocol, "backbone": backbone, "shots": options.shots_of_runs(shots)}
    runs, counted = pairs.only_setting(runs, names, **setting), options.counted_flags(include, exclude)
    tables = comparisons.compare(study, runs, names, score=score, counted=counted)
    options.write_or_print(render(table_format, tables), out, "comparison")
