"""The same work by `hifi`'s own loop."""

import itertools
import time
from typing import Any

from work import Work

from hifi_cli.methods.base import placeholder_heads
from hifi_cli.runs.prepared_run import ModelInputs, PreparedRun, prepare
from hifi_cli.runs.trainer import EpochEvaluation, Trainer


def build(work: Work, method: str, **keys: Any) -> PreparedRun:
    """A method's model, ready to train."""
    config = work.config(method, **keys)
    encoder, _ = work.resources.encoder(config)
    return prepare(ModelInputs.resolve(config, work.resources, placeholder_heads(config, encoder)))


def epochs(work: Work, method: str, *, count: int = 1, **keys: Any) -> list[float]:
    """Seconds of each of `count` epochs, with the evaluation after it."""
    prepared = build(work, method, epochs=count, **keys)
    ends = [time.perf_counter()]

    def evaluate() -> dict[str, float]:
        prepared.runner.predict(work.validation)
        ends.append(time.perf_counter())
        return {"score": 0.0}

    ends[0] = time.perf_counter()
    Trainer(prepared.runner, prepared.method, work.examples, evaluation=EpochEvaluation(evaluate, "score")).train()
    return [end - start for start, end in itertools.pairwise(ends)]
