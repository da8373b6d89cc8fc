"""Figure specifications: what a figure's YAML says, and where its numbers are stored."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import stored_name
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
    name: str = ""
    """Of the CSV: the file's name, and the options that change what it says."""

    def csv(self, results_dir: Path, overrides: Sequence[str] = ()) -> Path:
        """The file of the figure's numbers: `figures/NAME-CHANGES.csv`."""
        return results_dir / "figures" / f"{safe_name('-'.join([self.name, *overrides]))}.csv"


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
    file = registry.find("figures", name)
    spec = parse(FigureSpec, registry.read_yaml(file), str(file))
    changes = {"protocol": protocol or spec.protocol, **spec.protocols.get(protocol or "", {})}
    for section in ("config", "settings"):
        changes[section] = {**getattr(spec, section), **changes.get(section, {})}
    usual = parse(FigureSpec, {**spec.model_dump(), **changes}, str(file))
    changed = [
        *([protocol] if protocol not in (None, spec.protocol) else []),
        *(
            [Path(registry.name_of(backbone)).name]
            if backbone not in (None, usual.backbone)
            else []
        ),
        *(tasks if tasks and tasks != usual.tasks else []),
    ]
    update = {
        "name": "-".join(map(registry.name_of, [name, *changed])),
        "protocol": stored_name("protocols", usual.protocol),
        "backbone": backbone or usual.backbone,
        "tasks": [stored_name("tasks", task) for task in tasks or usual.tasks],
        "methods": [stored_name("methods", method) for method in usual.methods],
        "seeds": seeds or usual.seeds,
    }
    return usual.model_copy(update=update)
