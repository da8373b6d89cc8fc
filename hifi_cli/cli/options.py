"""What commands share: options that mean the same in all of them, the runs that they name, and how results are printed."""

import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter

from hifi_cli.config import registry
from hifi_cli.config.run_config import EpochChoice, RunConfig
from hifi_cli.config.sources import resolve, stored_name
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.files import well_formed
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.data_options import check_has_data, split_options
from hifi_cli.tasks.own_data import is_data_source, task_named

# panels of --help
WHAT, DATA = "What to run or read", "Data and results"
HOW, OUTPUT = "How to run", "Output"


def several(*flags: str, help: str, panel: str = WHAT, choices: Sequence[str] = ()) -> Any:  # noqa: A002
    """An option that takes names with commas, given once or more often.

    Args:
        choices: the words that are accepted; empty: any.
    """

    def split(option: typer.CallbackParam, texts: list[str] | None) -> list[str]:
        words = [word.strip() for text in texts or () for word in text.split(",")]
        if wrong := [word for word in words if not word or (choices and word not in choices)]:
            expected = f"one of {', '.join(choices)}" if choices else "a name"
            raise UsageError(f"{option.opts[0]}: '{wrong[0]}' is not {expected}")
        return words

    metavar = f"[{'|'.join(choices)}],..." if choices else "NAME,..."
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
    """Refuse a repository of the hub, where a directory is meant: a local one would be made of its name.

    Raises:
        UsageError: it is one.
    """
    if str(path).startswith("hub:"):
        raise UsageError(
            f"--results-dir {path}: a directory is required; hifi results pull and push take a"
            " repository of the hub"
        )
    return path


def _data_directory(context: typer.Context, path: Path | None) -> Path | None:
    """Refuse a directory that is not there, of a command that reads it itself.

    A grid's workers may have it, a plan does without, a table only repeats it in the command that
    makes missing runs, and a variable of the environment may be meant for other commands.

    Raises:
        MissingError: it is not there.
    """
    source = context.get_parameter_source("data_dir")
    is_given = source is not None and source.name == "COMMANDLINE"
    reads_data = context.info_name in ("train", "score", "select", "eval", "export", "figure")
    is_plan = "--dry-run" in sys.argv
    if path and is_given and reads_data and not is_plan and not path.is_dir():
        raise MissingError(f"there is no directory {path} (--data-dir)")
    return path


DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="HIFI_DATA_DIR",
        callback=_data_directory,
        help="Directory of the official data files; default: the Hugging Face hub.",
        rich_help_panel=DATA,
    ),
]
ResultsDir = Annotated[
    Path,
    typer.Option(
        callback=_local_directory,
        file_okay=False,
        help="Directory of all results.",
        rich_help_panel=DATA,
    ),
]
RESULTS = Path("results")
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
    if is_set:
        logger.setLevel(logging.ERROR if option.name == "quiet" else logging.DEBUG)


def messages(
    quiet: Annotated[
        bool,
        typer.Option(
            "-q",
            "--quiet",
            callback=_set_level,
            expose_value=False,
            help="Errors only.",
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
    """The options of every command; `main` reads --debug."""


def resolve_runs(
    tasks: list[str] | None,
    methods: list[str] | None,
    backbone: str | None,
    protocol: str | None,
    *,
    seeds: str | None = None,
    files: list[Path] | None = None,
    overrides: list[str] | None = None,
    out: Path | None = None,
) -> list[RunConfig]:
    """The configuration of every combination of task, method and seed; a data file is a task too.

    Args:
        out: a file for the result of one task.

    Raises:
        UsageError: a name, key or value is wrong, or a task, method or backbone is named nowhere.
    """
    if out and len(tasks or ()) > 1:
        raise UsageError(f"--out {out} is for one task: give one, or leave it out")
    names_and_values = [*(tasks or []), *(methods or []), *(overrides or []), backbone, protocol]
    for word in names_and_values:
        if word and well_formed(word) != word:
            raise UsageError(f"'{word}' is not UTF-8, as a run's record requires it: rename it")
    if any(map(is_data_source, tasks or ())):
        about_data, words = split_options(overrides or [])
    else:
        check_has_data(overrides or [])
        about_data, words = [], overrides or []
    names = [task_named(task, about_data) for task in tasks or ()]
    return [
        resolve(
            task=task,
            method=method,
            backbone=backbone,
            protocol=protocol,
            seed=seed,
            files=files or [],
            overrides=words,
        )
        for task in names or (None,)
        for method in methods or (None,)
        for seed in parse_seeds(seeds) or (None,)
    ]


def parse_seeds(text: str | None) -> list[int]:
    """`1,2,3` or `1-5` as numbers; none where the option is not given.

    Raises:
        UsageError: anything else, more than 100,000 seeds, or a seed twice.
    """
    seeds: list[int] = []
    for part in [] if text is None else text.replace(" ", "").split(","):
        found = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", part, re.ASCII)
        numbers = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not 0 < len(numbers) <= 100_000 - len(seeds) or not {*seeds}.isdisjoint(numbers):
            raise UsageError(
                f"--seeds '{text:.80}': give numbers such as 1,2,3 or 1-5 (at most 100,000 distinct numbers)"
            )
        seeds += numbers
    return seeds


def stored_names(kind: str, words: list[str] | None) -> list[str]:
    """The names that finished runs have for words, which may be paths of the user's own YAMLs.

    Raises:
        UsageError: such a YAML is none of its kind.
    """
    names = [stored_name(kind, word) for word in words or ()]
    for name in names:
        if kind == "tasks" and registry.own_file(name):
            task_spec.load(name)
    return names


def table_keys(
    protocol: str | None, backbone: str | None, shots: str | None
) -> dict[str, str | None]:
    """Protocol, backbone and shots as finished runs have them, of options that are given or not.

    Raises:
        UsageError: the shots are neither a number nor `full`.
    """
    if shots and shots != "full" and not (shots.isdecimal() and int(shots)):
        wanted = "a number of training rows per class, or full, is required"
        raise UsageError(f"--shots {shots}: {wanted}")
    named = {"protocol": protocol, "backbone": backbone}
    return {key: word and stored_name(f"{key}s", word) for key, word in named.items()} | {
        "shots": shots
    }


def arguments(**given: object) -> list[str]:
    """The options of a printed command, without those that are not given: `--protocol laptop`."""
    named = {
        key.replace("_", "-"): value for key, value in given.items() if value and value != RESULTS
    }
    return [word for key, value in named.items() for word in (f"--{key}", str(value))]


def print_json(content: Any) -> None:
    """What `--format json` prints: an object or a list, of records, paths and plain values."""
    print(json.dumps(TypeAdapter(Any).dump_python(content, mode="json"), indent=1, allow_nan=False))


def yaml_value(value: Any) -> str:
    """A value as YAML in one line."""
    text = registry.yaml_text(value, default_flow_style=True, width=float("inf"))
    return text.strip().removesuffix("\n...")
