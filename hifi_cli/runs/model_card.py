"""The model card of an exported run: README.md and its score in the forms that the Hugging Face hub reads."""

import inspect
import json
import re
from pathlib import Path

import yaml

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.methods import method_spec
from hifi_cli.config.run_config import BackboneConfig, RunConfig
from hifi_cli.config.sources import override_value, resolve, train_arguments
from hifi_cli.files import command_line, safe_name, write_text
from hifi_cli.methods.base import needs_heads
from hifi_cli.methods.hifi import HiFi
from hifi_cli.models import apply_delta
from hifi_cli.models.task_heads import TRANSFORMERS_CLASSES
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import RunResult
from hifi_cli.reports.render import markdown_code as code
from hifi_cli.reports.render import markdown_text as escaped
from hifi_cli.runs.prepared_run import PreparedRun
from hifi_cli.tasks import task_from_data
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.wording import counted_noun

_METRICS = {  # the hub's names
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "ner_f1": "f1",
    "ner_precision": "precision",
    "ner_recall": "recall",
    "word_accuracy": "accuracy",
}
_PIPELINES = {  # the hub's name of each kind of task
    "classification": "text-classification",
    "multi-label": "text-classification",
    "regression": "text-classification",
    "multiple-choice": "multiple-choice",
    "span": "question-answering",
    "token-classification": "token-classification",
}
_ABSENT = object()
_LIBRARIES = {"hf": "transformers", "peft": "peft", "delta": "hifi-cli"}


def write(prepared: PreparedRun, run: Path, form: str, to: Path, name: str) -> None:
    """Write README.md, and the score in .eval_results/, into an exported directory.

    Args:
        run: the finished run's directory.
        form: `hf`, `peft` or `delta`.
        name: what the directory is called in the end.
    """
    directory = RunDirectory(run)
    result = directory.read_result()
    title = f"{result.backbone} on {result.task}, {result.method}"
    parts = [
        f"---\n{_front_matter(prepared, result, form)}\n---",
        f"# {escaped(title)}",
        _what_it_is(prepared, result),
        f"## Scores\n\n{_scores(result)}",
        f"## Use\n\n{_use(prepared, form, name)}",
        f"## Training\n\n{_training(prepared, run, result)}",
    ]
    write_text(to / "README.md", "\n\n".join(parts) + "\n")
    _write_eval_results(prepared.task, result, to)


def _front_matter(prepared: PreparedRun, result: RunResult, form: str) -> str:
    from huggingface_hub import ModelCardData

    hub = prepared.task.hub
    data = ModelCardData(
        library_name=_LIBRARIES[form],
        base_model=prepared.runner.config.backbone.hub,
        datasets=[hub.id] if hub else None,
        metrics=sorted({_METRICS.get(name, name) for name in result.metrics}),
        pipeline_tag=_PIPELINES[prepared.task.kind],
        tags=["hifi-cli", result.method, result.task],
    )
    return data.to_yaml()


def _write_eval_results(task: TaskSpec, result: RunResult, to: Path) -> None:
    """Write the primary metric in the form from which the hub makes leaderboards; only for a dataset that the hub has."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    if not task.hub or Path(task.hub.id).is_dir():
        return
    notes = [
        f"{result.primary_metric} of {result.split}, {result.kept_score} epoch, method {result.method}, seed {result.seed}"
    ]
    entry = EvalResultEntry(
        dataset_id=task.hub.id,
        task_id=task.hub.config or "default",
        value=result.score(result.kept_score),
        notes="; ".join([*notes, *(text for mark, text in _FLAG_TEXTS.items() if getattr(result, mark))]),
    )
    text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True)
    write_text(to / ".eval_results" / f"{safe_name(result.task)}.yaml", text)


def _what_it_is(prepared: PreparedRun, result: RunResult) -> str:
    method, params = method_spec(result.method), result.params
    share = params.trainable / params.total
    marks = [text for mark, text in _FLAG_TEXTS.items() if getattr(result, mark)]
    lines = [
        f"The encoder {result.backbone} on {prepared.task.label} ({prepared.task.source}):"
        f" {_lower(prepared.task.description)}.",
        f"Method: {method.label} ({method.source}): {_lower(_with_own_k(method.description, prepared))}.",
        f"{params.trainable:,} of {params.total:,} parameters were trained ({share:.2%}).",
        *(f"**{text}**" for text in marks),
    ]
    return "\n".join(map(escaped, lines))


def _with_own_k(description: str, prepared: PreparedRun) -> str:
    """A method's description, in which k is the run's and not the method's default."""
    config = prepared.runner.config
    k = config.heads.k if needs_heads(config) else getattr(prepared.method.settings, "k", None)
    return description if k is None else re.sub(r"\bk = \d+", f"k = {k}", description)


_FLAG_TEXTS = {
    "collapsed": "The model predicts the same of every example.",
    "limited": "It was trained or evaluated on a part of the data only.",
}


def _scores(result: RunResult) -> str:
    chosen = {
        "validation": "The epoch was chosen on this very split, so the scores are slightly too high.",
        "holdout": "The epoch was chosen on a part cut from the training data.",
        "few-shot": "The epoch was chosen on as many further training rows as the model was trained on.",
    }
    rows = [f"| {escaped(name)} | {100 * value:.2f} |" for name, value in result.metrics.items()]
    total = result.epochs.total if result.epochs else 0
    how = f" {chosen[result.selection]}" if result.kept_score == "best" else ""
    note = f"Epoch {result.epoch(result.kept_score)} of {total}.{how}"
    head = f"| metric | {escaped(result.split)}, {result.n_examples.reported:,} examples |\n|---|---:|"
    return "\n".join([head, *rows, "", note])


def _use(prepared: PreparedRun, form: str, name: str) -> str:
    task, labels, here = prepared.task, len(prepared.task_head.labels), json.dumps(name)
    config = prepared.runner.config
    opener = TRANSFORMERS_CLASSES[task.kind]
    count = f", num_labels={labels}" if labels and task.kind != "multiple-choice" else ""
    if form == "peft":
        base = prepared.runner.config.backbone.hub or "PATH-TO-THE-BASE-MODEL"
        lines = [
            "from peft import PeftModel",
            f"from transformers import {opener}",
            f"base = {opener}.from_pretrained({json.dumps(base)}{count})",
            f"model = PeftModel.from_pretrained(base, {here})",
        ]
    elif form == "hf" and _PIPELINES[task.kind] == "text-classification":
        first, *second = reversed(task.inputs) if config.swap_texts else task.inputs
        text = f'{{"text": "{first}", "text_pair": "{second[0]}"}}' if second else f'"{first}"'
        every_label = ", top_k=None" if task.kind == "multi-label" else ""
        truncation = config.truncation if second else "longest_first"
        pipeline = f'pipeline("text-classification", {here}{every_label})'
        lines = ["from transformers import pipeline", f'{pipeline}({text}, truncation="{truncation}")']
    elif form == "hf" and task.kind == "token-classification":  # a word's tag is that of its first token
        arguments = f'"token-classification", {here}, aggregation_strategy="first"'
        lines = ["from transformers import pipeline", f'pipeline({arguments})("...")']
    elif form == "hf":
        lines = [f"from transformers import {opener}", f"model = {opener}.from_pretrained({here})"]
    else:
        lines = ["import hifi_cli", f"model, tokenizer = hifi_cli.open_model({here})"]
    text = _python("\n".join(lines))
    if form != "delta" and task.format not in ("plain", "words"):
        text += f"\n\nThe model reads texts that hifi makes of the columns {', '.join(task.inputs)} (format {task.format})."
    if labels > 1 and task.kind in ("classification", "multi-label", "token-classification"):
        text += f"\n\nLabels: {escaped(', '.join(f'{number} {label}' for number, label in enumerate(task.labels)))}."
    fused = prepared.encoder.has_known_parts and prepared.encoder.module_names.fused  # one matrix for Q, K and V
    if form == "delta" and not prepared.task_head.is_own and isinstance(prepared.method, HiFi) and not fused:
        text += f"\n\n{_without_this_project(opener, count, name)}"
    return text


def _without_this_project(opener: str, count: str, name: str) -> str:
    source = inspect.getsource(apply_delta.apply_delta).replace("  # noqa: SIM118", "").replace("model: Any", "model")
    return "\n\n".join(
        [
            "Or without this project. `delta.safetensors` holds the task head's tensors under their own names, and for every"
            " tuned layer `...query.rows`, `...key.rows` and `...value.rows` [rows of the chosen heads, hidden size] with"
            " their biases `row_bias`; the chosen heads of each layer are `heads` in its header's JSON under `hifi`:",
            _python(
                f"import json\nimport re\n\nfrom safetensors import safe_open\nfrom transformers import {opener}\n\n\n"
                f"{source}\n\n"
                f"model = {opener}.from_pretrained({json.dumps(f'{name}/backbone')}{count})\n"
                f"apply_delta(model, {json.dumps(f'{name}/delta.safetensors')})"
            ),
        ]
    )


def _training(prepared: PreparedRun, run: Path, result: RunResult) -> str:
    config = RunDirectory(run).read_config()
    weights = f"{config.backbone.hub or config.backbone.name}, {prepared.inputs.pretrained.weights_id}"
    origin = "; ".join(f"{split} {text}" for split, text in result.data_origin.items())
    made = result.provenance
    versions = made.libraries
    facts = [
        f"seed: {config.seed}; protocol: {config.protocol}",
        f"base model: {weights} (commit on the hub, or SHA-256 of the weights file)",
        f"data: {origin}",
        f"{counted_noun(config.epochs, 'epoch')}, batch size {config.batch_size}, learning rate {config.learning_rate:g},"
        f" weight decay {config.weight_decay:g}, {config.schedule} schedule, {config.max_length} tokens at most",
        f"{result.time_s:.0f} s on {made.device}; hifi {made.hifi}, torch {versions.get('torch')},"
        f" transformers {versions.get('transformers')}",
    ]
    command = _command(config, prepared.runner.config.backbone, made.command) or made.command
    lines = [f"command: {code(command_line(command))}", *map(escaped, facts)]
    return "\n".join(f"- {line}" for line in lines)


def _command(config: RunConfig, backbone: BackboneConfig, trained_by: list[str]) -> list[str] | None:
    """The command that makes this run alone, from a backbone where it is now.

    Args:
        trained_by: the command that made the run, perhaps with others.

    Returns:
        None for a protocol that is not here, and where `trained_by` does not name the task, but another run.
    """
    task = _task_words(config.task, trained_by)
    if config.protocol not in registry.names("protocols") or not task:
        return None
    word = backbone.name if backbone.name in registry.names("backbones") else backbone.hub or backbone.path or backbone.name
    configured = resolve(task=config.task, method=config.method, backbone=word, protocol=config.protocol, seed=config.seed)
    as_configured = flatten(configured.model_dump(mode="json"))
    values = flatten(config.model_dump(mode="json", exclude={"backbone"}))
    changed = {key: value for key, value in values.items() if as_configured.get(key, _ABSENT) != value}
    shown = backbone.name if word == backbone.path else word  # no path of this machine
    arguments = train_arguments(task[:1], [_word("methods", config.method)], shown, config.protocol, [config.seed])
    return ["hifi", *arguments, *task[1:], *(f"{key}={override_value(value)}" for key, value in changed.items())]


def _task_words(name: str, trained_by: list[str]) -> list[str]:
    """A task as it stands on a command line; a data file is followed by the keys that say how it is read.

    Returns:
        Nothing where the task was made from a data file that `trained_by` does not name.
    """
    file = registry.user_file("tasks", name)
    source = task_from_data.made_from(file) if file else None
    named = {part.strip() for word in trained_by for part in word.removeprefix("--task=").split(",")}
    if source is None or any(registry.is_file(word) and Path(word).stem == name for word in named):
        return [_word("tasks", name)]
    return [source, *task_from_data.split_options(trained_by)[0]] if source in named else []


def _word(kind: str, name: str) -> str:
    """A task or method as it stands on a command line: its name, or the file of the user's own YAML."""
    return f"{name}.yaml" if registry.user_file(kind, name) else name


def _python(text: str) -> str:
    return f"```python\n{text}\n```"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
