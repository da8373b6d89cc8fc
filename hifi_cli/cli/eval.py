"""`hifi eval`: trained models evaluated again."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from hifi_cli.cli import options
from hifi_cli.errors import HifiError, RunFailed, UsageError, logger
from hifi_cli.tasks.submission import pack
from hifi_cli.text import abbreviate, format_number

if TYPE_CHECKING:
    from hifi_cli.runs.inference import Evaluation, PredictedSplits

Result = TypeVar("Result")


def evaluate(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(help="Directories of runs: results/runs/hifi/bert-large/rte/*/seed*"),
    ],
    split: Annotated[
        Literal["validation", "test"],
        typer.Option(
            help="Reproduce the reported scores, or predict the test split.",
            rich_help_panel=options.WHAT,
        ),
    ] = "validation",
    submission: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the files that the test server expects, and for their zip once they are complete.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    backbone: options.Backbone = None,
    trust: options.Trust = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Rebuild trained models and evaluate them again (exit code 1 if stored results differ), or predict the test split."""
    # torch, which these import, takes seconds, and --help does without it.
    from hifi_cli.runs import inference
    from hifi_cli.runs.workspace import Workspace

    if submission and split == "validation":
        raise UsageError("--submission requires test predictions: add --split test")
    workspace = Workspace(results_dir, data_dir, backbone, trust)
    if split == "test":
        predict = partial(inference.predict_test, workspace=workspace, submission_dir=submission)
        predicted, failed = _attempt_each(predict, run_dirs)
        _print_files(predicted, submission, format)
    else:

        def evaluate_run(path: Path) -> "Evaluation":
            evaluation = inference.evaluate(path, workspace)
            # Each run is printed as it comes: an evaluation may take minutes.
            if format == "text":
                _print_evaluation(evaluation)
            return evaluation

        evaluations, failed = _attempt_each(evaluate_run, run_dirs)
        if format == "json":
            options.print_json(evaluations)
        # Last, so that one run that differs or fails does not hide the others.
        _refuse_differing(evaluations)
    _refuse_failed(failed, len(run_dirs))


def _attempt_each(
    function: Callable[[Path], Result], run_dirs: Sequence[Path]
) -> tuple[list[Result], dict[Path, HifiError]]:
    """Call a function for each of several runs; a run that fails is named, and the others go on.

    Args:
        function: takes the directory of a run.
        run_dirs: the runs.

    Returns:
        The results, and the error of each run that failed.

    Raises:
        HifiError: a run fails that is the only one.
    """
    results = []
    failed = {}
    for path in run_dirs:
        try:
            results.append(function(path))
        except HifiError as error:
            if len(run_dirs) == 1:
                raise
            logger.warning(f"{path} is left out: {error}")
            failed[path] = error
    return results, failed


def _print_files(
    predicted: Sequence["PredictedSplits"],
    submission: Path | None,
    format: options.OutputFormat,  # noqa: A002
) -> None:
    """Print the files of predictions, and pack those for the benchmarks' servers.

    Args:
        predicted: the predictions of each run.
        submission: where the files for the servers are; None: there are none.
        format: of the output.
    """
    files: list[Path] = []
    for run in predicted:
        files += run.files
    if submission:
        benchmarks = {run.benchmark for run in predicted if run.benchmark}
        files += [pack(benchmark, submission) for benchmark in sorted(benchmarks)]
    if format == "json":
        options.print_json([{"path": path} for path in files])
    elif files:
        print(*files, sep="\n")


def _refuse_failed(failed: Mapping[Path, HifiError], count: int) -> None:
    """End the command with the exit code of the first of the runs that failed.

    Args:
        failed: the error of each such run.
        count: of all runs.

    Raises:
        HifiError: there is one.
    """
    if not failed:
        return
    first = next(iter(failed.values()))
    names = abbreviate([str(path) for path in failed])
    raise type(first)(f"{len(failed)} of {count} runs could not be evaluated: {names}")


def _refuse_differing(evaluations: Sequence["Evaluation"]) -> None:
    """End the command with an error if runs do not reproduce what they stored.

    Raises:
        RunFailed: some do not.
    """
    differing = []
    for evaluation in evaluations:
        if evaluation.differing:
            differing.append(f"{evaluation.path}: {', '.join(evaluation.differing)}")
    if differing:
        raise RunFailed(
            f"{len(differing)} of {len(evaluations)} runs do not reproduce their stored results"
            f" ({abbreviate(differing, '; ')}); evaluate with the library versions in results.json,"
            " or train again with --force"
        )


def _print_evaluation(evaluation: "Evaluation") -> None:
    """Print scores now and stored, and how far the logits are apart."""
    difference = evaluation.largest_difference
    verdict = f"logits differ by at most {difference:.1e}"
    if difference == 0:
        verdict = "logits identical"
    for name, (now, stored) in evaluation.compared.items():
        print(f"{evaluation.path}  {name} {_percent(now)}  stored {_percent(stored)}  {verdict}")


def _percent(score: float | None) -> str:
    """Return a score in percent, or `none`."""
    if score is None:
        return "none"
    return format_number(100 * score, ".2f")
