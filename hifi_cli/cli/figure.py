"""`hifi figure`: the papers' figures, and one of our own, from our own runs."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def figure(
    name: Annotated[
        str, typer.Argument(help="A figure's name or YAML, or a CSV of one.", autocompletion=options.complete("figures"))
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
            callback=options.refuse_unwritable_file,
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
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Compute a figure's numbers, store them as CSV in RESULTS_DIR/figures, and draw it; `hifi ls figures` lists all."""
    from hifi_cli.cli import show
    from hifi_cli.cli.option_checks import refuse_unused
    from hifi_cli.config.registry import name_of
    from hifi_cli.reports.figures import draw, figure_spec

    is_csv = name.endswith(".csv")
    if is_csv:  # its numbers are drawn as they are
        of_numbers = {"tasks": tasks, "backbone": backbone, "protocol": protocol, "seeds": seeds}
        refuse_unused("hifi figure of a CSV", {**of_numbers, "train": train, "print": print_commands, "force": force})
    named = [protocol, backbone and Path(backbone).name, *options.names(tasks)]
    changes = [*(name_of(word) for word in named if word), *(overrides or ())]
    csv = Path(name) if is_csv else figure_spec.csv_path(name, results_dir, changes)
    picture = out or csv.with_suffix(".png")
    draw.check_format(picture)
    if not is_csv:
        spec = figure_spec.load(
            name,
            protocol=protocol,
            backbone=backbone,
            tasks=options.names(tasks),
            seeds=options.parse_seeds(seeds) if seeds else None,
        )
        from hifi_cli.analysis import figure_data
        from hifi_cli.analysis.required_runs import jobs
        from hifi_cli.grids.jobs import JobOptions
        from hifi_cli.runs.resources import ResourceCache

        resources = ResourceCache(results_dir, data_dir)
        analysis, request = figure_data.make_request(spec, resources, overrides=tuple(overrides or ()), train=train)
        if print_commands:
            missing = figure_data.runs_to_train(analysis, request, csv)
            show.print_commands(jobs(missing), JobOptions(results_dir, data_dir), format)
            if not missing:
                does = "trains its own models" if getattr(analysis, "TRAINS", False) else "computes everything else"
                options.logger.info(f"{name}: no runs are missing; hifi figure {name} {does}")
            return
        figure_data.compute(analysis, request, csv, force=force)
    draw.draw(csv, picture)
    show.print_path(picture, format)
