"""The request that every analysis gets, and the data it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hifi_cli.analysis.finished_trainings import FinishedTrainings
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.reports.figures.figure_spec import FigureSpec
from hifi_cli.runs.resources import ResourceCache

Row = dict[str, Any]


@dataclass(frozen=True)
class FigureTable:
    """The numbers of a figure as a tidy table, one row per point.

    Attributes:
        notes: what a reader must know besides, printed below the picture.
    """

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FigureRequest:
    """A figure to compute.

    Attributes:
        settings: the kind's own settings, validated.
        overrides: `key=value` of the command line; they win over everything else.
        train: whether missing runs are trained here.
        finished: rows of trainings that the figure makes itself; those of earlier computations are read from there.
    """

    spec: FigureSpec
    resources: ResourceCache
    settings: Any
    overrides: tuple[str, ...] = ()
    train: bool = False
    finished: FinishedTrainings = field(default_factory=FinishedTrainings)

    @property
    def over_seeds(self) -> str:
        """A note on what a point with error bars is."""
        seeds = len(self.spec.seeds)
        return "one seed" if seeds == 1 else f"mean of {seeds} seeds, bars: their standard deviation"

    def all_overrides(self, extra: Mapping[str, Any] | None = None) -> list[str]:
        """Return all `key=value`: the figure's, then `extra`, then those of the command line."""
        keys = [*self.spec.config.items(), *(extra or {}).items()]
        return [*(f"{key}={override_value(value)}" for key, value in keys), *self.overrides]

    def config(
        self, task: str, method: str | None = None, seed: int | None = None, extra: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """Resolve the configuration of one of the figure's runs; method and seed default to its first ones.

        Raises:
            UsageError: a name, key or value is wrong.
        """
        return resolve(
            task=task,
            method=method or self.spec.methods[0],
            backbone=self.spec.backbone,
            protocol=self.spec.protocol,
            seed=self.spec.seeds[0] if seed is None else seed,
            overrides=self.all_overrides(extra),
        )
