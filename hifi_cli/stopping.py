"""Signals that stop a command: it saves a checkpoint, stops, and exits with 128 + the signal.

A signal raises an exception, wherever the command is (`listen`). While a run trains or stores its
results, it is only noted (`deferred_signals`): the run stops where its state is whole.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hifi_cli.errors import Terminated

# A closed terminal sends SIGHUP. Schedulers warn with SIGUSR1 or SIGUSR2 before a job's time is over.
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# A user or a scheduler that repeats one of these wants the end at once.
_URGENT = (signal.SIGINT, signal.SIGTERM)


def listen() -> None:
    """Let each signal raise Terminated; one that is ignored, as SIGHUP under nohup, stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, _: FrameType | None) -> Any:
    """Raise Terminated, as the handler of a signal."""
    if number not in _URGENT:
        # Terminal and shell both send SIGHUP: the second one must not interrupt the end.
        signal.signal(number, signal.SIG_IGN)
    raise Terminated(number)


def end_at_once_when_repeated() -> None:
    """Let a second Ctrl-C or SIGTERM end the process at once, after the first one stopped the command.

    While the interpreter ends, an exception would be printed with its traceback.
    """
    for number in _URGENT:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _: FrameType | None) -> Any:
    """End the process at once with 128 + the signal: a signal handler."""
    os._exit(128 + number)


def exception_of(number: int) -> BaseException:
    """Return the exception that a signal stands for."""
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return Terminated(number)


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Collect the signals that come in the block, and raise nothing; a second Ctrl-C or SIGTERM raises at once."""
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        is_repeated = number in received
        received.append(number)
        if is_repeated and number in _URGENT:
            raise exception_of(number)

    handlers = {number: signal.signal(number, note) for number in _deferrable()}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            if number in received and number not in _URGENT:
                # The command ends because of this signal, and another one must not interrupt the end.
                handler = signal.SIG_IGN
            signal.signal(number, handler)


def _deferrable() -> list[signal.Signals]:
    """Return the signals to note: none that is ignored, nor a warning that the user's own program handles."""
    deferrable = []
    for number in (signal.SIGINT, *SIGNALS):
        handler = signal.getsignal(number)
        is_urgent = number in _URGENT and handler != signal.SIG_IGN
        if is_urgent or handler is _stop:
            deferrable.append(number)
    return deferrable
