"""What a training step of each method does on a GPU, counted on the `meta` device, and where methods keep their tensors."""

import pytest
from step_trace import (
    TRACED_METHODS,
    CountOperations,
    StepCounts,
    gpu_config,
    meta_as_a_gpu,
    new_trainer,
    trace_steps,
)
from tiny_inputs import TINY

from hifi_cli.runs.finished import load_final_delta

FULL_FT_LIMIT = 247  # operations of a step of full fine-tuning
# The most operations of a step, compared with those of full fine-tuning; most methods compute fewer gradients.
LIMITS = {
    "diff-pruning": 1.7,
    "child-tuning-d": 1.5,
    "mixout": 1.45,
    "compacter": 1.85,
    "adapter": 1.25,
    "eh-ft-lora-reserve": 1.4,
    "rocoft-column": 1.5,
    "adalora": 4.7,  # updates of all six matrices, a penalty, and peft's allocator, which goes through them one by one
    "boft": 1.45,
    "hifi-dora": 1.4,
}
NOT_WAITED_FOR = "copy_to_device"  # a batch and its labels, through pinned memory


def small_config(method):
    return gpu_config(method, *TINY.get(method, []))


@pytest.fixture(scope="module")
def full_ft():
    return trace_steps(small_config("full-ft"))[0].operations.total()


FAST = ("full-ft", "hifi-layerwise", "lora")


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in TRACED_METHODS],
)
def test_a_step_neither_copies_nor_waits_and_is_few_operations(method, full_ft):
    for step in trace_steps(small_config(method)):
        waits = [
            line
            for line in (*step.copies, *step.synchronizations)
            if not line.endswith(f" in {NOT_WAITED_FOR}")
        ]
        assert waits == [] and step.copies, "the trace sees the batch's own copies"
        assert step.operations.total() <= LIMITS.get(method, 1.2) * full_ft, (
            step.operations.most_common(10)
        )


def test_a_step_of_full_fine_tuning_is_few_operations(full_ft):
    assert full_ft <= FULL_FT_LIMIT


@pytest.mark.parametrize("method", TRACED_METHODS)
def test_everything_of_a_loaded_delta_is_on_the_models_device(method):
    """A delta from a file is on the CPU, whatever the model's device is."""
    config = small_config(method)
    trainer = new_trainer(config, "cpu")
    for stage in range(len(trainer.method_stages)):
        trainer.begin_stage(stage)
    delta = trainer.method.delta(trainer.model)
    with meta_as_a_gpu(), CountOperations(StepCounts()):
        loaded = new_trainer(config, "meta")
        load_final_delta(loaded.method, loaded.encoder, delta)
    tensors = loaded.method.trainable_parameters(loaded.model) | dict(loaded.model.named_buffers())
    tensors |= dict(loaded.model.named_parameters())
    assert {
        name: value.device.type for name, value in tensors.items() if value.device.type != "meta"
    } == {}
