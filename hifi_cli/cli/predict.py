"""`hifi predict`: what a finished run says of new texts."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def predict(
    run_dir: Annotated[Path, typer.Argument(help="A run's directory.")],
    file: Annotated[Path, typer.Argument(help="TSV or JSONL with the task's input columns; - reads standard input.")],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Of the output: tsv or jsonl; default: that of the input.",
            autocompletion=options.complete_among(("tsv", "jsonl")),
        ),
    ] = None,
    backbone: options.Backbone = None,
    results_dir: options.ResultsDir = Path("results"),
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print id, prediction and each label's probability for every row, in order; hifi ls TASK names the input columns."""
    import sys
    import tempfile

    from hifi_cli.errors import UsageError
    from hifi_cli.files import write_text
    from hifi_cli.runs import predict as prediction
    from hifi_cli.runs.resources import ResourceCache

    if form not in (None, "tsv", "jsonl"):
        raise UsageError(f"--format {form}: tsv or jsonl is wanted")
    with tempfile.TemporaryDirectory() as folder:
        path = prediction.spooled(sys.stdin.buffer, Path(folder)) if str(file) == "-" else file
        said = prediction.predict(run_dir, path, ResourceCache(results_dir, backbone=backbone))
        wanted = form or prediction.form_of(path)
    text = prediction.as_text(said, "jsonl" if wanted == "jsonl" else "tsv")
    if out:
        write_text(out, text)
        options.logger.info(f"predictions: {out}")
    else:
        print(text, end="")
