"""The options that mean the same in every command, and the configurations of the runs that they name."""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from hifi_cli.cli import option_checks
from hifi_cli.config import registry
from hifi_cli.config.choices import TRACKERS, Score
from hifi_cli.errors import UsageError
from hifi_cli.files import suffix_of_output

if TYPE_CHECKING:  # pydantic is not needed to print a help text
    from hifi_cli.config.sources import ResolvedConfig

DEFAULT_PROTOCOL = "hifi"
DEFAULT_SEEDS = "1"
HEAD_METHOD = "hifi-layerwise"  # whose settings score and select start from

Format = Literal["text", "md", "tex", "csv", "json"]
logger = logging.getLogger("hifi")


def _level(level: int) -> Callable[[bool], bool]:
    """A flag that sets which messages are shown."""

    def set_level(given: bool) -> bool:
        if given:
            logger.setLevel(level)
        return given

    return set_level


def refuse_empty_list(context: typer.Context, option: typer.CallbackParam, text: str | None) -> str | None:
    """Refuse a list without a name: `--task ,` must not mean every task, or none."""
    if text is not None and not names(text) and not context.resilient_parsing:
        raise UsageError(f"{option.opts[0]} '{text}' holds no name: give one, or several with commas")
    return text


def refuse_unwritable_file(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before hours are spent on what it is to hold."""
    if path and path.is_dir():
        raise UsageError(f"{option.opts[0]} {path}: it is a directory; name a file")
    return refuse_unwritable_place(option, path)


def refuse_other_picture(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse a picture in another format before anything is computed."""
    if path and path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"{option.opts[0]} {path}: the name must end in .png, .pdf, .svg")
    return refuse_unwritable_file(option, path)


def refuse_unwritable_place(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse a path in a place where nothing can be written."""
    if path:
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if not above.is_dir():
            raise UsageError(f"{option.opts[0]} {path}: {above} is not a directory; name another path")
        if not os.access(above, os.W_OK | os.X_OK):
            raise UsageError(f"{option.opts[0]} {path}: cannot write in {above}; name another path")
    return path


def complete(kind: str) -> Callable[[str], list[str]]:
    """Completes names of a kind, the last one of a list with commas."""
    return lambda incomplete: _complete_last(incomplete, registry.names(kind))


def _complete_last(incomplete: str, words: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(last)]


class Words(list[str]):
    """The words of an option that takes a list with commas."""


def several_of(*choices: str, help: str, panel: str) -> Any:  # noqa: A002
    """An option that takes one or several of some words, with commas; its values are `Words`."""

    def parse(text: str) -> Words:
        for word in names(text):
            if word not in choices:
                raise typer.BadParameter(f"'{word}' is not one of {', '.join(choices)}{registry.nearest(word, choices)}")
        if not names(text):
            raise typer.BadParameter(f"'{text}' holds no name: give one or several of {', '.join(choices)}, with commas")
        return Words(names(text))

    return typer.Option(
        parser=parse,
        metavar=f"[{'|'.join(choices)}],...",
        help=help,
        rich_help_panel=panel,
        autocompletion=lambda incomplete: _complete_last(incomplete, choices),
    )


WHAT, WHICH, DATA, HOW, OUTPUT = "What to run", "Which runs", "Data and results", "How to run", "Output"  # panels of --help

Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        "--tasks",
        help="Task, data file (CSV, TSV, JSONL, Parquet, CoNLL) or hub:owner/name; or several with commas.",
        rich_help_panel=WHAT,
        autocompletion=complete("tasks"),
        callback=refuse_empty_list,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "--methods",
        help="Method, or several with commas.",
        rich_help_panel=WHAT,
        autocompletion=complete("methods"),
        callback=refuse_empty_list,
    ),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="Encoder: a name, a local directory or a hub id; default: the protocol's, or the run's.",
        rich_help_panel=WHAT,
        autocompletion=complete("backbones"),
    ),
]
BackboneOfRuns = Annotated[
    str | None,
    typer.Option(
        "--backbone", help="Another encoder than the YAML's.", rich_help_panel=WHICH, autocompletion=complete("backbones")
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        "--task",
        help="Only these tasks, with commas.",
        rich_help_panel=WHICH,
        autocompletion=complete("tasks"),
        callback=refuse_empty_list,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        "--method",
        help="Only these methods, with commas.",
        rich_help_panel=WHICH,
        autocompletion=complete("methods"),
        callback=refuse_empty_list,
    ),
]
ProtocolOfRuns = Annotated[
    str | None,
    typer.Option(
        "--protocol", help="Another protocol than the YAML's.", rich_help_panel=WHICH, autocompletion=complete("protocols")
    ),
]
OnlyBackbone = Annotated[
    str | None,
    typer.Option("--backbone", help="Only runs of this encoder.", rich_help_panel=WHICH, autocompletion=complete("backbones")),
]
OnlyProtocol = Annotated[
    str | None,
    typer.Option("--protocol", help="Only runs of this protocol.", rich_help_panel=WHICH, autocompletion=complete("protocols")),
]
SeedsOfRuns = Annotated[
    str | None,
    typer.Option("--seeds", "--seed", help="Other seeds than the YAML's: 1,2,3 or 1-5.", rich_help_panel=WHICH),
]
Include = Annotated[
    Words | None, several_of("limited", "unequal", help="Also count runs that are left out by default.", panel=WHICH)
]
Exclude = Annotated[Words | None, several_of("collapsed", help="Leave out runs that are counted by default.", panel=WHICH)]
ScoreChoice = Annotated[
    Score | None,
    typer.Option("--score", help="Which epoch's score, or the maximum; default: the protocol's.", rich_help_panel=WHICH),
]
TableFormat = Annotated[
    Format | None,
    typer.Option("--format", help="Format of the output; default: by the suffix of --out, or text.", rich_help_panel=OUTPUT),
]
OutputFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="Format of the output.", rich_help_panel=OUTPUT),
]
Protocol = Annotated[
    str | None,
    typer.Option(help="The experimental setup; default: hifi.", rich_help_panel=WHAT, autocompletion=complete("protocols")),
]
Seeds = Annotated[str | None, typer.Option("--seeds", "--seed", help="Seeds: 1,2,3 or 1-5; default: 1.", rich_help_panel=WHAT)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="HIFI_DATA_DIR",
        help="Directory of the official data files; default: the Hugging Face hub.",
        rich_help_panel=DATA,
    ),
]
ResultsDir = Annotated[Path, typer.Option(help="Directory of all results.", rich_help_panel=DATA)]
Shots = Annotated[int | None, typer.Option(help="Few-shot: training rows per class.", rich_help_panel=WHAT)]
ShotsOfRuns = Annotated[
    str | None,
    typer.Option("--shots", help="Only few-shot runs of this many training rows per class, or full.", rich_help_panel=WHICH),
]
Files = Annotated[list[Path] | None, typer.Option("-c", "--config", help="YAML with configuration keys.", rich_help_panel=WHAT)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Configuration keys; they override all others."),
]
ReportTo = Annotated[
    Words | None,
    several_of(*TRACKERS, help="Also send the metrics to these trackers.", panel=OUTPUT),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print every setting with its source and the size of a run, and stop.",
        rich_help_panel=HOW,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", callback=_level(logging.ERROR), help="No progress and no warnings.", rich_help_panel=OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        callback=_level(logging.DEBUG),
        help="Print every logged step and every file read.",
        rich_help_panel=OUTPUT,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.", rich_help_panel=OUTPUT)]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Trust code that belongs to a run: a method's own file, a metric of the evaluate library.",
        rich_help_panel=HOW,
    ),
]
Standalone = Annotated[
    bool,
    typer.Option("--standalone", help="--format tex: a complete document, not a fragment for \\input.", rich_help_panel=OUTPUT),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write to this file.", rich_help_panel=OUTPUT, callback=refuse_unwritable_file)
]


def resolve_runs(
    *,
    task: str | None,
    method: str | None,
    backbone: str | None,
    protocol: str | None,
    seeds: str | None = None,
    files: list[Path] | None = None,
    overrides: list[str] | None = None,
    extra: dict[str, Any] | None = None,
) -> "list[ResolvedConfig]":
    """The configuration of every combination of task, method and seed, with its sources. All are validated before any is used.

    Args:
        extra: keys that options of the command stand for; None means not given.

    Raises:
        UsageError: a name, key or value is wrong, or a task, method or backbone is named nowhere.
    """
    from hifi_cli.config.protocols import protocol_spec
    from hifi_cli.config.run_config import refuse_too_many
    from hifi_cli.config.sources import DEFAULT, ConfigResolver

    chosen = {key: DEFAULT for key, value in {"protocol": protocol, "seed": seeds}.items() if not value}
    protocol = protocol or DEFAULT_PROTOCOL
    rules = protocol_spec(protocol)
    tasks, overrides = _tasks_of_data(_required(task or rules.task, "--task"), overrides or [])
    methods = _required(method or rules.method, "--method")
    encoder = backbone or rules.backbone
    if encoder is None:
        raise UsageError(f"protocol {protocol} names no backbone: give --backbone")
    shared: Any = {"backbone": encoder, "protocol": protocol, "files": files or []}
    overrides = [*overrides, *option_checks.keys_of_options(extra or {}, overrides)]
    numbers = parse_seeds(seeds or DEFAULT_SEEDS)
    refuse_too_many(len(tasks) * len(methods) * len(numbers))
    runs = [
        resolver.resolve(seed=seed, overrides=overrides)
        for one_task in tasks
        for one_method in methods
        for resolver in [ConfigResolver(task=one_task, method=one_method, **shared)]
        for seed in numbers
    ]
    named = {"task": task, "method": method, "backbone": backbone}
    chosen |= {key: f"protocol {protocol}" for key, name in named.items() if not name}
    for run in runs:
        run.sources.update(chosen)
    return runs


def _tasks_of_data(tasks: list[str], overrides: list[str]) -> tuple[list[str], list[str]]:
    """Replace data files and hub datasets by the task YAMLs made from them; the other overrides are the configuration's."""
    from hifi_cli.tasks.task_from_data import READER_OF_SUFFIX, is_data_source, register, split_options

    for task in tasks:
        if Path(task).suffix not in ("", ".yaml", ".yml") and Path(task).is_file() and not is_data_source(task):
            raise UsageError(f"{task}: the name of a data file ends in {', '.join(READER_OF_SUFFIX)}; rename it")
    if not any(map(is_data_source, tasks)):
        return tasks, overrides
    about_data, others = split_options(overrides)
    return [register(task, about_data) if is_data_source(task) else task for task in tasks], others


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` or `1-5` as numbers.

    Raises:
        UsageError: anything else, a seed above the highest, or more seeds than a command may have runs.
    """
    from hifi_cli.config.base import MAX_SEED
    from hifi_cli.config.run_config import MAX_RUNS

    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.lstrip("0") or word[:1] for word in part.strip().partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--seeds '{text:.80}': numbers with commas (1,2,3) or a range (1-5) are required")
        if max(len(first), len(last)) > len(str(MAX_SEED)) or max(int(first), int(last or 0)) > MAX_SEED:
            raise UsageError(f"--seeds '{text:.80}': the highest seed is {MAX_SEED}")
        if dash and int(last) < int(first):
            raise UsageError(f"--seeds '{text:.80}': a range goes from the lower number to the higher (1-5)")
        if len(seeds) + int(last or first) - int(first) >= MAX_RUNS:
            raise UsageError(f"--seeds '{text:.80}': one command has at most {MAX_RUNS:,} runs")
        seeds += range(int(first), int(last or first) + 1)
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"--seeds '{text}': a seed is named twice")
    return seeds


def names(text: str | None) -> list[str]:
    """The words of a list with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def counted_flags(include: Words | None, exclude: Words | None) -> frozenset[str]:
    """The flags of runs that are counted, as `--include` and `--exclude` say."""
    from hifi_cli.reports.pairs import COUNTED

    return COUNTED.union(include or ()).difference(exclude or ())


def table_format(name: Format | None, out: Path | None) -> Format:
    """The format of a table: the one that was named, or that of the file's suffix.

    Raises:
        UsageError: the file's name ends in another format.
    """
    by_suffix = {".txt": "text", ".md": "md", ".tex": "tex", ".csv": "csv", ".json": "json"}
    suffix = "" if name else suffix_of_output(out, by_suffix, "or give --format; hifi report writes HTML")
    return name or cast("Format", by_suffix.get(suffix, "text"))


def shots_of_runs(text: str | None) -> str | None:
    """The word of `--shots` where finished runs are read.

    Raises:
        UsageError: it is neither a number nor `full`.
    """
    if text is None or text == "full" or (text.isdecimal() and int(text)):
        return text
    raise UsageError(f"--shots {text}: a number of training rows per class, or full, is required")


def _required(text: str | None, option: str) -> list[str]:
    if not text:
        raise UsageError(f"{option} is required")
    return names(text)
