"""What a figure's YAML says, and how the command line changes it."""

from pathlib import Path
from typing import Any

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.run_config import ConfigModel, Seed, parse
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name

COMPANION_SCHEMA = 1  # of the JSON beside a figure's CSV


class FigureSpec(ConfigModel):
    """A figure: what it is computed from and how it is drawn.

    Attributes:
        source: the paper's figure.
        kind: the module of `hifi_cli/analysis/` that computes its CSV.
        drawing: the function of `hifi_cli.reports.figures.draw.DRAWINGS` that draws it; default: the kind's name.
        methods: those compared, in the order of the legend; HiFi's own where only heads are scored.
        config: configuration keys of all its runs, after the protocol's.
        settings: the kind's own settings.
        note: printed below the picture: what differs from the paper, and what is limited.
        protocols: keys that it changes under another protocol: a smaller size for a laptop, for example.
    """

    description: str
    source: str = ""
    kind: str
    drawing: str | None = None
    tasks: list[str] = Field(min_length=1)
    methods: list[str] = ["hifi-layerwise"]
    backbone: str
    protocol: str = "hifi"
    seeds: list[Seed] = [1]
    config: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    note: str = ""
    protocols: dict[str, dict[str, Any]] = {}


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: list[str] | None = None,
    seeds: list[int] | None = None,
) -> FigureSpec:
    """The validated YAML of a figure, or of a user's own file, under another protocol, backbone, tasks or seeds.

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
        whole = {**spec.model_dump(), **change, "protocol": protocol}
        spec = parse(FigureSpec, whole, f"{origin} (protocols: {protocol})")
    given: dict[str, Any] = {"backbone": backbone, "tasks": tasks, "seeds": seeds}
    return spec.model_copy(update={key: value for key, value in given.items() if value})


def csv_path(name: str, results_dir: Path, given: list[str]) -> Path:
    """Where a figure's numbers are kept: `figures/NAME.csv`, or `figures/NAME-WORDS.csv` with what the command line changed."""
    stem = Path(name).stem if registry.is_file(name) else name
    return results_dir / "figures" / f"{safe_name('-'.join([stem, *given]))}.csv"


def refuse_unknown(name: str, known: list[str], what: str) -> None:
    """Refuse a name that is not among those known.

    Raises:
        UsageError: it is not; the nearest is suggested.
    """
    if name not in known:
        raise UsageError(f"unknown {what} '{name}'{registry.nearest(name, known)} (one of {', '.join(known)})")
