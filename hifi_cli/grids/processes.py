"""Start a `hifi` command in a new process, here or on a worker of a cluster."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hifi_cli.grids import lifeline

# Starts a `hifi` command, and appends its output to a file; the result is its exit code.
Submit = Callable[[list[str], Path], "Future[int]"]


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a `hifi` command, whatever PATH and the working directory hold.

    It ends with this process, however this process ends.

    Args:
        command: its first word, `hifi`, becomes this interpreter.
        log: the output is appended to it.
        environment: of the new process.
        options: of `subprocess.Popen`.
    """
    options = {**lifeline.popen_options(environment), **options}
    return start_module("hifi_cli", command[1:], log, options)


def start_module(
    module: str, words: Sequence[str], log: Path, options: Mapping[str, Any]
) -> "subprocess.Popen[bytes]":
    """Start a module of this package, as `python -m` does, with the words of a command line."""
    # -P: no module in the working directory takes the place of one that the command imports.
    command = [sys.executable, "-P", "-m", module, *words]
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
        )
