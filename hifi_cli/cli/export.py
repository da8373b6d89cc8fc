"""`hifi export`: trained models for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hifi_cli.cli import options
from hifi_cli.errors import UsageError
from hifi_cli.hub import HUB
from hifi_cli.records import share
from hifi_cli.text import well_formed


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
    # torch, which these import, takes seconds, and --help does without it.
    from hifi_cli.runs import export as run_export
    from hifi_cli.runs.workspace import Workspace

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"--to {to} exists; export into a new directory")
    place = str(to.resolve())
    if well_formed(place) != place:
        raise UsageError(
            f"--to {to}: the path is not UTF-8, and the libraries that write and open a model require"
            " it: name another place"
        )
    if push and not push.startswith(HUB):
        raise UsageError(f"--push {push}: name a repository of the hub: {HUB}OWNER/NAME")
    run_export.export(run_dir, to, form, Workspace(results_dir, data_dir, backbone, trust))
    print(to)
    if push:
        share.push_model(to, push)
