"""`hifi export`: a finished run as a model directory."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hifi_cli.cli import options
from hifi_cli.errors import UsageError


def export(
    run_dir: Annotated[Path, typer.Argument(help="A run's directory.")],
    to: Annotated[
        Path, typer.Option(help="A new directory.", rich_help_panel=options.OUTPUT, callback=options.refuse_unwritable_place)
    ],
    form: Annotated[
        Literal["hf", "peft", "delta"],
        typer.Option(
            "--as",
            help="hf: merged, for transformers; peft: adapter of LoRA and other peft methods; delta: for hifi_cli.open_model.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = "hf",
    format: options.OutputFormat = "text",  # noqa: A002
    backbone: options.Backbone = None,
    trust: options.Trust = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write the trained model with tokenizer and model card: for transformers, as a peft adapter, or as backbone and delta."""
    from hifi_cli.cli.show import print_path
    from hifi_cli.results import export as exports
    from hifi_cli.training.data import ResourceCache

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"--to {to} exists; export into a new directory")
    exports.export(run_dir, to, form, ResourceCache(results_dir, data_dir, backbone, trust))
    print_path(to, format)
