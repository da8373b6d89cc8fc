"""`hifi eval`: rebuild a finished run from its delta, and compute its scores again."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hifi_cli.cli import options


def evaluate(
    run_dir: Annotated[Path | None, typer.Argument(help="A run's directory; or name it by the options.")] = None,
    task: options.Task = None,
    method: options.Method = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    shots: options.Shots = None,
    split: Annotated[
        Literal["validation", "test"],
        typer.Option(help="Reproduce the reported scores, or predict the test split.", rich_help_panel=options.WHAT),
    ] = "validation",
    submission: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the files that the test server expects, and for their zip once they are complete.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    trust: options.Trust = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Rebuild trained models and evaluate them again (exit code 1 if stored results differ), or predict the test split.

    Without --data-dir the data are read from where they were read in training.
    """
    from hifi_cli.cli.option_checks import refuse_unused
    from hifi_cli.cli.show import metrics_now_and_stored, print_evaluation, print_json, print_paths
    from hifi_cli.errors import RunFailed, UsageError
    from hifi_cli.records.run_directory import RunDirectory
    from hifi_cli.runs import evaluate as evaluation
    from hifi_cli.runs.resources import ResourceCache
    from hifi_cli.wording import first_of

    if run_dir:
        given = {"task": task, "method": method, "protocol": protocol, "seeds": seeds, "shots": shots}
        refuse_unused(f"hifi eval of the run {run_dir}", given)
        paths = [run_dir]
    else:
        resolved = options.resolve_runs(
            task=task, method=method, backbone=backbone, protocol=protocol, seeds=seeds, extra={"shots": shots}
        )
        paths = [RunDirectory.of(run.config, results_dir).path for run in resolved]
    resources = ResourceCache(results_dir, data_dir, backbone, trust)
    if split == "validation":
        if submission:
            raise UsageError("--submission requires test predictions: add --split test")
        outputs = []
        differing: list[str] = []
        for path in paths:
            resources.use_data_dir(data_dir or evaluation.stored_data_dir(path))
            evaluated = evaluation.evaluate(path, resources)
            if format == "text":
                print_evaluation(evaluated)
            outputs.append(
                {
                    "path": path,
                    "metrics": metrics_now_and_stored(evaluated),
                    "largest_logit_difference": evaluated.largest_difference,
                    "reproduced": not evaluated.differing,
                }
            )
            differing += [f"{path}: {', '.join(evaluated.differing)}"] if evaluated.differing else []
        if format == "json":
            print_json(outputs)
        if differing:
            raise RunFailed(
                f"{len(differing)} of {len(paths)} runs do not reproduce their stored results ({first_of(differing, '; ')});"
                " evaluate with the library versions in results.json, or train again with --force"
            )
        return
    files: list[Path] = []
    for path in paths:
        resources.use_data_dir(data_dir or evaluation.stored_data_dir(path))
        files += evaluation.predict_test(path, resources, submission)
    files += evaluation.complete_submissions(paths, resources, submission) if submission else []
    print_paths(files, format)
