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
    from hifi_cli.cli.show import print_evaluation, print_json, print_paths
    from hifi_cli.errors import RunFailed, UsageError
    from hifi_cli.results import predict, reload
    from hifi_cli.results.directory import RunDirectory
    from hifi_cli.training.data import ResourceCache
    from hifi_cli.wording import first_of

    if submission and split == "validation":
        raise UsageError("--submission requires test predictions: add --split test")
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
    evaluations, files = [], []
    for path in paths:
        resources.use_data_dir(data_dir or reload.stored_data_dir(path))
        if split == "test":
            files += predict.predict_test(path, resources, submission)
            continue
        evaluations.append(reload.evaluate(path, resources))
        if format == "text":
            print_evaluation(evaluations[-1])
    if split == "test":
        files += predict.complete_submissions(paths, resources, submission) if submission else []
        return print_paths(files, format)
    if format == "json":
        print_json(
            [
                {
                    "path": evaluation.path,
                    "metrics": {name: {"now": now, "stored": then} for name, (now, then) in evaluation.compared.items()},
                    "largest_logit_difference": evaluation.largest_difference,
                    "reproduced": not evaluation.differing,
                }
                for evaluation in evaluations
            ]
        )
    differing = [f"{each.path}: {', '.join(each.differing)}" for each in evaluations if each.differing]
    if differing:
        raise RunFailed(
            f"{len(differing)} of {len(paths)} runs do not reproduce their stored results ({first_of(differing, '; ')});"
            " evaluate with the library versions in results.json, or train again with --force"
        )
