"""`hifi figure`: the papers' figures and others, from our own runs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import figure_spec, registry
from hifi_cli.errors import UsageError
from hifi_cli.records.stored import command_for_new_runs
from hifi_cli.records.study import Study


def figure(
    name: Annotated[str, typer.Argument(help="A figure's name or YAML.")],
    overrides: options.Overrides = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
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
        bool,
        typer.Option("--train", help="Train missing runs.", rich_help_panel=options.HOW),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Compute the numbers again.", rich_help_panel=options.HOW),
    ] = False,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Compute a figure's numbers, store them in RESULTS_DIR/figures, draw it (`hifi ls figures`)."""
    # torch, which these import, takes seconds, and --help does without it.
    from hifi_cli.figures.figure import FigureRequest, compute, draw
    from hifi_cli.runs.workspace import Workspace

    if out and out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--out {out}: the name must end in .png, .pdf or .svg")
    load = partial(
        figure_spec.load,
        name,
        protocol=protocol,
        tasks=tasks,
        methods=methods,
        seeds=options.parse_seeds(seeds),
    )
    workspace = Workspace(results_dir, data_dir)
    words = tuple(overrides or ())
    grid = ""
    # A figure's own YAML says which methods `hifi grid` trains for it.
    if not methods:
        given = options.arguments(
            tasks=",".join(tasks or []),
            backbone=backbone,
            protocol=protocol,
            seeds=seeds,
            data_dir=data_dir,
        )
        grid = _command_of_grid(name, [*words, *given], results_dir)
    request = FigureRequest(load(backbone=backbone), workspace, words, train, out, grid)
    if backbone is None and request.kind.shows_finished_runs:
        # Runs that all have one backbone need no option that names it.
        backbone = _only_backbone(results_dir, request.spec.protocol)
        request = FigureRequest(load(backbone=backbone), workspace, words, train, out)
    picture = out or request.csv.with_suffix(".png")
    draw(request, compute(request, force=force), picture)
    if format == "json":
        return options.print_json({"path": picture})
    print(picture)


def _command_of_grid(name: str, arguments: Sequence[str], results_dir: Path) -> str:
    """Return the `hifi grid` command that trains the runs of a figure.

    Args:
        name: of the figure, or the path of its YAML.
        arguments: of the command line, for all of its runs.
        results_dir: where the figure looks for them.
    """
    grid = f"figure-{name}"
    if registry.is_yaml_path(name):
        grid = name
    return command_for_new_runs(["hifi", "grid", grid, *arguments], results_dir)


def _only_backbone(results_dir: Path, protocol: str) -> str | None:
    """Return the backbone of a protocol's finished runs; None: they have several, or there are none."""
    found = set()
    for result in Study(results_dir).results.values():
        if result.protocol == protocol and result.variant is None:
            found.add(result.backbone)
    if len(found) != 1:
        return None
    return found.pop()
