"""`hifi eval`, `predict` and `export`: what is done with the models of finished runs."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from hifi_cli.cli import options
from hifi_cli.errors import RunFailed, UsageError, first_of
from hifi_cli.files import write_or_print
from hifi_cli.results import reload, share
from hifi_cli.results.reload import Evaluation
from hifi_cli.training.data import ResourceCache


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
    if submission and split == "validation":
        raise UsageError("--submission requires test predictions: add --split test")
    resources = ResourceCache(results_dir, data_dir, backbone, trust)
    if split == "test":
        files = reload.predict_test(run_dirs, resources, submission)
        if format == "json":
            return options.print_json([{"path": path} for path in files])
        return print(*files, sep="\n")
    evaluations: list[Evaluation] = []
    for path in run_dirs:
        evaluations.append(reload.evaluate(path, resources))
        if format == "text":
            _print_evaluation(evaluations[-1])
    if format == "json":
        options.print_json(evaluations)
    if differing := [
        f"{each.path}: {', '.join(each.differing)}" for each in evaluations if each.differing
    ]:
        raise RunFailed(
            f"{len(differing)} of {len(run_dirs)} runs do not reproduce their stored results ({first_of(differing, '; ')});"
            " evaluate with the library versions in results.json, or train again with --force"
        )


def _print_evaluation(evaluation: Evaluation) -> None:
    """Scores now and stored, and how far the logits are apart."""
    difference = evaluation.largest_difference
    verdict = (
        "logits identical" if difference == 0 else f"logits differ by at most {difference:.1e}"
    )
    for name, scores in evaluation.compared.items():
        now, stored = ("none" if score is None else f"{100 * score:.2f}" for score in scores)
        print(f"{evaluation.path}  {name} {now}  stored {stored}  {verdict}")


def predict(
    run_dir: options.RunDir,
    file: Annotated[
        Path,
        typer.Argument(
            help="TSV, CSV, JSONL, Parquet or CoNLL columns with the task's inputs, named by its ending."
        ),
    ],
    backbone: options.Backbone = None,
    trust: options.Trust = False,
    results_dir: options.ResultsDir = options.RESULTS,
    out: options.Out = None,
) -> None:
    """Predict each row of a file, a JSON line each: a label with all probabilities, a number or tags.

    hifi ls TASK names the input columns.
    """
    if out and out.exists() and file.exists() and out.samefile(file):
        raise UsageError(f"--out {out} is the input, which would be lost: name another file")
    rows = reload.predict(run_dir, file, ResourceCache(results_dir, None, backbone, trust))
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_or_print("".join(lines), out)


def export(
    run_dir: options.RunDir,
    to: Annotated[Path, typer.Option(help="A new directory.", rich_help_panel=options.OUTPUT)],
    form: Annotated[
        Literal["hf", "peft"],
        typer.Option(
            "--as",
            help="hf: merged, for transformers; peft: adapter of LoRA and other peft methods.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = "hf",
    push: Annotated[
        str | None,
        typer.Option(
            metavar="hub:OWNER/NAME",
            help="Upload the directory to this model repository of the hub.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    backbone: options.Backbone = None,
    trust: options.Trust = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
) -> None:
    """Write the trained model with tokenizer and model card: for transformers, or as a peft adapter."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"--to {to} exists; export into a new directory")
    if push and not push.startswith(share.HUB):
        raise UsageError(f"--push {push}: name a repository of the hub: {share.HUB}OWNER/NAME")
    reload.export(run_dir, to, form, ResourceCache(results_dir, data_dir, backbone, trust))
    print(to)
    if push:
        share.push_model(to, push)
