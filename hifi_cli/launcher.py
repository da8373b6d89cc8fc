"""The processes that torchrun or accelerate start for one run, as their environment variables say."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hifi_cli.errors import UsageError, logger

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
_LEFTOVERS = (*_REQUIRED, "LOCAL_WORLD_SIZE")
# The first process must answer within this time; it may read data for a while.
_PATIENCE_SECONDS = 300.0
# A process that waits longer says for whom it waits.
_SILENCE_SECONDS = 10.0


class LauncherError(UsageError):
    """The variables of a launcher do not fit together; every process says so."""


def rank() -> int:
    """Return the number of this process among those of a launcher; 0 if no launcher started it."""
    if _missing():
        return 0
    return _number("RANK")


def _world_size() -> int:
    """Return the number of processes of the run; 1 if no launcher started this one."""
    if _missing():
        return 1
    return _number("WORLD_SIZE")


def ignore_leftovers() -> None:
    """Remove the variables of a launcher that started no other process; a line names incomplete ones.

    Raises:
        LauncherError: they speak of several processes, and some of them are missing.
    """
    found = [name for name in _LEFTOVERS if name in os.environ]
    missing = _missing()
    means_several = any(_number(name) > _lowest(name) for name in found)
    if means_several and not missing:
        # A launcher has started this process and others.
        return
    said = " ".join(f"{name}={os.environ[name]}" for name in found)
    absent = ", ".join(missing)
    if means_several:
        raise LauncherError(
            f"{said} in the environment means several processes, but not set are {absent}: start"
            f" all with torchrun or accelerate launch, or unset {', '.join(found)} to use one process"
        )
    # A launcher has started this process alone, or its variables are left in the shell: because of
    # them, accelerate would look for other processes.
    for name in found:
        del os.environ[name]
    if found and missing:
        logger.warning(f"{said} in the environment is ignored: {absent} of a launcher are not set")


@contextmanager
def waiting_for_the_others() -> Iterator[None]:
    """Wait in the block until the processes have found one another.

    After ten seconds a line says for whom this process waits. It gives up if nobody answers.

    Raises:
        LauncherError: the first process does not answer.
    """
    processes = _world_size()
    if processes == 1:
        yield
        return
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    said = f"RANK={os.environ['RANK']} WORLD_SIZE={processes} in the environment"
    if rank() > 0:
        _wait_for_the_first(where, said)
    # Nothing in the block can print while it waits: a timer does.
    line = f"waiting for {processes} processes at {where}, as {said} says"
    timer = threading.Timer(_SILENCE_SECONDS, logger.warning, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _wait_for_the_first(where: str, said: str) -> None:
    """Wait until something listens at the address of the first process.

    Args:
        where: the address and port, as text.
        said: the variables of the environment that name it.

    Raises:
        LauncherError: nothing listens there in time.
    """
    address = (os.environ["MASTER_ADDR"], _number("MASTER_PORT"))
    start = time.monotonic()
    has_said_it = False
    while time.monotonic() < start + _PATIENCE_SECONDS:
        with suppress(OSError), socket.create_connection(address, timeout=5):
            return
        if not has_said_it and time.monotonic() > start + _SILENCE_SECONDS:
            logger.error(f"{said}: waiting for the first process at {where}")
            has_said_it = True
        time.sleep(0.2)
    raise LauncherError(
        f"{said}, but no process answers at {where} (MASTER_ADDR, MASTER_PORT): start all"
        " processes with torchrun or accelerate launch, or unset these variables to train with one"
    )


def _missing() -> list[str]:
    """Return the variables of a launcher that are not set."""
    return [name for name in _REQUIRED + _RENDEZVOUS if name not in os.environ]


def _lowest(name: str) -> int:
    """Return the value that a variable has for a single process."""
    if name.endswith("WORLD_SIZE"):
        return 1
    return 0


def _number(name: str) -> int:
    """Return the value of a variable as a number.

    Raises:
        LauncherError: it is none.
    """
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise LauncherError(f"{name}={text} in the environment is no number: unset it") from None
