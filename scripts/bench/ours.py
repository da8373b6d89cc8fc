"""The same work by `hifi`'s own loop."""

import time
from typing import Any

from work import Work

from hifi_cli.methods.base import placeholder_heads
from hifi_cli.training.data import PreparedRun, prepare
from hifi_cli.training.loop import Trainer


def build(work: Work, method: str, **keys: Any) -> PreparedRun:
    """A method's model, ready to train."""
    config = work.config(method, **keys)
    encoder, _ = work.resources.encoder(config)
    return prepare(config, work.resources, placeholder_heads(config, encoder))


def epoch(work: Work, method: str, **keys: Any) -> float:
    """Seconds of an epoch, with the evaluation after it."""
    prepared = build(work, method, epochs=1, **keys)
    start = time.perf_counter()
    Trainer(prepared, prepared.method, work.examples).train()
    prepared.predict(work.validation)
    return time.perf_counter() - start
