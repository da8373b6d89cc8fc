"""The `hifi` command: loads a command when it is used; an error is one line and an exit code."""

import errno
import logging
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperCommand

from hifi_cli import environment, launcher, stopping
from hifi_cli._version import __version__
from hifi_cli.cli.streams import prepare_streams
from hifi_cli.errors import NO_MEMORY, WARNING_MARK, HifiError, RunFailed, Terminated, logger
from hifi_cli.grids.lifeline import end_with_the_grid
from hifi_cli.launcher import LauncherError
from hifi_cli.text import printable

# The run of the examples that `--help` shows: the demo trains it.
RUN = "results/runs/demo/demo/demo-entailment/hifi-layerwise/seed1"


@dataclass(frozen=True)
class CommandLine:
    """A command as `hifi --help` lists it.

    Attributes:
        function: where its function is, as `module:function` below hifi_cli.cli.
        summary: what it does, in a line.
        example: arguments of an example, which its own help shows.
    """

    function: str
    summary: str
    example: str


# The commands in the order in which `hifi --help` lists them.
COMMANDS = {
    "score": CommandLine(
        "score:score",
        "Score attention heads.",
        "--task rte --backbone bert-large scoring.samples=300",
    ),
    "select": CommandLine(
        "select:select",
        "Select attention heads by their scores.",
        "--task rte --backbone bert-large heads.k=3",
    ),
    "train": CommandLine(
        "train:train",
        "Train and evaluate runs.",
        "--task rte --method hifi-layerwise --seeds 1-3 epochs=3",
    ),
    "eval": CommandLine(
        "eval:evaluate",
        "Evaluate trained models again, or predict the test split.",
        RUN,
    ),
    "predict": CommandLine(
        "predict:predict",
        "Predict each row of a file with a trained model.",
        f"{RUN} texts.tsv",
    ),
    "grid": CommandLine(
        "grid:grid",
        "Train all runs of a table, a figure, claims or a search.",
        "demo -j 2",
    ),
    "table": CommandLine(
        "table:table",
        "Print mean scores of methods and tasks as in the papers.",
        "hifi-2 --published --format md",
    ),
    "compare": CommandLine(
        "compare:compare",
        "Compare methods, paired over seeds and tasks.",
        "hifi-layerwise full-ft --tasks rte",
    ),
    "versus": CommandLine(
        "versus:versus",
        "Train a new method and compare it with a study's stored runs.",
        "my_method.yaml --study results/study --against lora,bitfit --dry-run",
    ),
    "claims": CommandLine(
        "claims:claims",
        "Check the papers' claims, or your own, in finished runs.",
        "hifi --protocol laptop",
    ),
    "report": CommandLine(
        "report:report",
        "Write tables, comparisons, claims and figures as one HTML file.",
        "--published",
    ),
    "figure": CommandLine(
        "figure:figure",
        "Compute and draw a figure.",
        "hifi-5 --protocol laptop",
    ),
    "export": CommandLine(
        "export:export",
        "Write a trained model for transformers or peft.",
        f"{RUN} --to my-model",
    ),
    "ls": CommandLine(
        "ls:ls",
        "List names, print a YAML, explain a key, or list runs.",
        "tasks/rte",
    ),
    "results pack": CommandLine(
        "results:pack",
        "Write all finished runs as two files.",
        "results --out study",
    ),
    "results export": CommandLine(
        "results:export",
        "Write finished runs as a Parquet file, or for Every Eval Ever.",
        "results --out runs.parquet",
    ),
    "results check": CommandLine(
        "results:check",
        "Recompute scores, and find runs that cannot be what they say.",
        "results",
    ),
    "results prune": CommandLine(
        "results:prune",
        "Drop the weights of finished runs, and keep records and predictions.",
        "results --methods full-ft",
    ),
    "results merge": CommandLine(
        "results:merge",
        "Copy finished runs from a directory, a packed study or the hub.",
        "/shared/results",
    ),
    "results push": CommandLine(
        "results:push",
        "Copy finished runs to a directory or the hub.",
        "/shared/results",
    ),
    "results pull": CommandLine(
        "results:merge",
        "The same as merge.",
        "hub:owner/name",
    ),
}

# Errors of the operating system that another path would mend.
_WRONG_PATHS = (
    # A folder stands in the place of a file, or a file in the place of a folder.
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    # A name is too long, or links lead in a circle.
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


# Messages of gloo and NCCL where another process of the run is gone.
_LEFT_ALONE = re.compile("gloo.*(Connection (reset|closed|refused)|Broken pipe)|ncclRemoteError")


class LazyCommand(TyperCommand):
    """A line in the list of commands, which loads its command when it is used.

    `hifi --help` therefore imports no command.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the loaded command, whose options then parse the arguments."""
        # `hifi results pack` is the command `pack` of a group.
        is_in_results = parent is not None and parent.info_name == "results"
        name = f"results {self.name}" if is_in_results else str(self.name)
        command = load(name)
        # Importing a command makes many objects that stay, and no garbage: `main` has switched the
        # collector off for that.
        environment.collect_garbage()
        return command.make_context(info_name, args, parent=parent, **extra)


@cache
def load(name: str) -> Any:
    """Return a command with its options, including those about messages that every command has."""
    line = COMMANDS[name]
    command = _parsed(resolve_name(f"hifi_cli.cli.{line.function}"), f"{name} {line.example}")
    # --quiet, --verbose and --debug.
    messages = _parsed(resolve_name("hifi_cli.cli.options:messages"))
    command.params += messages.params
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            # Help shows `--force` and not `--force <bool>`.
            parameter.metavar = ""
    return command


def _parsed(function: Callable[..., None], example: str = "") -> Any:
    """Return the command that typer makes of a function."""
    one_command = typer.Typer(add_completion=False)
    one_command.command(epilog=f"Example: hifi {example}")(function)
    return typer.main.get_command(one_command)


def _placeholder() -> None:
    """Stand for a command until `LazyCommand` loads it."""


app = typer.Typer(
    name="hifi",
    help="Fine-tuning experiments with encoders on GLUE and SuperGLUE: the methods and tables of the HiFi and EH-FT papers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
results_app = typer.Typer(help="Pack, check and share finished runs.", no_args_is_help=True)
for _name, _line in COMMANDS.items():
    _group = results_app if _name.startswith("results ") else app
    _register = _group.command(_name.removeprefix("results "), cls=LazyCommand, help=_line.summary)
    _register(_placeholder)
app.add_typer(results_app, name="results")


def _print_version(is_set: bool) -> None:
    """Print the version and end, where --version is given."""
    if is_set:
        print(f"hifi {__version__}")
        raise typer.Exit


@app.callback()
def _before_a_command(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Take the options that stand before a command."""


class StderrHandler(logging.Handler):
    """Write messages to what sys.stderr is at the time: a progress bar takes its place for a while.

    Args:
        marks_warnings: whether warnings are marked, for the grid that started this process.
    """

    def __init__(self, *, marks_warnings: bool = False) -> None:
        super().__init__()
        self.marks_warnings = marks_warnings

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        text = printable(self.format(record))
        if self.marks_warnings and record.levelno == logging.WARNING:
            text = f"{WARNING_MARK}{text}"
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line and exit: 0, the code of an error, 2 for wrong usage, 130 for Ctrl-C."""
    environment.import_without_garbage_collection()
    environment.set_variables()
    prepare_streams()
    # Messages are printed from here on, also those about what follows.
    logger.handlers[:] = [StderrHandler()]
    logger.propagate = False
    is_first_process = True
    try:
        stopping.listen()
        # A grid reads the warnings of the commands that it starts from their output.
        if end_with_the_grid():
            logger.handlers[:] = [StderrHandler(marks_warnings=True)]
        # The first of several processes of one run says what all of them would.
        is_first_process = launcher.rank() == 0
        logger.setLevel(logging.INFO if is_first_process else logging.ERROR)
        environment.check()
        environment.draw_into_files()
        code = app(standalone_mode=False)
        if code == 130:
            # typer answers Ctrl-C with this code instead of an exception.
            raise KeyboardInterrupt
    except SystemExit as error:
        # typer exits where the reader of a pipe left early, as `head` does. This is no error.
        left_early = isinstance(error.__context__, BrokenPipeError)
        sys.exit(0 if left_early else error.code)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | Terminated):
            stopping.end_at_once_when_repeated()
        code = _report(error, is_first_process=is_first_process)
    sys.exit(code if isinstance(code, int) else 0)


def _report(error: BaseException, *, is_first_process: bool) -> int:
    """Print an error as one line on stderr, and return the exit code.

    Of several processes of one run, the first alone prints an error that all of them have.
    """
    if "--debug" in sys.argv:
        traceback.print_exc()
    message, code = _described(error)
    is_of_one_process = isinstance(error, RunFailed | LauncherError)
    is_of_all_processes = isinstance(error, HifiError) and not is_of_one_process
    if message and (is_first_process or not is_of_all_processes):
        one_line = " ".join(f"hifi: {message}".split())
        # Arguments and paths need not be UTF-8.
        encoded = printable(one_line).encode("utf-8", "backslashreplace")
        print(encoded.decode(), file=sys.stderr)
    return code


def _setting(option: str) -> str:
    """Return how a setting that was given as an option is written; empty if it is no setting."""
    # pydantic, which these modules import, is not needed by `hifi --help`.
    from hifi_cli.config.base import names_elsewhere
    from hifi_cli.config.run_config import RunConfig

    key = option.lstrip("-").replace("-", "_")
    # Other programs have some settings under other names, such as `lr`.
    elsewhere = names_elsewhere(RunConfig)
    if key not in RunConfig.model_fields and key not in elsewhere:
        return ""
    words = elsewhere.get(key, key)
    if "=" not in words:
        words = f"{words}=VALUE"
    return f"{option} is a setting: write {words}"


def _place_in_user_code(error: BaseException) -> str:
    """Return the last line of a user's own method or ranking that raised an error; else empty."""
    place = ""
    # The traceback goes from the command inwards: the last match is the nearest to the error.
    for frame, line in traceback.walk_tb(error.__traceback__):
        if "IS_USER_CODE" in frame.f_globals:
            place = f"{frame.f_code.co_filename}, line {line}"
    return place


def _described(error: BaseException) -> tuple[str, int]:
    """Return the message about an error, and the exit code."""
    kind = type(error).__name__
    place = _place_in_user_code(error)
    match error:
        # The program's own errors say what is wrong and how to mend it.
        case HifiError() | Terminated():
            return str(error), error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", 130
        case _ if place:
            return f"{place}: {kind}: {error} (--debug shows more)", 1
        case OSError() if error.errno in _WRONG_PATHS:
            return f"{error.strerror}: {error.filename!s:.200}: name another path", 2
        case OSError() if error.errno in (errno.EMFILE, errno.ENFILE):
            return f"{error.strerror}: allow more with ulimit -n, or take fewer --jobs", 1
        # Nobody can make room there.
        case OSError() if error.errno == errno.EROFS:
            return f"{error}: name another place, such as another --results-dir", 1
        # Other errors of the system: a full disk, a file that cannot be read.
        case OSError():
            return f"{error}: make it readable and writable, or make room, and repeat", 1
    # typer's errors of usage, without a class in common.
    if hasattr(error, "format_message"):
        return _described_usage(error), 2
    if isinstance(error, RuntimeError) and _LEFT_ALONE.search(str(error)):
        reason = "another process of the run has ended, whose own lines say why"
        return f"{reason}: the same command goes on from the checkpoint, if there is one", 1
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        advice = "take a smaller backbone, batch, max_length or setting"
        return f"not enough memory ({error}): {advice}", 1
    return f"unexpected {kind}: {error} (--debug shows where; please report it)", 1


def _described_usage(error: Any) -> str:
    """Return the message about wrong usage; empty for a bare `hifi`, which prints its help."""
    # An unknown option that is a setting: the message says how it is written, if the command takes any.
    message = ""
    context = getattr(error, "ctx", None)
    if context and any(parameter.name == "overrides" for parameter in context.command.params):
        message = _setting(getattr(error, "option_name", ""))
    if not message:
        # These words are pydantic's, before a message of our own.
        message = error.format_message().replace("Value error, ", "")
    if not message:
        return ""
    return f"{message} ({_command_of(context)} --help)"


def _command_of(context: Any) -> str:
    """Return the command that was called, as its user types it: `hifi grid`."""
    if context is None:
        return "hifi"
    # The first name is that of the running program, such as `python -m hifi_cli`.
    words = context.command_path.removeprefix(context.find_root().info_name)
    return f"hifi{words}"
