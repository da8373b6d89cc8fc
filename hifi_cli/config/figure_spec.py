"""Figure specifications: what a figure's YAML says, and where its numbers are stored."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import stored_name
from hifi_cli.files import safe_name


class FigureSpec(ConfigModel):
    """A figure: what it is computed from."""

    description: str
    """The content of the figure, in one line."""
    source: str = ""
    """The paper's figure."""
    kind: str
    """How it is computed and drawn: a name of `hifi_cli.figures.figure.KINDS`."""
    tasks: list[str]
    """The tasks shown. Figures of finished runs may name none, and show all that were run; likewise
    `methods` and `seeds`."""
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
    """Keys of this file to change under another protocol, for example for a laptop."""
    name: str = ""
    """Name of the CSV: that of the figure's file, and the options that change what it says."""

    def csv(self, results_dir: Path, overrides: Sequence[str] = ()) -> Path:
        """Return the file of the figure's numbers: `figures/NAME-CHANGES.csv`."""
        name = safe_name("-".join([self.name, *overrides]))
        return results_dir / "figures" / f"{name}.csv"


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: list[str] | None = None,
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
) -> FigureSpec:
    """Load and validate the YAML of a figure, or of a user's own file, with the options' changes.

    Own YAMLs of protocol, tasks and methods, given by path, are used for their names from then on.

    Args:
        name: a figure's name, or the path of its YAML.
        protocol: instead of the YAML's; None: as it says. Likewise the others.
        backbone: see `protocol`.
        tasks: see `protocol`.
        methods: see `protocol`.
        seeds: see `protocol`; they change no name of a file.

    Raises:
        UsageError: an unknown name or key.
    """
    file = registry.find("figures", name)
    spec = parse(FigureSpec, registry.read_yaml(file), str(file))
    usual = _under_protocol(spec, protocol, str(file))
    # The name of the CSV says which options differ from the YAML.
    changed: list[str] = []
    if protocol is not None and protocol != spec.protocol:
        changed.append(protocol)
    if backbone is not None and backbone != usual.backbone:
        changed.append(Path(registry.name_of(backbone)).name)
    if tasks and tasks != usual.tasks:
        changed += tasks
    if methods and methods != usual.methods:
        changed += methods
    update = {
        "name": "-".join(map(registry.name_of, [name, *changed])),
        "protocol": stored_name("protocols", usual.protocol),
        "backbone": backbone or usual.backbone,
        "tasks": [stored_name("tasks", task) for task in tasks or usual.tasks],
        "methods": [stored_name("methods", method) for method in methods or usual.methods],
        "seeds": seeds or usual.seeds,
    }
    return usual.model_copy(update=update)


def _under_protocol(spec: FigureSpec, protocol: str | None, where: str) -> FigureSpec:
    """Return a figure with what its YAML changes under a protocol; None: its own protocol.

    Raises:
        UsageError: such a change is wrong; names `where`.
    """
    if not protocol:
        return spec
    changes = dict(spec.protocols.get(protocol, {}))
    for section in ("config", "settings"):
        changes[section] = {**getattr(spec, section), **changes.get(section, {})}
    values = spec.model_dump() | {"protocol": protocol} | changes
    return parse(FigureSpec, values, where)
