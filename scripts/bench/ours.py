"""The same work by `hifi`'s own loop."""

import time
from typing import Any

from hifi_cli.training.prepared_run import ModelInputs, PreparedRun, prepare
from work import Work

from hifi_cli.methods.base import placeholder_heads
from hifi_cli.training.loop import EpochEvaluation, Trainer


def build(work: Work, method: str, **keys: Any) -> PreparedRun:
    """A method's model, ready to train."""
    config = work.config(method, **keys)
    encoder, _ = work.resources.encoder(config)
    return prepare(ModelInputs.resolve(config, work.resources, placeholder_heads(config, encoder)))


def epoch(work: Work, method: str, **keys: Any) -> float:
    """Seconds of an epoch, with the evaluation after it."""
    prepared = build(work, method, epochs=1, **keys)
    end = start = time.perf_counter()

    def evaluate() -> tuple[dict[str, float], Any]:
        nonlocal end
        logits = prepared.runner.predict(work.validation)
        end = time.perf_counter()
        return {"score": 0.0}, logits

    Trainer(prepared.runner, prepared.method, work.examples, evaluation=EpochEvaluation(evaluate, "score")).train()
    return end - start
