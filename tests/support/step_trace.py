"""Counts what one training step of a method does on its device: operations, copies between devices, synchronizations.

The model is on the `meta` device, which computes nothing and stands for a GPU: what copies from or to the CPU there, copies on a GPU.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from recorded_operations import WAITS_FOR_RESULT, selects_by_mask
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertForSequenceClassification

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.config.specs import method_spec
from hifi_cli.methods import common as methods
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.heads import placeholder_heads
from hifi_cli.runs.prepare import build_and_prepare
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import EncodedExample, Row
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.runner import ModelRunner

DEVICE = "meta"
_ROOT = Path(__file__).parents[2]
BATCH_SIZE = 8
PAD = {"input_ids": 0, "token_type_ids": 0}
TINY_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 60,
}
_SPECS = {method: method_spec(method) for method in registry.names("methods")}
_ONE_OF_EACH = {spec.implementation: method for method, spec in reversed(_SPECS.items())}
TRACED_METHODS = sorted(
    {*_ONE_OF_EACH.values(), "prefix-tuning-mlp", "eh-ft-hifi", "eh-ft-lora-reserve"}
)


@dataclass
class StepCounts:
    """What one step did.

    Attributes:
        operations: kernels' names and how often each was called; views are none.
        copies: between devices, with the lines of code that asked for them.
        synchronizations: operations whose result the CPU waits for, with their lines of code.
    """

    operations: Counter[str] = field(default_factory=Counter)
    copies: list[str] = field(default_factory=list)
    synchronizations: list[str] = field(default_factory=list)


class CountOperations(TorchDispatchMode):
    """Counts operations, and answers those that need values with made-up ones: `meta` has none."""

    def __init__(self, counts: StepCounts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        on_device = [value for value in inputs if value.device.type == DEVICE]
        selects = selects_by_mask(name, args)
        if on_device and (name in WAITS_FOR_RESULT or selects):
            self.counts.synchronizations.append(f"{name} at {_line_of_code()}")
        if on_device and selects and name == "index":
            return args[0].flatten()
        if name == "_local_scalar_dense" and on_device:
            return torch.ones((), dtype=args[0].dtype).item()
        if name == "equal" and on_device:
            return True
        if name == "nonzero" and on_device:
            return torch.empty(
                args[0].numel() * 3 // 10, args[0].dim(), dtype=torch.int64, device=DEVICE
            )
        if name == "_fused_adamw_":
            self.counts.operations[name] += 1
            return None
        if (
            name == "_to_copy"
            and on_device
            and kwargs.get("device", torch.device(DEVICE)).type != DEVICE
        ):
            self.counts.copies.append(f"to the CPU at {_line_of_code()}")
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        result = func(*args, **kwargs)
        outputs = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        # An operation takes a single number of the CPU as it is, and copies others: indices, say.
        copied = [value for value in inputs if value.dim() > 0 or name in ("_to_copy", "copy_")]
        if len({value.device.type for value in copied + outputs}) > 1:
            self.counts.copies.append(f"{name} {list(outputs[0].shape)} at {_line_of_code()}")
        # `_unsafe_view` is a view that is not marked as one. How many a matrix product has depends on torch.
        is_view = func.is_view or name == "_unsafe_view"
        if not is_view and any(value.device.type == DEVICE for value in inputs + outputs):
            self.counts.operations[name] += 1
        return result


class CountTensorsFromPython(TorchFunctionMode):
    """Counts tensors made on the device from Python numbers: they are copied there."""

    def __init__(self, counts: StepCounts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_made = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], torch.Tensor)
        if is_made and result.device.type == DEVICE and result.numel() > 0:
            self.counts.copies.append(f"torch.tensor {list(result.shape)} at {_line_of_code()}")
        return result


def _line_of_code() -> str:
    """The innermost line outside of PyTorch and of this file."""
    frames = [
        frame
        for frame in traceback.extract_stack()
        if "/torch/" not in frame.filename and frame.filename != __file__
    ]
    path = frames[-1].filename.rpartition("site-packages/")[2].removeprefix(f"{_ROOT}/")
    return f"{path}:{frames[-1].lineno} in {frames[-1].name}"


@contextmanager
def meta_as_a_gpu() -> Iterator[None]:
    """Let runs compute on the `meta` device: optimizer, clipping and generators take it as they take a GPU."""
    devices = ["cuda", DEVICE]
    with ExitStack() as stack:
        for kernels in ("foreach", "fused"):
            name = f"_get_{kernels}_kernels_supported_devices"
            stack.enter_context(patch.object(_foreach_utils, name, lambda: devices))
        stack.enter_context(
            patch(
                "torch.optim.adamw._get_fused_kernels_supported_devices",
                lambda: devices,
                create=True,
            )
        )
        stack.enter_context(
            patch(
                "torch.optim.optimizer._get_fused_kernels_supported_devices",
                lambda: devices,
                create=True,
            )
        )
        stack.enter_context(patch.object(methods, "Generator", lambda *_, **__: torch.Generator()))
        yield


def tiny_bert() -> torch.nn.Module:
    """A small random BERT that classifies two classes."""
    return BertForSequenceClassification(BertConfig(**TINY_SHAPE))


def new_trainer(
    config: RunConfig, device: str, new_model: Callable[[], torch.nn.Module] = tiny_bert
) -> Trainer:
    """A trainer of a small random model, on batches of random tokens with padding."""
    torch.manual_seed(0)
    with torch.device(device):
        encoder = Encoder(new_model())
    encoder.unfuse_qkv()
    runner = ModelRunner(encoder, task_spec.load("rte"), config, PAD, torch.device(device))
    method = build_and_prepare(config, encoder, placeholder_heads(config, encoder), [])
    runner.model.to(runner.device)
    ids = np.random.default_rng(0).integers(
        10, TINY_SHAPE["vocab_size"], (BATCH_SIZE, 24), dtype=np.int32
    )
    batch = [
        EncodedExample(
            Row(id=str(index), sequences=(), label=index % 2),
            ({"input_ids": tokens[: 8 + 2 * index]},),
        )
        for index, tokens in enumerate(ids)
    ]
    trainer = Trainer(runner, method, Splits(batch * 10, gradient_batches=[batch]))
    trainer.model.train()
    return trainer


def trace_steps(config: RunConfig) -> list[StepCounts]:
    """The counts of a training step in each stage of a run's method."""
    with meta_as_a_gpu():
        trainer, steps = new_trainer(config, DEVICE), []
        batch = trainer.splits.train[:BATCH_SIZE]
        for stage in range(len(trainer.method_stages)):
            with CountOperations(StepCounts()):
                trainer.begin_stage(stage)
                trainer.train_step(batch)  # the first step makes what later ones reuse
            counts = StepCounts()
            with CountTensorsFromPython(counts), CountOperations(counts):
                trainer.train_step(batch)
            steps.append(counts)
    return steps


def gpu_config(method: str, *overrides: str) -> RunConfig:
    """A run's configuration with the modules of a GPU."""
    changed = ["kernels=torch", "precision=fp32", f"batch_size={BATCH_SIZE}", *overrides]
    return resolve(
        task="rte", method=method, backbone="bert-large", protocol="hifi", overrides=changed
    )
