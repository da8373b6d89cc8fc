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
            help="Format of the input; default: that of its name.",
            rich_help_panel=options.DATA,
        ),
    ] = None,
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
    from hifi_cli.results import predict as prediction
    from hifi_cli.tasks.readers import MAX_BYTES
    from hifi_cli.training.data import ResourceCache

    if out and out.exists() and file.exists() and out.samefile(file):
        raise UsageError(f"--out {out} is the input, which would be lost: name another file")
    is_stdin = str(file) == "-"
    reader = input_format or prediction.reader_of(file)
    output_format = form or prediction.form_of(reader, out)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "standard-input" if is_stdin else file
        if is_stdin:
            path.write_bytes(sys.stdin.buffer.read(MAX_BYTES + 1))  # more is refused by the reader
        resources = ResourceCache(results_dir, backbone=backbone, trust=trust)
        predictions = prediction.predict(run_dir, path, resources, reader, "standard input" if is_stdin else str(file))
    write_or_print(prediction.as_text(predictions, output_format), out, "predictions")
