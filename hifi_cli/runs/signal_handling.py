"""SIGTERM and SIGINT during training: handled between two steps, so that the checkpoint saved then is complete."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import torch
from accelerate import Accelerator

from hifi_cli.errors import Terminated

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulShutdown:
    """A block that a signal can stop without loss: `save` is called when a signal ends it.

    One process stops at once, or at the end of a `deferred` block. Several processes of one run receive signals at
    different moments, or not all of them do: they agree at the end of every `deferred` block, and stop after the same one.
    """

    def __init__(self, accelerator: Accelerator, save: Callable[[], None]) -> None:
        self._accelerator, self._save = accelerator, save
        self._is_distributed = accelerator.num_processes > 1
        self._received: list[int] = []
        self._exit_stack = ExitStack()

    def __enter__(self) -> "GracefulShutdown":
        if self._is_distributed:
            self._exit_stack.enter_context(self._record_signals())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            self._save()
        self._exit_stack.close()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that no signal interrupts; a signal received inside acts at its end."""
        if self._is_distributed:
            yield
            has_received = torch.tensor(float(bool(self._received)), device=self._accelerator.device)
            if self._accelerator.reduce(has_received, "sum").item():
                raise Terminated
            return
        with self._record_signals():
            yield
        if self._received:
            signal.raise_signal(self._received.pop())

    @contextmanager
    def _record_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # Python gives signals to the main thread alone
            yield
            return
        handlers = {number: signal.signal(number, lambda number, _: self._received.append(number)) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
