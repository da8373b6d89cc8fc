"""`hifi ls`: list and explain tasks, methods, keys and all other names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hifi_cli.cli import options, show
from hifi_cli.config import registry
from hifi_cli.config.choices import RunSortKey

_KINDS = {  # what a word after `hifi ls` lists, with what it is: registry.KINDS, and runs
    "tasks": "data, inputs, labels and metrics",
    "methods": "fine-tuning methods: which parameters train, and how",
    "backbones": "pretrained encoders",
    "protocols": "experimental setups of the papers, for a laptop and for the demo",
    "tables": "tables of the papers and others, for hifi table",
    "figures": "figures of the papers and others, for hifi figure",
    "published": "the papers' printed numbers",
    "claims": "claims of the papers and our own questions, for hifi claims",
    "grids": "runs of a table, a figure, claims or a search, for hifi grid",
    "sites": "machines and clusters, for hifi grid --engine parsl",
    "runs": "finished and unfinished runs in a results directory, and their states",
}

_STATES = ("done", "diverged", "running", "failed", "unfinished", "damaged")  # those of run_status.RunState, less absent


def complete(incomplete: str) -> list[str]:
    """Completes kinds and the names of all kinds."""
    words = [*registry.KINDS, "runs", *(name for kind in registry.KINDS for name in registry.names(kind))]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def ls(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|NAME]...",
            help="A kind (tasks, methods, ...), a name, or a configuration key.",
            autocompletion=complete,
        ),
    ] = None,
    status: Annotated[
        options.Words | None, options.several_of(*_STATES, help="Only runs in these states, with commas.", panel=options.WHICH)
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.OnlyBackbone = None,
    protocol: options.OnlyProtocol = None,
    sort: Annotated[RunSortKey, typer.Option(help="Order of the runs.", rich_help_panel=options.OUTPUT)] = "path",
    format: Annotated[  # noqa: A002
        Literal["text", "json", "csv"], typer.Option("--format", help="Format of the output.", rich_help_panel=options.OUTPUT)
    ] = "text",
    results_dir: options.ResultsDir = Path("results"),
    debug: options.Debug = False,
) -> None:
    """List all names of a kind, or explain a name or a configuration key."""
    from hifi_cli.cli import explain
    from hifi_cli.errors import UsageError

    selections = {"--status": status, "--tasks": tasks, "--methods": methods, "--backbone": backbone, "--protocol": protocol}
    if selecting := [option for option, value in selections.items() if value and (words or [])[:1] != ["runs"]]:
        raise UsageError(f"{selecting[0]} selects runs: hifi ls runs {selecting[0]} ...")
    if format == "csv" and (words or [])[:1] != ["runs"]:
        raise UsageError("--format csv is for runs: hifi ls runs --format csv")
    if format == "json" and (words or [""])[0] != "runs":
        return _print_json(words or registry.KINDS)
    if not words:
        counts = {kind: f"{len(registry.names(kind))} " for kind in registry.KINDS}
        return explain.print_columns([[kind, counts.get(kind, "") + meaning] for kind, meaning in _KINDS.items()])
    if words[0] == "runs":
        from hifi_cli.records.run_directory import has_runs
        from hifi_cli.reports.run_listing import list_runs
        from hifi_cli.reports.run_records import Results

        if len(words) > 1:
            raise UsageError(f"hifi ls runs takes no further word, not '{words[1]}': choose runs by its options")
        if not has_runs(results_dir):
            results = Results(results_dir)
            results_dir = results.or_only_subdirectory().directory
            if results_dir == results.directory:
                raise results.no_run_error("hifi ls runs")
        names = {"task": options.names(tasks), "method": options.names(methods)}
        names |= {"backbone": options.names(backbone), "protocol": options.names(protocol)}
        return show.print_runs(list_runs(results_dir, states=status or (), sort=sort, **names), format)
    for word in words:
        if word in registry.KINDS:
            explain.print_columns([_summary(word, name) for name in registry.names(word)])
            continue
        matching = _names_matching(word)
        if explain.keys_of(word):
            explain.print_key(word)
        for kind, name in matching:
            explain.print_explanation(kind, name)


def _names_matching(word: str) -> list[tuple[str, str]]:
    """Kind and name of everything that has this name; none for a configuration key.

    Raises:
        UsageError: there is neither such a name nor such a key.
    """
    from hifi_cli.cli import explain
    from hifi_cli.errors import UsageError

    folder, _, name = word.rpartition("/")
    matching = [(kind, name) for kind in registry.KINDS if name in registry.names(kind) and folder in ("", kind)]
    if not matching and not explain.keys_of(word):
        known_names = (name for kind in registry.KINDS for name in registry.names(kind))
        known = [*registry.KINDS, "runs", *known_names, *explain.config_keys()]
        raise UsageError(f"unknown kind or name '{word}'{registry.nearest(word, known)} (one of {', '.join(registry.KINDS)})")
    return matching


def _print_json(words: Sequence[str]) -> None:
    """Print the names of kinds, single names with their YAML, and configuration keys, as JSON."""
    from hifi_cli.cli import explain

    entries: list[dict[str, Any]] = []
    for word in words:
        if word in registry.KINDS:
            entries += [_name_entry(word, name) for name in registry.names(word)]
            continue
        names = _names_matching(word)
        entries += [
            {
                "key": key,
                "default": field.default if explain.has_plain_default(field) else None,
                "description": explain.one_line(field.description),
            }
            for key, field in explain.keys_of(word).items()
        ]
        entries += [{**_name_entry(kind, name), "content": registry.load(kind, name)} for kind, name in names]
    show.print_json(entries)


def _name_entry(kind: str, name: str) -> dict[str, Any]:
    return {"kind": kind, **dict(zip(("name", "description", "source"), _summary(kind, name), strict=True))}


def _summary(kind: str, name: str) -> list[str]:
    """Name, description and source."""
    content = registry.load(kind, name)
    return [name, str(content.get("description", "")), _source(kind, content)]


def _source(kind: str, content: dict[str, Any]) -> str:
    if kind == "backbones":
        return next((f"{key} {content[key]}" for key in ("package", "path", "hub") if content.get(key)), "")
    return str(content.get("source") or content.get("paper") or content.get("published") or "")
