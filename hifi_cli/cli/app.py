"""The `hifi` command: finds its sub-commands, and turns errors into one line and an exit code."""

import signal
import sys
import traceback
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hifi_cli.cli import (
    claims,
    compare,
    evaluate,
    export,
    figure,
    grid,
    ls,
    messages,
    option_checks,
    predict,
    report,
    results,
    score,
    select,
    table,
    train,
)
from hifi_cli.errors import HifiError, RunFailed, Terminated
from hifi_cli.version import __version__
from hifi_cli.wording import printable


class _PlainFlags:
    """Help of flags without a type: `--strict`, not `--strict <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class _Command(_PlainFlags, TyperCommand):
    """A command whose options with lists may be given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            option_checks.refuse_repeated(self.make_parser(ctx).parse_args([*args])[2])
        return super().parse_args(ctx, args)


class _Group(_PlainFlags, TyperGroup):
    pass


app = typer.Typer(
    name="hifi",
    cls=_Group,
    help="Fine-tuning experiments with encoders on GLUE and SuperGLUE: the methods and tables of the HiFi and EH-FT papers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"hifi {__version__}")
        raise typer.Exit


@app.callback()
def _before_a_command(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Options before a command."""


app.command("score", cls=_Command, epilog="Example: hifi score --task rte --backbone bert-large --samples 300")(score.score)
app.command("select", cls=_Command, epilog="Example: hifi select --task rte --backbone bert-large --k 3")(select.select)
app.command(
    "train", cls=_Command, epilog="Example: hifi train --task rte --method hifi-layerwise --backbone bert-large --seeds 1-3"
)(train.train)
app.command("eval", cls=_Command, epilog="Example: hifi eval results/runs/demo/demo/demo-entailment/hifi-layerwise/seed1")(
    evaluate.evaluate
)
app.command(
    "predict",
    cls=_Command,
    epilog="Example: hifi predict results/runs/demo/demo/demo-entailment/hifi-layerwise/seed1 texts.tsv",
)(predict.predict)
app.command("grid", cls=_Command, epilog="Example: hifi grid demo -j 2")(grid.grid)
app.command("table", cls=_Command, epilog="Example: hifi table hifi-2 --published --format md")(table.table)
app.command("compare", cls=_Command, epilog="Example: hifi compare hifi-layerwise full-ft --tasks rte")(compare.compare)
app.command("claims", cls=_Command, epilog="Example: hifi claims hifi --protocol laptop")(claims.claims)
app.command("report", cls=_Command, epilog="Example: hifi report --published")(report.report)
app.command("figure", cls=_Command, epilog="Example: hifi figure hifi-5 --protocol laptop")(figure.figure)
app.command(
    "export",
    cls=_Command,
    epilog="Example: hifi export results/runs/demo/demo/demo-entailment/hifi-layerwise/seed1 --to my-model",
)(export.export)
results_app = typer.Typer(
    cls=_Group,
    help="Pack and check finished runs, and copy them between results directories and the Hugging Face hub.",
    no_args_is_help=True,
    epilog="Example: hifi results check results",
)
results_app.command("pack", cls=_Command, epilog="Example: hifi results pack results --out study")(results.pack)
results_app.command("check", cls=_Command, epilog="Example: hifi results check results")(results.check)
results_app.command("merge", cls=_Command, epilog="Example: hifi results merge /shared/results")(results.merge)
results_app.command("push", cls=_Command, epilog="Example: hifi results push /shared/results --weights")(results.push)
results_app.command("pull", cls=_Command, epilog="Example: hifi results pull hub:owner/name")(results.merge)
app.add_typer(results_app, name="results")
app.command("ls", cls=_Command, epilog="Example: hifi ls tasks/rte > my-rte.yaml")(ls.ls)


def main() -> None:
    """Run the command line; exit codes are those of `hifi_cli.errors`, 2 for wrong usage, 130 when interrupted."""
    debug = "--debug" in sys.argv
    messages.start_messages()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False)
        if code == 130:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except HifiError as error:
        if debug:
            traceback.print_exc()
        if messages.is_first_process() or isinstance(error, RunFailed):  # the others of a run meet the same
            _say(f"hifi: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _fail("hifi: interrupted", 130)
    except Terminated:
        _fail("hifi: stopped by SIGTERM", Terminated.exit_code)
    except SystemExit as error:  # typer's, where the reader of a pipe left early, as `head` does
        sys.exit(0 if isinstance(error.__context__, BrokenPipeError) else error.code)
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"hifi: {error.strerror or error}{where}: make it readable and writable, or make room, and repeat the command", 1)
    except Exception as error:
        if hasattr(error, "format_message"):  # the option parser's own errors
            message = error.format_message().replace("Value error, ", "")
            if not message:  # a bare `hifi`, whose help is printed already
                sys.exit(2)
            _fail(f"hifi: {message} (hifi --help)", 2)
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
    line = printable(" ".join(message.split()))
    print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)  # arguments need not be UTF-8
