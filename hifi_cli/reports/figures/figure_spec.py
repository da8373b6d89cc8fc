"""Figure specifications: what a figure's YAML says, how the command line changes it, and the metadata of its CSV."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.run_config import ConfigModel, Seed, parse
from hifi_cli.files import safe_name

METADATA_SCHEMA = 2  # of the JSON next to a figure's CSV

# `hifi_cli/analysis/<kind>.py` computes a kind's CSV, `hifi_cli/reports/figures/<kind>.py` draws it.
FigureKind = Literal[
    "correlation",
    "damping",
    "features",
    "head-ranking",
    "landscape",
    "richness",
    "robustness",
    "singular-values",
    "sweep",
    "training",
    "tsne",
]


def module_name(kind: str) -> str:
    """Return the name of the modules that compute and draw a kind of figure."""
    return kind.replace("-", "_")


class FigureSpec(ConfigModel):
    """A figure: what it is computed from.

    Attributes:
        source: the paper's figure.
        kind: names the module that computes its CSV and the module that draws it.
        methods: those compared, in the order of the legend; HiFi's own where only heads are scored.
        config: configuration keys of all its runs; they override the protocol's.
        settings: the kind's own settings.
        note: printed below the picture: differences from the paper, and limits.
        protocols: keys that change under another protocol: a smaller size for a laptop, for example.
    """

    description: str
    source: str = ""
    kind: FigureKind
    tasks: list[str] = Field(min_length=1)
    methods: list[str] = ["hifi-layerwise"]
    backbone: str
    protocol: str = "hifi"
    seeds: list[Seed] = [1]
    config: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    note: str = ""
    protocols: dict[str, dict[str, Any]] = {}


class FigureInputs(ConfigModel):
    """Everything that decides a figure's numbers.

    Attributes:
        settings: the kind's own settings, with their defaults.
        configs: configuration hashes.
        data: fingerprints of the splits, by task.
        backbone: the id of the pretrained weights.
        runs: configuration hash and results.json digest of each finished run.
    """

    kind: FigureKind
    settings: dict[str, Any]
    configs: list[str]
    data: dict[str, dict[str, str]]
    backbone: str
    runs: list[list[str]]


class FigureMetadata(ConfigModel):
    """The JSON next to a figure's CSV: what the picture says besides its numbers, and what these were computed from.

    Attributes:
        tasks: labels by name.
        notes: printed below the picture.
        analysis_notes: those notes that the analysis wrote.
        provenance: the versions and the device that computed the numbers.
    """

    description: str
    source: str
    tasks: dict[str, str]
    backbone: str
    protocol: str
    notes: list[str]
    analysis_notes: list[str]
    inputs_hash: str
    inputs: FigureInputs
    provenance: dict[str, Any]


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: list[str] | None = None,
    seeds: list[int] | None = None,
) -> FigureSpec:
    """Load and validate the YAML of a figure, or of a user's own file, and apply protocol, backbone, tasks and seeds.

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
    return spec.model_copy(update={key: value for key, value in options.items() if value})


def csv_path(name: str, results_dir: Path, changes: list[str]) -> Path:
    """Return the path of a figure's CSV: `figures/NAME.csv`, or `figures/NAME-CHANGES.csv` with the command line's changes."""
    stem = Path(name).stem if registry.is_file(name) else name
    return results_dir / "figures" / f"{safe_name('-'.join([stem, *changes]))}.csv"
