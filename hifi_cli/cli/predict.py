"""`hifi predict`: the predictions of a finished run for new texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hifi_cli.cli import options


def predict(
    run_dir: Annotated[Path, typer.Argument(help="A run's directory.")],
    file: Annotated[
        Path,
        typer.Argument(help="TSV, CSV, JSONL, Parquet or CoNLL columns with the task's inputs; - reads standard input."),
    ],
    form: Annotated[
        Literal["tsv", "csv", "jsonl", "json", "conll"] | None,
        typer.Option(
            "--format",
            help="Format of the output; default: that of --out's name, or of the input.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    input_format: Annotated[
        Literal["tsv", "csv", "jsonl", "parquet", "conll"] | None,
        typer.Option(
            help="Format of the input; default: that of its name; JSONL or TSV for standard input.",
            rich_help_panel=options.DATA,
        ),
    ] = None,
    header: Annotated[
        bool,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of the TSV or CSV holds the columns' names.",
            rich_help_panel=options.DATA,
        ),
    ] = True,
    backbone: options.Backbone = None,
    trust: options.Trust = False,
    results_dir: options.ResultsDir = Path("results"),
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Predict each row of a file: a label with all probabilities, a number or tags; hifi ls TASK names the input columns."""
    import sys
    import tempfile

    from hifi_cli.cli.show import write_or_print
    from hifi_cli.errors import UsageError
    from hifi_cli.runs import predict as prediction
    from hifi_cli.runs.resources import ResourceCache

    if out and out.exists() and file.exists() and out.samefile(file):
        raise UsageError(f"--out {out} is the input, which would be lost: name another file")
    with tempfile.TemporaryDirectory() as folder:
        is_stdin = str(file) == "-"
        path = prediction.stdin_to_file(sys.stdin.buffer, Path(folder)) if is_stdin else file
        name = "standard input" if is_stdin else str(file)
        output_format = form or prediction.form_of(input_format or prediction.reader_of(path, name), out)
        predictions = prediction.predict(
            run_dir,
            path,
            ResourceCache(results_dir, backbone=backbone, trust=trust),
            has_header=header,
            reader=input_format,
            name=name,
        )
    text = prediction.as_text(predictions, output_format)
    write_or_print(text, out, "predictions")
