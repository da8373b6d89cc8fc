"""`hifi export`: a finished run as a plain Hugging Face model directory."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def export(
    run_dir: Annotated[Path, typer.Argument(help="A run's directory.")],
    to: Annotated[Path, typer.Option(help="A new directory.")],
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write the trained model, merged, so that transformers opens it without this project."""
    from hifi_cli.models import export as exports
    from hifi_cli.runs.evaluate import reload
    from hifi_cli.runs.workspace import Workspace

    workspace = Workspace(results_dir, data_dir)
    prepared, _ = reload(run_dir, workspace)
    prepared.method.merge(prepared.encoder)
    config = prepared.engine.config
    tokenizer = workspace.pretrained(config).tokenizer
    exports.export(prepared.encoder.model, tokenizer, to)
    options.logger.info(f"model: {to}")
