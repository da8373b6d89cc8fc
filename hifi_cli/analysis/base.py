"""What every analysis is given, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.grids.grid_spec import word
from hifi_cli.reports.figures.figure_spec import FigureSpec
from hifi_cli.runs.resources import ResourceCache

Row = dict[str, Any]


@dataclass(frozen=True)
class Points:
    """A tidy table, one row per point of a figure.

    Attributes:
        notes: what a reader must know besides, printed below the picture.
    """

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FigureRequest:
    """A figure to compute.

    Attributes:
        settings: the kind's own, validated.
        given: configuration keys from the command line, `key=value`; the last word.
        train: runs that are missing are trained here.
    """

    spec: FigureSpec
    resources: ResourceCache
    settings: Any
    given: tuple[str, ...] = ()
    train: bool = False

    @property
    def over_seeds(self) -> str:
        """What a point with bars stands for."""
        seeds = len(self.spec.seeds)
        return "one seed" if seeds == 1 else f"mean of {seeds} seeds, bars: their standard deviation"

    def words(self, extra: Mapping[str, Any] | None = None) -> list[str]:
        """All configuration keys as `key=value`: the figure's, `extra`, those of the command line."""
        return [*_words(self.spec.config), *_words(extra or {}), *self.given]

    def config(
        self, task: str, method: str | None = None, seed: int | None = None, extra: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """The configuration of one of the figure's runs; without a method, of its first one, and so for the seed.

        Raises:
            UsageError: a name, key or value is wrong.
        """
        return resolve(
            task=task,
            method=method or self.spec.methods[0],
            backbone=self.spec.backbone,
            protocol=self.spec.protocol,
            seed=self.spec.seeds[0] if seed is None else seed,
            overrides=self.words(extra),
        )


def _words(values: Mapping[str, Any]) -> list[str]:
    """Configuration keys as the command line takes them: `settings.share=0.1`."""
    return [f"{key}={word(value)}" for key, value in values.items()]
