"""The learning rate of each step."""

import math

from hifi_cli.config.run_config import TrainingConfig


def learning_rate_factor(training: TrainingConfig, steps: int, step: int) -> float:
    """Return the factor on the learning rate in a step of a stage.

    The factor rises linearly from 0 to 1 over the fraction `warmup` of the steps, and then falls
    linearly or as a cosine to `final_factor`, or stays at 1. A warm-up's first step therefore trains
    nothing. The first `hold_steps` steps have `hold_factor` instead, as in EH-FT's code, and count
    as steps of the warm-up: after them it goes on as if it had begun at the first step.

    Args:
        training: the settings of the stage.
        steps: all steps of the stage.
        step: the number of the step in the stage, from 0.

    Returns:
        Between 0 and 1.
    """
    warmup_steps = math.ceil(training.warmup * steps)
    if step < training.hold_steps:
        return training.hold_factor
    if step < warmup_steps:
        return step / warmup_steps
    if training.schedule == "constant":
        return 1.0
    remaining = max(0.0, (steps - step) / max(1, steps - warmup_steps))
    if training.schedule == "cosine":
        remaining = (1 - math.cos(math.pi * remaining)) / 2
    return training.final_factor + (1 - training.final_factor) * remaining
