"""Finished models as a Hugging Face model or as a peft adapter, with a model card."""

import copy
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors.torch import save_file
from torch import Tensor, nn

from hifi_cli.config import registry
from hifi_cli.config.run_config import BackboneConfig
from hifi_cli.config.specs import method_spec
from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_path, without_directory
from hifi_cli.models.encoder_files import resolve_source
from hifi_cli.models.families import PROJECTIONS
from hifi_cli.records.record import RunResult
from hifi_cli.runs.inputs import task_head_of
from hifi_cli.runs.prepare import PreparedRun
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks.metrics import hub_name_of
from hifi_cli.tasks.task_spec import HubDataset, TaskSpec
from hifi_cli.text import command_line

_CARD = Path(__file__).with_name("model_card.md.j2")
# It stands in the card for a directory of this machine.
_BASE = "PATH-TO-THE-BASE-MODEL"


def export(run: Path, to: Path, form: str, workspace: Workspace) -> None:
    """Write the model of a finished run with tokenizer and model card into a new directory.

    Args:
        run: the run's directory.
        to: the new directory.
        form: `hf` or `peft`.
        workspace: has what the run started from.

    Raises:
        UsageError: this form cannot hold the model.
    """
    prepared, result = workspace.open(run)
    fits = fits_peft(prepared) if form == "peft" else fits_hf(prepared)
    if not fits:
        raise UsageError(
            f"--as {form}: no such model holds the task head or the modules of this run of"
            f" {result.method}: open the run itself with hifi_cli.open_model"
        )
    for name, parameter in prepared.encoder.model.named_parameters():
        if not parameter.isfinite().all():
            raise UsageError(f"the model of {run} is damaged: {name} is not finite; train it again")
    tokenizer = prepared.pretrained.tokenizer
    tokenizer.model_max_length = prepared.config.max_length
    with atomic_path(to.resolve()) as folder:
        folder.mkdir()
        tokenizer.save_pretrained(folder)
        if form == "peft":
            write_peft(prepared, folder)
        else:
            write_hf(prepared, folder)
        write_card(prepared, result, form, folder, name=to.resolve().name)


def write_hf(prepared: PreparedRun, to: Path) -> None:
    """Write the merged model, for `from_pretrained` and `pipeline`."""
    prepared.method.merge(prepared.encoder)
    prepared.encoder.fuse_qkv()
    model: Any = prepared.encoder.model
    model.config.problem_type = prepared.task.rules.problem_type
    model.save_pretrained(to, safe_serialization=True)


def fits_hf(prepared: PreparedRun) -> bool:
    """Return whether a plain Hugging Face model can hold the trained one."""
    has_own_task_head = task_head_of(prepared.config, prepared.task).is_own
    return prepared.method.mergeable and not has_own_task_head


def fits_peft(prepared: PreparedRun) -> bool:
    """Return whether peft can hold the model: adapters, and a task head of Hugging Face's.

    peft's prefix tuning opens ours but computes something else: it hands the prefixes over as a
    cache, by whose length BERT-type encoders move the position ids on.
    """
    from hifi_cli.methods.peft import Peft

    if not isinstance(prepared.method, Peft) or prepared.method.needs_heads:
        return False
    if task_head_of(prepared.config, prepared.task).is_own or prepared.config.start_from:
        return False
    _, adapted_slices = _fused_parts(prepared)
    if not adapted_slices:
        return True
    # LoRA of slices of one Linear becomes one LoRA of it, if it is as Hu et al. have it.
    kind, options = prepared.method.adapter()
    others = ("use_dora", "lora_bias", "rank_pattern", "alpha_pattern")
    has_others = any(options.get(option) for option in others)
    is_plain = options.get("init_lora_weights", True) is True and not has_others
    return kind.lower() == "lora" and is_plain


def _fused_parts(prepared: PreparedRun) -> tuple[str, list[str]]:
    """Name the one Linear of a family for query, key and value, and which of them are adapted.

    Returns:
        The Linear's name, empty for other families, and the adapted parts.
    """
    method: Any = prepared.method
    encoder = prepared.encoder
    fused = encoder.module_names.fused if encoder.is_supported_family else None
    if not fused:
        return "", []
    inside = [name for name in method.target_modules(encoder) if f".{fused}." in name]
    last_words = {name.rpartition(".")[2] for name in inside}
    adapted = [part for part in PROJECTIONS if part in last_words]
    return fused, adapted


def _join_lora(weights: dict[str, Tensor], adapter: Any, fused: str, parts: Sequence[str]) -> None:
    """Make LoRA of slices of the one Linear for query, key and value one LoRA of all of it.

    The updates B A of r rows of A each become one: the A below one another, each B in the rows of
    its slice and the columns of its A.

    Args:
        weights: of the adapters; changed in place, as `adapter` is.
        adapter: peft's configuration.
        fused: name of the one Linear.
        parts: the slices that have LoRA.
    """
    first = f".{parts[0]}.lora_A.weight"
    paths = [name.removesuffix(first) for name in weights if name.endswith(first)]
    for path in paths:
        of_a = [weights.pop(f"{path}.{part}.lora_A.weight") for part in parts]
        of_b = {part: weights.pop(f"{path}.{part}.lora_B.weight") for part in parts}
        # A slice without LoRA has its rows, which are zero, and no rank.
        no_column = of_b[parts[0]][:, :0]
        blocks = [of_b.get(part, no_column) for part in PROJECTIONS]
        weights[f"{path}.lora_A.weight"] = torch.cat(of_a)
        weights[f"{path}.lora_B.weight"] = torch.block_diag(*blocks)
    others = {name for name in adapter.target_modules if name.rpartition(".")[2] not in parts}
    adapter.target_modules = {fused, *others}
    adapter.rank_pattern = {fused: adapter.r * len(parts)}
    # peft scales by alpha / r, or by alpha / sqrt(r), and r has grown.
    growth = len(parts) ** 0.5 if adapter.use_rslora else len(parts)
    adapter.alpha_pattern = {fused: adapter.lora_alpha * growth}


def write_peft(prepared: PreparedRun, to: Path) -> None:
    """Write the adapter: `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our methods train and peft would leave frozen, are in it as
    `modules_to_save`.
    """
    from peft import get_peft_model_state_dict

    method: Any = prepared.method
    backbone = prepared.config.backbone
    model = prepared.encoder.model
    adapter = copy.copy(method.tuner.peft_config["default"])
    as_peft_names: Any = nn.ModuleDict({"base_model": method.tuner})
    as_peft_names.peft_config = method.tuner.peft_config
    weights = get_peft_model_state_dict(as_peft_names, save_embedding_layers=False)
    task_head = prepared.encoder.task_head
    weights |= {f"base_model.model.{name}": value for name, value in task_head.items()}
    fused, parts = _fused_parts(prepared)
    if parts:
        _join_lora(weights, adapter, fused, parts)
    adapter.task_type = prepared.task.rules.peft_task
    # The name is no path of this machine.
    adapter.base_model_name_or_path = backbone.hub or backbone.package or backbone.name
    adapter.revision = backbone.revision
    inside = f"{model.base_model_prefix}."
    # The pooler, and what lies outside the backbone.
    adapter.modules_to_save = sorted(
        {name.removeprefix(inside).split(".")[0] for name in task_head}
    )
    adapter.inference_mode = True
    adapter.save_pretrained(to)
    # Layers of some adapters share a tensor, which safetensors refuses: it gets copies.
    tensors = {name: value.detach().clone().contiguous() for name, value in weights.items()}
    save_file(tensors, to / "adapter_model.safetensors", metadata={"format": "pt"})


def write_card(prepared: PreparedRun, result: RunResult, form: str, to: Path, name: str) -> None:
    """Write README.md from a template, with the front matter that the Hugging Face hub reads.

    Args:
        prepared: the run, opened again.
        result: its record.
        form: `hf` or `peft`.
        to: the directory as long as it is written.
        name: what the directory is called in the end.
    """
    task = prepared.task
    config = prepared.config
    method = method_spec(config.method)
    dataset = _dataset_on_the_hub(task)
    scores = _scores_of_card(task, result)
    base = _base_card(config.backbone)
    data = ModelCardData(
        language=base.language if registry.own_file(config.task) else "en",
        license=base.license or "unknown",
        library_name="peft" if form == "peft" else "transformers",
        base_model=config.backbone.hub,
        datasets=[dataset.id] if dataset else None,
        metrics=sorted({score.metric_type for score in scores}),
        pipeline_tag=task.rules.pipeline,
        tags=["hifi-cli", result.method, result.task],
        model_name=name,
        eval_results=scores,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(_CARD),
        form=form,
        here=name,
        base=config.backbone.hub or _BASE,
        opener=task.rules.transformers_class,
        task=task,
        # A task that was made from a file has its path as the source.
        source=without_directory(task.source),
        method=method,
        # The run may have another k than the method.
        description=re.sub(r"\bk = \d+ ", "", method.description),
        config=config,
        batch_size=prepared.batch_size,
        result=result,
        command=command_line(_command_of_others(result)),
        weights=prepared.pretrained.digest,
    )
    card.save(to / "README.md")


def _dataset_on_the_hub(task: TaskSpec) -> HubDataset | None:
    """Return the task's dataset on the hub; None: a local copy of one has no page there."""
    if task.hub and Path(task.hub.id).is_dir():
        return None
    return task.hub


def _scores_of_card(task: TaskSpec, result: RunResult) -> list[EvalResult]:
    """Return the scores of a run in the form that the hub's front matter has."""
    dataset = _dataset_on_the_hub(task)
    scores = []
    for metric, value in result.metrics.items():
        scores.append(
            EvalResult(
                task_type=task.rules.pipeline,
                dataset_type=dataset.id if dataset else result.task,
                dataset_name=task.label,
                dataset_config=dataset.config if dataset else None,
                dataset_split=result.split,
                metric_type=hub_name_of(metric),
                metric_name=metric,
                metric_value=value,
            )
        )
    return scores


def _command_of_others(result: RunResult) -> list[str]:
    """Return the command that trained a run, without the name of a directory of this machine."""
    words: list[str] = [*result.provenance["command"]]
    own_backbone = Path(result.config["backbone"].get("path") or "")
    if not own_backbone.is_absolute():
        return words
    for index, word in enumerate(words):
        option, equals, place = word.rpartition("=")
        if option in ("", "--backbone") and Path(place).name == own_backbone.name:
            words[index] = f"{option}{equals}{_BASE}"
    return words


def _base_card(backbone: BackboneConfig) -> Any:
    """Read the backbone's own model card, for language and license; empty where it has none."""
    source, _ = resolve_source(backbone)
    card = Path(source) / "README.md"
    # There may be no card, or no network, whose errors have no common base class.
    with suppress(Exception):
        return ModelCard.load(card if card.is_file() else source).data
    return ModelCardData()
