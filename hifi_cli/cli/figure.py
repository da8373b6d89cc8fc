"""`hifi figure`: the papers' figures, and one of our own, from our own runs."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def figure(
    name: Annotated[
        str,
        typer.Argument(help="A figure's name or YAML.", autocompletion=options.complete("figures")),
    ],
    overrides: options.Overrides = None,
    tasks: options.Tasks = None,
    backbone: options.BackboneOfRuns = None,
    protocol: options.ProtocolOfRuns = None,
    seeds: options.SeedsOfRuns = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture: .png, .pdf or .svg; default: a PNG next to the CSV.",
            rich_help_panel=options.OUTPUT,
            callback=options.refuse_other_picture,
        ),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train missing runs.", rich_help_panel=options.HOW)] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Compute the numbers again.", rich_help_panel=options.HOW),
    ] = False,
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Compute a figure's numbers, store them in RESULTS_DIR/figures, draw it (`hifi ls figures`)."""
    from hifi_cli.cli import show
    from hifi_cli.config import figure_spec
    from hifi_cli.config.registry import name_of

    numbers = options.parse_seeds(seeds) if seeds else None
    spec = figure_spec.load(name, protocol=protocol, backbone=backbone, tasks=options.names(tasks), seeds=numbers)
    named = [protocol, backbone and Path(backbone).name, *options.names(tasks)]
    changes = [*(name_of(word) for word in named if word), *(overrides or ())]
    csv = figure_spec.csv_path(name, results_dir, changes)
    from hifi_cli.figures import figure as figures
    from hifi_cli.training.data import ResourceCache

    request = figures.FigureRequest(spec, ResourceCache(results_dir, data_dir), tuple(overrides or ()), train)
    picture = out or csv.with_suffix(".png")
    figures.draw(request, figures.compute(request, csv, force=force), picture)
    show.print_path(picture, format)
