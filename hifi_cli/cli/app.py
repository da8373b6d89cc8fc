"""The `hifi` command: finds its sub-commands, and turns errors into one line and an exit code."""

import signal
import sys
import traceback
from types import FrameType

import typer

from hifi_cli.cli import (
    compare,
    cp,
    evaluate,
    export,
    figure,
    grid,
    ls,
    options,
    predict,
    report,
    score,
    select,
    table,
    train,
)
from hifi_cli.errors import HifiError, RunFailed, Terminated
from hifi_cli.version import __version__

app = typer.Typer(
    name="hifi",
    help="Fine-tune encoders on GLUE by the HiFi and EH-FT papers' methods, and print the scores beside theirs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hifi {__version__}")
        raise typer.Exit


@app.callback()
def _before_a_command(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options before a command."""


app.command("score")(score.score)
app.command("select")(select.select)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("grid")(grid.grid)
app.command("table")(table.table)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("figure")(figure.figure)
app.command("export")(export.export)
app.command("ls")(ls.ls)
app.command("cp")(cp.cp)


def main() -> None:
    """Run the command line; exit codes are those of `hifi_cli.errors`, 2 for wrong usage, 130 when interrupted."""
    debug = "--debug" in sys.argv
    options.start_messages()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False)
    except HifiError as error:
        if debug:
            traceback.print_exc()
        if options.is_first_process() or isinstance(error, RunFailed):  # the others of a run meet the same
            _say(f"hifi: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _fail("hifi: interrupted", 130)
    except Terminated:
        _fail("hifi: stopped by SIGTERM", Terminated.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)  # the reader of a pipe left early, as `head` does
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"hifi: {error.strerror or error}{where}: make it readable and writable, or make room, and repeat the command", 1)
    except Exception as error:
        if hasattr(error, "format_message"):  # the option parser's own errors
            _fail(f"hifi: {error.format_message()} (hifi --help)", 2)
        if type(error).__name__ == "Abort":
            _fail("hifi: interrupted", 130)
        if debug:
            raise
        if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):  # torch's words
            _fail(f"hifi: not enough memory ({error}): take a smaller backbone, batch, max_length or setting", 1)
        _fail(f"hifi: unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(_: int, __: FrameType | None) -> None:
    raise Terminated


def _fail(message: str, code: int) -> None:
    _say(message)
    sys.exit(code)


def _say(message: str) -> None:
    line = " ".join(message.split())
    print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)  # arguments need not be UTF-8
