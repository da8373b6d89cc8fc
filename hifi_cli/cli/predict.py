"""`hifi predict`: predictions for new rows."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.errors import UsageError
from hifi_cli.files import suffix_of_output, write_or_print
from hifi_cli.tasks import prediction_table


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

    hifi ls TASK names the input columns. With --out FILE.csv, prediction and probabilities are columns beside the file's own.
    """
    # torch, which these import, takes seconds, and --help does without it.
    from hifi_cli.runs import inference
    from hifi_cli.runs.workspace import Workspace

    suffix = suffix_of_output(out, (".csv", ".jsonl"), "only .csv has the file's own columns")
    if out and out.exists() and file.exists() and out.samefile(file):
        raise UsageError(f"--out {out} is the input, which would be lost: name another file")
    workspace = Workspace(results_dir, None, backbone, trust)
    if suffix == ".csv":
        # Before the model runs: a column that is in the way is told at once.
        columns = inference.users_columns(run_dir, file, workspace)
        prediction_table.check_columns(columns, file)
        rows = inference.predict(run_dir, file, workspace)
        return write_or_print(prediction_table.csv_text(columns, rows), out)
    rows = inference.predict(run_dir, file, workspace)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_or_print("".join(lines), out)
