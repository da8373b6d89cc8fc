"""`hifi figure`: the papers' figures, and one of our own, from our own runs."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def figure(
    name: Annotated[str, typer.Argument(help="A figure's name or YAML, or a CSV of one.")],
    overrides: options.Overrides = None,
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture: .png, .pdf or .svg; default: a PNG next to the CSV.",
            rich_help_panel=options.OUTPUT,
            dir_okay=False,
            writable=True,
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train the runs or weights that are missing.", rich_help_panel=options.HOW)
    ] = False,
    print_commands: Annotated[
        bool, typer.Option("--print", help="Print the commands of the missing runs, and stop.", rich_help_panel=options.HOW)
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Compute the numbers again.", rich_help_panel=options.HOW)] = False,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Compute a figure's numbers, store them as CSV in RESULTS_DIR/figures, and draw it; `hifi ls figures` lists all."""
    from hifi_cli.config import figure_spec
    from hifi_cli.config.registry import name_of

    csv, is_csv = Path(name), name.endswith(".csv")
    if is_csv:  # its numbers are drawn as they are
        of_numbers = {"tasks": tasks, "backbone": backbone, "protocol": protocol, "seeds": seeds}
        options.refuse_unused("hifi figure of a CSV", **of_numbers, train=train, print=print_commands, force=force)
    else:
        seed_numbers = options.parse_seeds(seeds)
        spec = figure_spec.load(name, protocol=protocol, backbone=backbone, tasks=tasks or [], seeds=seed_numbers)
        named = [protocol, backbone and Path(backbone).name, *(tasks or [])]
        changes = [*(name_of(word) for word in named if word), *(overrides or ())]
        csv = figure_spec.csv_path(name, results_dir, changes)
    from hifi_cli.figures import figure as figures

    if not is_csv:
        from hifi_cli.training.data import ResourceCache

        request = figures.FigureRequest(spec, ResourceCache(results_dir, data_dir), tuple(overrides or ()), train)
        if print_commands:
            commands = request.missing_commands()
            options.print_commands(commands, format)
            if not commands:
                options.logger.info(f"{name}: no runs are missing; hifi figure {name} computes everything else")
            return
        figures.compute(request, csv, force=force)
    picture = out or csv.with_suffix(".png")
    figures.draw(csv, picture)
    if format == "json":
        return options.print_json({"path": picture})
    print(picture)
