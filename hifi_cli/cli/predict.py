"""`hifi predict`: the predictions of a finished run for new texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hifi_cli.cli import options


def predict(
    run_dir: Annotated[Path, typer.Argument(help="A run's directory.")],
    file: Annotated[
        Path,
        typer.Argument(help="TSV, CSV, JSONL, Parquet or CoNLL columns with the task's inputs, named by its ending."),
    ],
    form: Annotated[
        Literal["tsv", "csv", "jsonl", "json"] | None,
        typer.Option(
            "--format",
            help="Format of the output; default: that of --out's name, or of the input.",
            rich_help_panel=options.OUTPUT,
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
    from typing import cast

    from hifi_cli.cli.show import write_or_print
    from hifi_cli.errors import UsageError
    from hifi_cli.files import suffix_of_output
    from hifi_cli.results import reload
    from hifi_cli.training.data import ResourceCache

    if out and out.exists() and file.exists() and out.samefile(file):
        raise UsageError(f"--out {out} is the input, which would be lost: name another file")
    forms = (".tsv", ".csv", ".jsonl", ".json")
    suffix = "" if form else suffix_of_output(out, forms, "or give --format")
    of_input = file.suffix.lower() if file.suffix.lower() in forms else ".jsonl"
    chosen = cast("reload.Form", form or (suffix or of_input).removeprefix("."))
    resources = ResourceCache(results_dir, backbone=backbone, trust=trust)
    predictions = reload.predict(run_dir, file, resources)
    write_or_print(reload.as_text(predictions, chosen), out, "predictions")
