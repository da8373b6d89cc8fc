"""Figure specifications: what a figure's YAML says, and the JSON next to a CSV, which says what its numbers are of."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import run_name
from hifi_cli.files import read_json, safe_name

# `hifi_cli/figures/<kind>.py` computes a kind's CSV and draws it.
FigureKind = Literal[
    "correlation",
    "damping",
    "features",
    "head-bench",
    "head-ranking",
    "landscape",
    "richness",
    "robustness",
    "search-budget",
    "singular-values",
    "stage-features",
    "sweep",
    "training-curves",
    "tsne",
]


class FigureSpec(ConfigModel):
    """A figure: what it is computed from."""

    description: str
    """What the figure shows, in one line."""
    source: str = ""
    """The paper's figure."""
    kind: FigureKind
    """Name of the module that computes its CSV and draws it."""
    tasks: list[str] = Field(min_length=1)
    """The tasks shown."""
    methods: list[str] = ["hifi-layerwise"]
    """The methods compared, in the order of the legend."""
    backbone: str
    """Backbone of the runs."""
    protocol: str = "hifi"
    """Protocol of the runs."""
    seeds: list[Seed] = [1]
    """Seeds of the runs."""
    config: dict[str, Any] = {}
    """Configuration keys for all runs; they override the protocol's."""
    settings: dict[str, Any] = {}
    """The kind's own settings."""
    note: str = ""
    """Printed below the picture: differences from the paper, and limits."""
    protocols: dict[str, dict[str, Any]] = {}
    """Keys of this file to change under another protocol, for example a smaller size for a laptop."""


class FigureRecord(FigureSpec):
    """The JSON next to a figure's CSV: the figure as it was computed, with the backbone's name and all settings."""

    overrides: list[str] = []
    """`key=value` of the command line."""
    notes: list[str] = []
    """What a reader must know besides, printed below the picture."""
    hifi: str
    """Version that computed the numbers."""
    commit: str | None = None
    """Commit of the checkout that computed them, with `+` where it was changed."""


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: list[str] | None = None,
    seeds: list[int] | None = None,
) -> FigureSpec:
    """Load and validate the YAML of a figure, or of a user's own file, and apply protocol, backbone, tasks and seeds.

    Own YAMLs of protocol, tasks and methods, given by path, are used for their names from then on.

    Raises:
        UsageError: an unknown name or key.
    """
    origin = str(registry.find("figures", name))
    spec = parse(FigureSpec, registry.load("figures", name), origin)
    if protocol and protocol != spec.protocol:
        registry.find("protocols", protocol)
        change = spec.protocols.get(protocol, {})
        for key in ("config", "settings"):
            change = {**change, key: {**getattr(spec, key), **change.get(key, {})}}
        changed = {**spec.model_dump(), **change, "protocol": protocol}
        spec = parse(FigureSpec, changed, f"{origin} (protocols: {protocol})")
    options: dict[str, Any] = {"backbone": backbone, "tasks": tasks, "seeds": seeds}
    spec = spec.model_copy(update={key: value for key, value in options.items() if value})
    names = {kind: [run_name(kind, argument) for argument in getattr(spec, kind)] for kind in ("tasks", "methods")}
    return spec.model_copy(update={**names, "protocol": run_name("protocols", spec.protocol)})


def csv_path(name: str, results_dir: Path, changes: list[str]) -> Path:
    """Return the path of a figure's CSV: `figures/NAME.csv`, or `figures/NAME-CHANGES.csv` with the command line's changes."""
    stem = Path(name).stem if registry.is_file(name) else name
    return results_dir / "figures" / f"{safe_name('-'.join([stem, *changes]))}.csv"


def read_record(csv: Path) -> FigureRecord:
    """Read the JSON next to a figure's CSV.

    Raises:
        MissingError: it is missing.
        UsageError: it is damaged.
    """
    path = csv.with_suffix(".json")
    return parse(FigureRecord, read_json(path, what="figure's record"), str(path))
