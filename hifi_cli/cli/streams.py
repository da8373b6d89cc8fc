"""Standard streams of a command: closed ones, other encodings, and messages that cannot be written."""

import os
import sys
from contextlib import suppress
from typing import Any


class Messages:
    """A stream of messages that raises nothing: a command must not end because of a message.

    Its reader may have left, its terminal may be closed, and its disk may be full.

    Args:
        stream: what the messages are written to.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text if that is possible."""
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream if that is possible."""
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def prepare_streams() -> None:
    """Open closed standard streams, let every text be printed, and make messages harmless."""
    _open_closed_streams()
    # A table is read although the terminal's encoding lacks a character of it; names of files that
    # are not UTF-8 are printed as they are.
    if hasattr(sys.stdout, "reconfigure"):
        is_utf8 = str(sys.stdout.encoding).lower().replace("-", "") == "utf8"
        if is_utf8:
            sys.stdout.reconfigure(errors="surrogateescape")
        else:
            sys.stdout.reconfigure(errors="replace")
    if not isinstance(sys.stderr, Messages):
        sys.stderr = Messages(sys.stderr)


def _open_closed_streams() -> None:
    """Let closed standard streams read and write nothing, as a daemon starts a command.

    Otherwise the next file that is opened takes their numbers, and gets what libraries print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is that of the closed stream.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
