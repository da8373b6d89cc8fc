"""Figure specifications: what a figure's YAML says, and where its numbers are stored."""

from pathlib import Path
from typing import Any

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import run_name
from hifi_cli.files import safe_name


class FigureSpec(ConfigModel):
    """A figure: what it is computed from."""

    description: str
    """What the figure shows, in one line."""
    source: str = ""
    """The paper's figure."""
    kind: str
    """How it is computed and drawn: a name of `hifi_cli.figures.figure.KINDS`."""
    tasks: list[str] = Field(min_length=1)
    """The tasks shown."""
    methods: list[str] = Field(["hifi-layerwise"], min_length=1)
    """The methods compared, in the order of the legend."""
    backbone: str
    """Backbone of the runs."""
    protocol: str = "hifi"
    """Protocol of the runs."""
    seeds: list[Seed] = Field([1], min_length=1)
    """Seeds of the runs."""
    config: dict[str, Any] = {}
    """Configuration keys for all runs; they override the protocol's."""
    settings: dict[str, Any] = {}
    """The kind's own settings."""
    note: str = ""
    """Printed below the picture: differences from the paper, and limits."""
    protocols: dict[str, dict[str, Any]] = {}
    """Keys of this file to change under another protocol, for example for a laptop."""


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: list[str] | None = None,
    seeds: list[int] | None = None,
) -> FigureSpec:
    """Load and validate the YAML of a figure, or of a user's own file, with the options' changes.

    Own YAMLs of protocol, tasks and methods, given by path, are used for their names from then on.

    Raises:
        UsageError: an unknown name or key.
    """
    origin = str(registry.find("figures", name))
    spec = parse(FigureSpec, registry.load("figures", name), origin)
    changes: dict[str, Any] = {"backbone": backbone, "tasks": tasks, "seeds": seeds}
    changes = {key: value for key, value in changes.items() if value}
    if protocol and protocol != spec.protocol:
        registry.find("protocols", protocol)
        of_protocol = spec.protocols.get(protocol, {})
        merged = {
            key: {**getattr(spec, key), **of_protocol.get(key, {})}
            for key in ("config", "settings")
        }
        changes = {**of_protocol, **merged, "protocol": protocol, **changes}
    spec = parse(FigureSpec, {**spec.model_dump(), **changes}, origin)
    names = {
        key: [run_name(key, argument) for argument in getattr(spec, key)]
        for key in ("tasks", "methods")
    }
    return spec.model_copy(update={**names, "protocol": run_name("protocols", spec.protocol)})


def csv_path(name: str, results_dir: Path, changes: list[str]) -> Path:
    """Return the path of a figure's CSV: `figures/NAME.csv` or `figures/NAME-CHANGES.csv`."""
    stem = Path(name).stem if registry.is_file(name) else name
    return results_dir / "figures" / f"{safe_name('-'.join([stem, *changes]))}.csv"
