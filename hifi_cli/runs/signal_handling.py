"""SIGTERM and SIGINT during training: obeyed between two steps, so that the checkpoint they lead to is whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import torch
from accelerate import Accelerator

from hifi_cli.errors import Terminated

_ASKING = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """The time in which a run can be stopped without loss: `save` is called when a signal ends it.

    One process obeys at once, or at the end of a held block. Several processes of one run are told at different moments,
    or not all of them: they agree at the end of every held block, and stop after the same one.
    """

    def __init__(self, accelerator: Accelerator, save: Callable[[], None]) -> None:
        self._accelerator, self._save = accelerator, save
        self._together = accelerator.num_processes > 1
        self._came: list[int] = []
        self._throughout = ExitStack()

    def __enter__(self) -> "Stopping":
        if self._together:
            self._throughout.enter_context(self._collected())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            self._save()
        self._throughout.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block that no signal interrupts; a signal that came acts at its end."""
        if self._together:
            yield
            came = torch.tensor(float(bool(self._came)), device=self._accelerator.device)
            if self._accelerator.reduce(came, "sum").item():
                raise Terminated
            return
        with self._collected():
            yield
        if self._came:
            signal.raise_signal(self._came.pop())

    @contextmanager
    def _collected(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # Python gives signals to the main thread alone
            yield
            return
        handlers = {number: signal.signal(number, lambda number, _: self._came.append(number)) for number in _ASKING}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
