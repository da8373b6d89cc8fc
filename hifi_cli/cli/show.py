"""What commands print to stdout."""

import gc
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hifi_cli.wording import counted_noun

if TYPE_CHECKING:
    import pandas as pd

    from hifi_cli.config.sources import ResolvedConfig
    from hifi_cli.heads.select import HeadScores, HeadSelection
    from hifi_cli.results.reload import Evaluation
    from hifi_cli.training.plan import ModelSize

logger = logging.getLogger("hifi")
_SOURCE_COLUMN = 60  # a longer line does not move the column of sources


def print_configs(runs: "list[ResolvedConfig]") -> None:
    """The resolved configurations as YAML documents, with the source of each value in a comment."""
    for run in runs:
        _print_config(run.config.model_dump(mode="json"), run.sources)


def _print_config(values: dict[str, Any], sources: dict[str, str]) -> None:
    lines = list(_yaml_lines(values, sources))
    width = max(len(text) for text, _ in lines if len(text) <= _SOURCE_COLUMN)
    print("---", *(f"{text:{width}}  # {source}" if source else text for text, source in lines), sep="\n", flush=True)


def _add_method_defaults(values: dict[str, Any], sources: dict[str, str], prefix: str = "") -> None:
    """Add the settings that no source sets, at the defaults of the method's implementation."""
    from hifi_cli.methods.base import implementation_of

    method = values["method"]
    defaults = implementation_of(method).Settings().model_dump(mode="json")
    values["settings"] = defaults | values["settings"]
    for name in defaults:
        sources.setdefault(f"{prefix}settings.{name}", f"default of method {method}")
    if values.get("stage1"):
        _add_method_defaults(values["stage1"], sources, "stage1.")


def _yaml_lines(values: dict[str, Any], sources: dict[str, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The lines of a YAML mapping, each with the source of its value; the first line of a section has none."""
    indent = "  " * prefix.count(".")
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{yaml_value(key)}:", ""
            yield from _yaml_lines(value, sources, f"{prefix}{key}.")
        else:
            yield f"{indent}{yaml_value(key)}: {yaml_value(value)}", sources[f"{prefix}{key}"]


def yaml_value(value: Any) -> str:
    """A value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False).strip()
    return json.dumps(value) if "\n" in text.removesuffix("\n...") else text.removesuffix("\n...")


def print_plans(runs: "list[ResolvedConfig]", results_dir: Path, data_dir: Path | None) -> None:
    """The resolved configurations, each followed by comments with its directory, steps, size and what is missing."""
    with _no_garbage_collection():
        from hifi_cli.training.data import ResourceCache
        from hifi_cli.training.plan import plan
    resources = ResourceCache(results_dir, data_dir)
    for run in runs:
        config, values, sources = run.config, run.config.model_dump(mode="json"), dict(run.sources)
        with _no_garbage_collection():
            _add_method_defaults(values, sources)
            _print_config(values, sources)
            run_plan = plan(config, resources)
        examples = "an unknown number of" if run_plan.examples is None else f"{run_plan.examples:,}"
        steps = "" if run_plan.steps is None else f"{counted_noun(run_plan.steps, 'step')}: "
        epochs = counted_noun(config.epochs, "epoch")
        lines = {
            "directory": f"{run_plan.directory} ({run_plan.state})",
            "steps": f"{steps}{epochs} of {examples} examples in batches of {run_plan.batch_size}",
            "parameters": _sizes(run_plan.size) if run_plan.size else "unknown without the backbone's configuration",
        }
        if run_plan.truncated is not None:
            train, validation = run_plan.truncated
            lines["truncated"] = (
                f"{train:,} rows of train, {validation:,} of validation (longer than max_length={config.max_length})"
            )
        for name, text in lines.items():
            print(f"# {name:10} {text}")
        for text in run_plan.missing or ["nothing"]:
            print(f"# missing    {text}")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Importing torch and transformers creates a million permanent objects; collecting garbage among them takes 0.7 s.

    Freezing them also saves 1 s when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _sizes(size: "ModelSize") -> str:
    stages = []
    for number, counts in enumerate(size.trained, start=1):
        stage = f"stage {number}: " if len(size.trained) > 1 else ""
        known = f"{counts[0]:,} trained ({counts[0] / size.total:.2%}), {counts[1]:,} of them in the backbone" if counts else ""
        stages.append(f"{stage}{known or 'determined by the previous stage'}")
    return f"{size.total:,}; {'; '.join(stages)}"


def print_scores(scores: "HeadScores") -> None:
    """Each layer's richness and total correlation per head."""
    print(f"information richness I_h of {scores.backbone} on {scores.task}, mean of {scores.samples} samples")
    _print_grid(scores.richness)
    print("correlation of each head with the layer's others, sum of r_hh', in thousandths")
    _print_grid([[1000 * sum(row) for row in layer] for layer in scores.correlation])


def print_heads(selection: "HeadSelection") -> None:
    """The chosen heads of each layer."""
    for layer, heads in enumerate(selection.heads, start=1):
        print(f"layer {layer:2}: {' '.join(map(str, heads)) or '-'}")


def print_evaluation(evaluation: "Evaluation") -> None:
    """Scores now and stored, and how far the logits are apart."""
    difference = evaluation.largest_difference
    verdict = "logits identical" if difference == 0 else f"logits differ by at most {difference:.1e}"
    for name, scores in evaluation.compared.items():
        now, stored = ("none" if score is None else f"{100 * score:.2f}" for score in scores)
        print(f"{evaluation.path}  {name} {now}  stored {stored}  {verdict}")


def print_runs(runs: "pd.DataFrame", form: str) -> None:
    """The runs of a results directory: a table with a header, JSON, or CSV."""
    if form == "csv":
        return print(runs.to_csv(index=False, lineterminator="\n"), end="")
    runs = runs.astype(object).where(runs.notna(), None)
    if form == "json":
        return print_json(runs.to_dict("records"))
    from hifi_cli.wording import format_duration

    lines = [("state", "score", "metric", "flags", "time", "run")]
    for run in runs.to_dict("records"):
        score = "" if run["score"] is None else f"{run['score']:.2f}"
        took = "" if run["time_s"] is None else format_duration(run["time_s"])
        lines.append((run["state"], score, run["metric"] or "", run["flags"], took, run["path"]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    details = ["", *(f"  {detail}" if detail else "" for detail in runs["detail"])]
    for line, detail in zip(lines, details, strict=True):
        cells = (f"{cell:{'>' if at in (1, 4) else '<'}{widths[at]}}" for at, cell in enumerate(line))
        print("  ".join(cells).rstrip() + detail)


def write_or_print(text: str, out: Path | None, what: str) -> None:
    """Write a text to the file that `--out` names, or print it.

    Args:
        what: what the text is, for the message that names the file.
    """
    if out is None:
        return print(text, end="")
    from hifi_cli.files import write_text

    write_text(out, text)
    logger.info(f"{what}: {out}")


def print_path(path: Path, form: str) -> None:
    """The file that a command wrote."""
    if form == "json":
        return print_json({"path": path})
    print(path)


def print_paths(paths: Sequence[Path], form: str) -> None:
    """The files that a command wrote."""
    if form == "json":
        return print_json([{"path": path} for path in paths])
    for path in paths:
        print(path)


def print_commands(commands: Sequence[Sequence[str]], form: str) -> None:
    """Command lines, for `--print`."""
    from hifi_cli.files import command_line

    lines = [command_line(command) for command in commands]
    if form == "json":
        return print_json(lines)
    for line in lines:
        print(line)


def print_json(content: Any) -> None:
    """What `--format json` prints: an object or a list, of records, paths and plain values."""
    from pydantic import TypeAdapter

    from hifi_cli.files import json_text

    print(json_text(TypeAdapter(Any).dump_python(content, mode="json")), end="")


def _print_grid(rows: list[list[float]]) -> None:
    """Print a row per layer, counted from 1 as in the papers (files count from 0), and a column per head."""
    cells = [[f"{value:.2f}" for value in row] for row in rows]
    width = max(len(cell) for row in [*cells, [f"h{len(rows[0]) - 1}"]] for cell in row)
    print("layer  " + "  ".join(f"{f'h{head}':>{width}}" for head in range(len(rows[0]))))
    for layer, row in enumerate(cells, start=1):
        print(f"{layer:5}  " + "  ".join(f"{cell:>{width}}" for cell in row))
