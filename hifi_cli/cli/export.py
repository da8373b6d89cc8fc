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
    from hifi_cli.files import atomic_directory
    from hifi_cli.records.run_directory import RunDirectory
    from hifi_cli.runs import export_delta, export_peft, model_card
    from hifi_cli.runs import export_hf as exports
    from hifi_cli.runs.evaluate import reload
    from hifi_cli.runs.resources import ResourceCache

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"--to {to} exists; export into a new directory")
    resources = ResourceCache(results_dir, data_dir, backbone, trust)
    with reload(run_dir, resources) as (prepared, _):
        config = prepared.runner.config
        if form == "peft" and not export_peft.is_exportable(prepared):
            raise UsageError(
                f"peft's format holds its own adapters with Hugging Face's own heads, not this run of {config.method}:"
                " export with --as hf or delta"
            )
        if form == "hf" and not export_delta.is_plain(prepared):
            what = f"method {config.method} adds modules" if not prepared.method.mergeable else "the run's task head is one"
            then = "export with --as delta, for hifi_cli.open_model"
            raise UsageError(f"{what} that no plain Hugging Face model has: {then}")
        with atomic_directory(to.resolve()) as folder:
            if form == "delta":
                export_delta.export(prepared, RunDirectory(run_dir).delta, folder)
            elif form == "peft":
                export_peft.export(prepared, resources, folder)
            else:
                prepared.method.merge(prepared.encoder)
                tokenizer = prepared.inputs.pretrained.tokenizer
                exports.export(prepared.encoder, tokenizer, prepared.task_head, folder, max_length=config.max_length)
            model_card.write(prepared, run_dir, form, folder, name=to.resolve().name)
    print_path(to, format)
