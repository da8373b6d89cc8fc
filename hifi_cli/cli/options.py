"""Parts that commands share: options, the runs that options name, and how results are printed."""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter

from hifi_cli import run_paths
from hifi_cli.config import registry
from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve, stored_name
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.hub import HUB
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.data_options import check_has_data, split_options
from hifi_cli.tasks.own_data import is_data_source, task_named
from hifi_cli.text import printable, well_formed

# Headings under which --help lists the options.
WHAT = "What to run or read"
DATA = "Data and results"
HOW = "How to run"
OUTPUT = "Output"
# The trackers of accelerate. Asking accelerate for them would import torch.
TRACKERS = (
    "aim",
    "comet_ml",
    "mlflow",
    "tensorboard",
    "wandb",
    "clearml",
    "dvclive",
    "swanlab",
    "trackio",
)


# The line of an option with more words than these in --help names them.
_SHOWN_CHOICES = 3


def several(*flags: str, help: str, panel: str = WHAT, choices: Sequence[str] = ()) -> Any:  # noqa: A002
    """Return an option that takes names with commas, given once or more often.

    Args:
        flags: its names, such as --task and --tasks.
        help: its line in --help.
        panel: the heading under which --help lists it.
        choices: the words that are accepted; empty: any.
    """
    expected = "a name"
    metavar = "NAME,..."
    if choices:
        expected = f"one of {', '.join(choices)}"
        # Many words in a metavar would be broken in the middle: the help names them.
        if len(choices) <= _SHOWN_CHOICES:
            metavar = f"[{'|'.join(choices)}],..."

    def split(option: typer.CallbackParam, texts: list[str] | None) -> list[str]:
        """Return the words of all texts of the option; refuse one that is not accepted."""
        words: list[str] = []
        for text in texts or ():
            words += [word.strip() for word in text.split(",")]
        for word in words:
            is_accepted = word in choices if choices else bool(word)
            if not is_accepted:
                raise UsageError(f"{option.opts[0]}: '{word}' is not {expected}")
        return words

    return typer.Option(*flags, callback=split, metavar=metavar, help=help, rich_help_panel=panel)


Tasks = Annotated[
    list[str] | None,
    several(
        "--task",
        "--tasks",
        help="Tasks; train, score and select also take data files (CSV, TSV, JSONL, Parquet, CoNLL) and hub:owner/name.",
    ),
]
Methods = Annotated[list[str] | None, several("--method", "--methods", help="Methods.")]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="Encoder: a name, a local directory or a hub id; default: that of the protocol, the YAML or the run.",
        rich_help_panel=WHAT,
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="Experimental setup; default: the YAML's, or hifi; for finished runs: all.",
        rich_help_panel=WHAT,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        "--seed",
        help="Seeds: 1,2,3 or 1-5; default: those of the YAML, or 1; for finished runs: all.",
        rich_help_panel=WHAT,
    ),
]
Shots = Annotated[
    str | None,
    typer.Option(
        help="Only few-shot runs of this many training rows per class, or full.",
        rich_help_panel=WHAT,
    ),
]
Include = Annotated[
    list[str] | None,
    several(
        "--include",
        choices=("limited", "unequal", "draws"),
        help="Also use runs that are left out by default.",
    ),
]
Backbones = Annotated[
    list[str] | None,
    several("--backbones", help="Several backbones with one method, side by side."),
]
Score = Annotated[
    EpochChoice | None,
    typer.Option(
        "--score",
        help="Epoch whose score is shown, or the maximum; default: the protocol's.",
        rich_help_panel=WHAT,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings, which override all others; `hifi ls config` lists them.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "-c",
        "--config",
        help="YAML with settings; config.yaml of a run repeats it.",
        rich_help_panel=WHAT,
    ),
]


def _local_directory(path: Path) -> Path:
    """Return a results directory; refuse a repository of the hub, whose name would become a folder.

    Raises:
        UsageError: it is one.
    """
    if str(path).startswith(HUB):
        raise UsageError(
            f"--results-dir {path}: a directory is required; hifi results pull and push take a"
            " repository of the hub"
        )
    return path


def _check_data_directory(context: typer.Context, path: Path | None) -> Path | None:
    """Return the directory of the data; refuse one of the command line that is not there.

    The environment's variable may be meant for other commands, and a dry run needs no data.

    Raises:
        MissingError: it is not there.
    """
    source = context.get_parameter_source("data_dir")
    is_given = source is not None and source.name == "COMMANDLINE"
    # Options are read one after the other, so that the value of --dry-run may not be known yet.
    is_plan = "--dry-run" in sys.argv
    if path and is_given and not is_plan and not path.is_dir():
        raise MissingError(f"there is no directory {path} (--data-dir)")
    return path


def _data_dir(callback: Callable[..., Path | None] | None) -> Any:
    """Return the option with the directory of the data, whose value a function checks."""
    return typer.Option(
        envvar="HIFI_DATA_DIR",
        callback=callback,
        help="Directory of the official data files; default: the Hugging Face hub.",
        rich_help_panel=DATA,
    )


# Of commands that read the data.
DataDir = Annotated[Path | None, _data_dir(_check_data_directory)]
# Of commands that hand it on: to runs, whose machine alone may have it, or to a command that they print.
HandedOnDataDir = Annotated[Path | None, _data_dir(None)]
ResultsDir = Annotated[
    Path,
    typer.Option(
        callback=_local_directory,
        file_okay=False,
        help="Directory of all results.",
        rich_help_panel=DATA,
    ),
]
# The commands' default of `--results-dir`.
RESULTS = run_paths.RESULTS
# Each seed becomes a configuration in memory.
_MOST_SEEDS = 100_000
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.", rich_help_panel=HOW)]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Execute code that belongs to a run: a method's own file, a metric of the evaluate library.",
        rich_help_panel=HOW,
    ),
]
TableFormat = Annotated[
    Literal["text", "md", "tex", "csv", "json"] | None,
    typer.Option(
        "--format",
        help="Format of the output; default: by the suffix of --out, or text.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="Format of the output.", rich_help_panel=OUTPUT),
]
Caption = Annotated[
    str | None,
    typer.Option(
        help="Caption in LaTeX, as plain text; default: the table's title.", rich_help_panel=OUTPUT
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Label in LaTeX, such as tab:rte; further tables of the command: tab:rte-2, ...",
        rich_help_panel=OUTPUT,
    ),
]
ReportTo = Annotated[
    list[str] | None,
    several(
        "--report-to",
        choices=TRACKERS,
        help=f"Also send the metrics to these trackers of accelerate: {', '.join(TRACKERS)}.",
        panel=OUTPUT,
    ),
]
Published = Annotated[
    bool,
    typer.Option(
        "--published",
        help="Also show the papers' numbers and the differences.",
        rich_help_panel=OUTPUT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write to this file.", rich_help_panel=OUTPUT, dir_okay=False, writable=True),
]
RunDir = Annotated[Path, typer.Argument(help="A run's directory.")]


def _set_level(option: typer.CallbackParam, is_set: bool) -> None:
    """Set how much is logged, for --quiet and --verbose.

    Args:
        option: which of the two.
        is_set: whether the command line has it.
    """
    if not is_set:
        return
    if option.name == "quiet":
        logger.setLevel(logging.ERROR)
    else:
        logger.setLevel(logging.DEBUG)


def messages(
    quiet: Annotated[
        bool,
        typer.Option(
            "-q",
            "--quiet",
            callback=_set_level,
            expose_value=False,
            help="Print errors only, and what was asked for.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "-v",
            "--verbose",
            callback=_set_level,
            expose_value=False,
            help="Every step and file.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            expose_value=False,
            help="Print a traceback with an error.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Hold the options of every command; `main` reads --debug from the command line."""


def resolve_runs(
    tasks: list[str] | None,
    methods: list[str] | None,
    backbone: str | None,
    protocol: str | None,
    *,
    seeds: str | None = None,
    files: list[Path] | None = None,
    overrides: list[str] | None = None,
) -> list[RunConfig]:
    """Return the configuration of every combination of task, method and seed.

    Args:
        tasks: names, YAMLs, data files and datasets of the hub.
        methods: names and YAMLs.
        backbone: a name, a YAML, a directory or an id of the hub.
        protocol: a name or a YAML.
        seeds: as `parse_seeds` reads them.
        files: YAMLs of -c.
        overrides: `key=value`, of the configuration or of how a data file is read.

    Raises:
        UsageError: a name, key or value is wrong, or a task, method or backbone is named nowhere.
    """
    # Everything that the record of a run will hold as text.
    names_and_values = [*(tasks or []), *(methods or []), *(overrides or []), backbone, protocol]
    for word in names_and_values:
        if word and well_formed(word) != word:
            raise UsageError(f"'{word}' is not UTF-8, as a run's record requires it: rename it")
    # With a data file, some of the words say how it is read, and the others are settings of the run.
    about_data: list[str] = []
    words = overrides or []
    if any(is_data_source(task) for task in tasks or ()):
        about_data, words = split_options(words)
    else:
        check_has_data(words)
    names = [task_named(task, about_data) for task in tasks or ()]
    # Where the command line names no task, method or seed, the protocol or the YAMLs do.
    asked_tasks: Sequence[str | None] = names or [None]
    asked_methods: Sequence[str | None] = methods or [None]
    asked_seeds: Sequence[int | None] = parse_seeds(seeds) or [None]
    configs = []
    for task, method, seed in product(asked_tasks, asked_methods, asked_seeds):
        config = resolve(
            task=task,
            method=method,
            backbone=backbone,
            protocol=protocol,
            seed=seed,
            files=files or [],
            overrides=words,
        )
        configs.append(config)
    return configs


def parse_seeds(text: str | None) -> list[int]:
    """Return the numbers of `1,2,3` or `1-5`; none if the option is not given.

    Raises:
        UsageError: anything else, more than 100,000 seeds, or a seed twice.
    """
    if text is None:
        return []
    seeds: list[int] = []
    for part in text.replace(" ", "").split(","):
        numbers = _range_of(part)
        # The range is measured before it is listed: 1-9999999999 would fill the memory.
        is_too_long = len(seeds) + len(numbers) > _MOST_SEEDS
        if not numbers or is_too_long or not set(seeds).isdisjoint(numbers):
            raise UsageError(
                f"--seeds '{text:.80}': give numbers such as 1,2,3 or 1-5 (at most 100,000 distinct numbers)"
            )
        seeds += numbers
    return seeds


def _range_of(part: str) -> range:
    """Return the numbers of `3` or `1-5`; none for anything else."""
    found = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", part, re.ASCII)
    if not found:
        return range(0)
    first = int(found[1])
    last = int(found[2] or found[1])
    return range(first, last + 1)


def stored_names(kind: str, words: list[str] | None) -> list[str]:
    """Return the names that finished runs have for words, which may be paths of the user's YAMLs.

    Raises:
        UsageError: such a YAML is none of its kind.
    """
    names = [stored_name(kind, word) for word in words or ()]
    for name in names:
        if kind == "tasks" and registry.own_file(name):
            task_spec.load(name)
    return names


def stored_keys(
    protocol: str | None, backbone: str | None, shots: str | None
) -> dict[str, str | None]:
    """Return protocol, backbone and shots as finished runs have them; None if not given.

    Raises:
        UsageError: the shots are neither a number nor `full`.
    """
    if shots and shots != "full" and not (shots.isdecimal() and int(shots)):
        wanted = "a number of training rows per class, or full, is required"
        raise UsageError(f"--shots {shots}: {wanted}")
    return {
        "protocol": stored_name("protocols", protocol) if protocol else protocol,
        "backbone": stored_name("backbones", backbone) if backbone else backbone,
        "shots": shots,
    }


def check_trackers(names: Sequence[str] | None) -> None:
    """Refuse trackers that are not installed.

    Raises:
        MissingError: the package of one is not installed.
    """
    for name in names or ():
        if find_spec(name) is None:
            raise MissingError(f"--report-to {name}: it is not installed: pip install {name}")


def table_that_shows(configs: Iterable[RunConfig], name: str | None = None) -> list[str]:
    """Return the words of the table that shows some runs.

    Args:
        configs: the runs.
        name: of the table that is about them; None: none is.
    """
    # Other tables leave variants out.
    if any(config.variant for config in configs):
        return ["table", "--by", "variant"]
    if name:
        return ["table", name]
    return ["table"]


def arguments(**given: object) -> list[str]:
    """Return the options of a printed command, such as `--protocol laptop`.

    Options that are not given and the default results directory are left out.
    """
    words: list[str] = []
    for key, value in given.items():
        if value and value != RESULTS:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def print_done(line: str) -> None:
    """Print a line about what the command has done, and not about what was asked for; not with --quiet."""
    if logger.isEnabledFor(logging.INFO):
        print(printable(line))


def print_json(content: Any) -> None:
    """Print what `--format json` shows: an object or a list, of records, paths and plain values."""
    # pydantic makes plain values of records, dataclasses and paths, however deep they stand.
    plain = TypeAdapter(Any).dump_python(content, mode="json")
    print(json.dumps(plain, indent=1, allow_nan=False))


def yaml_value(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = registry.yaml_text(value, default_flow_style=True, width=float("inf"))
    # PyYAML ends a document of a plain value with three points.
    return text.strip().removesuffix("\n...")
