"""What commands print to stdout."""

from pathlib import Path
from typing import Any

import yaml

from hifi_cli.config import RunConfig


def print_config(configs: list[RunConfig], results_dir: Path | None = None) -> None:
    """The resolved configurations as YAML documents."""
    from hifi_cli.runs.directory import RunDirectory

    for config in configs:
        if results_dir:
            print(f"# {RunDirectory.of(config, results_dir).path}")
        print(f"---\n{yaml.safe_dump(config.model_dump(mode='json'), sort_keys=False)}", end="")


def print_scores(found: dict[str, Any]) -> None:
    """Each layer's richness and total correlation per head."""
    print(f"information richness I_h of {found['backbone']} on {found['task']}, mean of {found['samples']} samples")
    _print_grid(found["richness"], "{:6.2f}")
    print("correlation of each head with the layer's others, sum of r_hh', in thousandths")
    _print_grid([[1000 * sum(row) for row in layer] for layer in found["correlation"]], "{:6.2f}")


def print_heads(chosen: dict[str, Any]) -> None:
    """The chosen heads of each layer."""
    for layer, heads in enumerate(chosen["heads"]):
        print(f"layer {layer:2}: {' '.join(map(str, heads)) or '-'}")


def print_evaluation(found: dict[str, Any]) -> None:
    """Scores now and stored, and how far the logits are apart."""
    difference = found["largest_difference"]
    verdict = "logits identical" if difference == 0 else f"logits differ by at most {difference:.1e}"
    for name, value in found["scores"].items():
        print(f"{found['run']}  {name} {100 * value:.2f}  stored {100 * found['stored'][name]:.2f}  {verdict}")


def _print_grid(rows: list[list[float]], form: str) -> None:
    print("layer " + "".join(f"{f'h{head}':>6}" for head in range(len(rows[0]))))
    for layer, row in enumerate(rows):
        print(f"{layer:5} " + "".join(form.format(value) for value in row))
