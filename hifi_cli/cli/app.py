"""The `hifi` command: loads a command when it is used; an error is one line and an exit code."""

import errno
import logging
import re
import sys
import traceback
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperCommand

from hifi_cli import environment, launcher, stopping
from hifi_cli._version import __version__
from hifi_cli.cli.streams import prepare_streams
from hifi_cli.errors import HifiError, RunFailed, Terminated, logger
from hifi_cli.launcher import LauncherError
from hifi_cli.stopping import end_with_the_grid
from hifi_cli.text import printable

RUN = "results/runs/demo/demo/demo-entailment/hifi-layerwise/seed1"
COMMANDS = {  # module and function, what it does, and the arguments of an example
    "score": (
        "score:score",
        "Score attention heads.",
        "--task rte --backbone bert-large scoring.samples=300",
    ),
    "select": (
        "select:select",
        "Select attention heads by their scores.",
        "--task rte --backbone bert-large heads.k=3",
    ),
    "train": (
        "train:train",
        "Train and evaluate runs.",
        "--task rte --method hifi-layerwise --seeds 1-3 epochs=3",
    ),
    "eval": ("eval:evaluate", "Evaluate trained models again, or predict the test split.", RUN),
    "predict": (
        "predict:predict",
        "Predict each row of a file with a trained model.",
        f"{RUN} texts.tsv",
    ),
    "grid": ("grid:grid", "Train all runs of a table, a figure, claims or a search.", "demo -j 2"),
    "table": (
        "table:table",
        "Print mean scores of methods and tasks as in the papers.",
        "hifi-2 --published --format md",
    ),
    "compare": (
        "compare:compare",
        "Compare methods, paired over seeds and tasks.",
        "hifi-layerwise full-ft --tasks rte",
    ),
    "claims": (
        "claims:claims",
        "Check the papers' claims, or your own, in finished runs.",
        "hifi --protocol laptop",
    ),
    "report": (
        "report:report",
        "Write tables, comparisons, claims and figures as one HTML file.",
        "--published",
    ),
    "figure": ("figure:figure", "Compute and draw a figure.", "hifi-5 --protocol laptop"),
    "export": (
        "export:export",
        "Write a trained model for transformers or peft.",
        f"{RUN} --to my-model",
    ),
    "ls": ("ls:ls", "List names, print a YAML, explain a key, or list runs.", "tasks/rte"),
    "results pack": (
        "results:pack",
        "Write all finished runs as two files.",
        "results --out study",
    ),
    "results export": (
        "results:export",
        "Write finished runs as a Parquet file, or for Every Eval Ever.",
        "results --out runs.parquet",
    ),
    "results check": (
        "results:check",
        "Recompute scores, and find runs that cannot be what they say.",
        "results",
    ),
    "results merge": (
        "results:merge",
        "Copy finished runs from a directory, a packed study or the hub.",
        "/shared/results",
    ),
    "results push": (
        "results:push",
        "Copy finished runs to a directory or the hub.",
        "/shared/results",
    ),
    "results pull": ("results:merge", "The same as merge.", "hub:owner/name"),
}


# A folder in place of a file, a file in place of a folder, a name that is too long, links in a circle
_WRONG_PATHS = (
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


class LazyCommand(TyperCommand):
    """A line in the list of commands; the command and what it imports are loaded when it is used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        group = "results " if parent and parent.info_name == "results" else ""
        command = load(f"{group}{self.name}")
        environment.collect_garbage()
        return command.make_context(info_name, args, parent=parent, **extra)


def load(name: str) -> Any:
    """A command with its options, those about messages included."""
    place, _, example = COMMANDS[name]
    command = _parsed(resolve_name(f"hifi_cli.cli.{place}"), f"{name} {example}")
    command.params += _parsed(resolve_name("hifi_cli.cli.options:messages")).params
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""  # `--force` in help, not `--force <bool>`
    return command


def _parsed(function: Callable[..., None], example: str = "") -> Any:
    one_command = typer.Typer(add_completion=False)
    one_command.command(epilog=f"Example: hifi {example}")(function)
    return typer.main.get_command(one_command)


app = typer.Typer(
    name="hifi",
    help="Fine-tuning experiments with encoders on GLUE and SuperGLUE: the methods and tables of the HiFi and EH-FT papers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
results_app = typer.Typer(help="Pack, check and share finished runs.", no_args_is_help=True)
for _name, (_, _summary, _) in COMMANDS.items():
    _group = results_app if _name.startswith("results ") else app
    _group.command(_name.removeprefix("results "), cls=LazyCommand, help=_summary)(lambda: None)
app.add_typer(results_app, name="results")


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"hifi {__version__}")
        raise typer.Exit


@app.callback()
def _before_a_command(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options before a command."""


class StderrHandler(logging.Handler):
    """Writes to what sys.stderr is at the time: a progress bar takes its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(self.format(record)), file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line and exit: 0, the code of an error, 2 for wrong usage, 130 for Ctrl-C."""
    environment.import_without_garbage_collection()
    environment.set_variables()
    prepare_streams()
    logger.handlers[:] = [StderrHandler()]
    logger.propagate = False
    is_first_process = True
    try:
        stopping.listen()
        end_with_the_grid()
        is_first_process = launcher.rank() == 0
        logger.setLevel(logging.INFO if is_first_process else logging.ERROR)
        environment.check()
        code = app(standalone_mode=False)
        if code == 130:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except SystemExit as error:  # typer's, where the reader of a pipe left early, as `head` does
        sys.exit(0 if isinstance(error.__context__, BrokenPipeError) else error.code)
    except BaseException as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        message, code = _described(error)
        is_of_all_processes = isinstance(error, HifiError) and not isinstance(
            error, (RunFailed, LauncherError)
        )
        if message and (is_first_process or not is_of_all_processes):
            line = printable(" ".join(f"hifi: {message}".split()))
            # arguments need not be UTF-8
            print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _setting(option: str) -> str:
    """How a setting that was given as an option is written; empty if it is no setting."""
    from hifi_cli.config.base import names_elsewhere  # pydantic, which --help does without
    from hifi_cli.config.run_config import RunConfig

    key = option.lstrip("-").replace("-", "_")
    elsewhere = names_elsewhere(RunConfig)
    if key not in {*RunConfig.model_fields, *elsewhere}:
        return ""
    words = elsewhere.get(key, key)
    return f"{option} is a setting: write {words if '=' in words else f'{words}=VALUE'}"


def _described(error: BaseException) -> tuple[str, int]:
    """What is said about an error, and the exit code."""
    lines = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if "IS_USER_CODE" in frame.f_globals
    ]
    match error:
        case HifiError():
            return str(error), error.exit_code
        case Terminated():
            return str(error), error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", 130
        case _ if lines:  # in the file of a user's method or ranking
            return f"{lines[-1]}: {type(error).__name__}: {error} (--debug shows more)", 1
        case OSError() if error.errno in _WRONG_PATHS:
            return f"{error.strerror}: {error.filename!s:.200}: name another path", 2
        case OSError():
            return f"{error}: make it readable and writable, or make room, and repeat", 1
        case _ if hasattr(error, "format_message"):  # typer's; that of a bare `hifi` is empty
            setting = _setting(getattr(error, "option_name", ""))
            message = setting or error.format_message().replace("Value error, ", "")
            return f"{message} (hifi --help)" if message else "", 2
        case _ if isinstance(error, MemoryError) or re.search(
            "allocate memory|out of memory", str(error)
        ):
            advice = "take a smaller backbone, batch, max_length or setting"
            return f"not enough memory ({error}): {advice}", 1
    return f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1
