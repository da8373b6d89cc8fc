"""What each method adds to a model, what its result takes to store, and how fast the result answers: measured."""

import copy
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.files import digest, make_directory, read_with_checksum, safe_name, with_checksum, write_json
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models import encoder as encoders
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.runs import provenance

logger = logging.getLogger("hifi")

SCHEMA = 1
LABELS = ("no", "yes")  # of the task that is measured: two classes
EXAMPLES, TOKENS = 16, 64
ROUNDS, PASSES = 7, 3


def measure(method: str, *, protocol: str, backbone: str, results_dir: Path) -> dict[str, Any]:
    """A method's costs on a backbone: read, or measured once and stored.

    Returns:
        `added_in_training`: trained numbers that the plain model does not have; `added_in_result`: numbers that the
        exported model has beyond the plain one; `modules_added`: modules likewise; `latency`: time of a forward pass of
        the exported model over that of the plain one, medians of alternating rounds; `stored_bytes` of the delta file
        and `plain_bytes` of all the plain model's parameters.
    """
    config = resolve(task="rte", method=method, backbone=backbone, protocol=protocol)
    path = path_of(config, results_dir, "costs", _decides(config))
    return measured_once(path, method, lambda: _measure(config, path.with_suffix(".safetensors")))


def path_of(config: RunConfig, results_dir: Path, folder: str, decides: dict[str, Any]) -> Path:
    """Where the measurements of a method on a backbone are kept."""
    return results_dir / folder / safe_name(config.backbone.name) / f"{safe_name(config.method)}-{digest(decides)}.json"


def measured_once(path: Path, method: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The content of a file of measurements, which are made when it is not there."""
    if path.is_file():
        return read_with_checksum(path, what="costs", schema=SCHEMA)
    logger.info(f"measuring {method} on {path.parent.name}")
    make_directory(path.parent)
    content = {"schema": SCHEMA, "method": method, **measure(), "provenance": provenance.describe().model_dump()}
    write_json(path, with_checksum(content))
    return content


def _measure(config: RunConfig, delta: Path) -> dict[str, Any]:
    task_head = TaskHeadSpec("classification", LABELS, False, config.task_head)
    pretrained = encoders.load(config.backbone, task_head=task_head, dropout=config.dropout)
    encoders.initialize(pretrained.model, pretrained.missing_keys, config.seed)
    plain, encoder = pretrained.model.eval(), Encoder(copy.deepcopy(pretrained.model))
    heads = any_heads(config, encoder) if methods.needs_heads(config) else None
    method = methods.attach(config, encoder, heads, pretrained.missing_keys)
    added_in_training = 0
    for number, phase in enumerate(method.phases()):
        if number:
            phase.prepare_model(encoder)
        phase.method.on_phase_start(encoder.model, _gradients(encoder.model))
        new = phase.method.trainable_parameters(encoder.model).keys() - dict(plain.named_parameters()).keys()
        sizes = {name: value.numel() for name, value in phase.method.trainable_parameters(encoder.model).items()}
        added = 0 if phase.method.trains_subparameters else sum(sizes[name] for name in new)
        added_in_training = max(added_in_training, added)
    tensors = method.delta(encoder.model)
    deltas.save(delta, tensors, {})
    stored = delta.stat().st_size
    delta.unlink()
    with torch.no_grad():
        method.load_delta(encoder.model, tensors)
    method.merge(encoder)
    return {
        "added_in_training": added_in_training,
        "added_in_result": _size(encoder.model) - _size(plain),
        "modules_added": len(_modules(encoder.model) - _modules(plain)),
        "latency": _latency(encoder.model.eval(), plain),
        "stored_bytes": stored,
        "plain_bytes": 4 * _size(plain),
        "total": _size(plain),
    }


def any_heads(config: RunConfig, encoder: Encoder) -> methods.Heads:
    """As many heads as the configuration would choose; which of them does not matter to what is measured."""
    lowest = encoder.num_layers // 2 if config.heads.strategy == "midtop" else 0
    return [list(range(config.heads.k)) if layer >= lowest else [] for layer in range(encoder.num_layers)]


def _latency(model: nn.Module, plain: nn.Module) -> float:
    """Time of `model` over that of `plain`, the median over rounds in which both take turns."""
    batch, ratios = _batch(plain), []
    for number in range(ROUNDS + 1):
        spent = []
        for one in (model, plain):
            began = time.perf_counter()
            with torch.inference_mode():
                for _ in range(PASSES):
                    one(**batch)
            spent.append(time.perf_counter() - began)
        if number:  # the first round warms up
            ratios.append(spent[0] / spent[1])
    return statistics.median(ratios)


def _gradients(model: nn.Module) -> Iterator[None]:
    """A gradient to look at; its values do not matter to what is measured."""
    model.zero_grad()
    model(**_batch(model)).logits.sum().backward()
    yield
    model.zero_grad()


def _batch(model: nn.Module) -> dict[str, Tensor]:
    config: Any = model.config
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(10, config.vocab_size, (EXAMPLES, TOKENS), generator=draws)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _modules(model: nn.Module) -> set[str]:
    """Names and types of the modules that hold parameters of their own."""
    return {
        f"{name} {type(module).__name__}"
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }


def _decides(config: RunConfig) -> dict[str, Any]:
    keys = {"method", "settings", "stage1", "heads", "task_head"}
    return config.model_dump(mode="json", include=keys)
