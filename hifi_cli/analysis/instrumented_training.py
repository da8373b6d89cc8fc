"""Training with callbacks: for what ordinary runs do not store (intermediate weights, gradients)."""

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import RunFailed
from hifi_cli.runs import run as runs
from hifi_cli.runs.prepared_run import PreparedRun, RunInputs, prepare
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.trainer import Callback, Diverged, Trainer


def train(config: RunConfig, resources: ResourceCache, *callbacks: Callback, max_steps: int | None = None) -> PreparedRun:
    """Train as a run does, without evaluation, and leave the model as it is after the last step.

    Raises:
        RunFailed: the loss is not finite.
    """
    inputs = RunInputs.resolve(config, resources)
    prepared = prepare(inputs.model)
    trainer = Trainer(
        prepared.runner,
        prepared.method,
        inputs.splits.train,
        callbacks=callbacks,
        calibration_batches=inputs.splits.calibration_batches,
        max_steps=max_steps,
    )
    try:
        trainer.train()
    except Diverged as error:
        raise RunFailed(f"{runs.name(config)}: {error}; try a smaller learning_rate=...") from None
    return prepared
