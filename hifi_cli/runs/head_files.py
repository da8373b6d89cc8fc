"""Stored files about attention heads: their scores, their measured values, and the selected ones."""

import numpy as np
from pydantic import ConfigDict

from hifi_cli.heads.ranking import Array
from hifi_cli.methods.base import Heads
from hifi_cli.records.record import StoredFile

LayerValues = list[list[float]]


class HeadFile(StoredFile):
    """A file about the heads of a backbone on a task; other keys say how its numbers came about."""

    model_config = ConfigDict(extra="allow")

    backbone: str
    task: str


class HeadScores(HeadFile):
    """Information richness and correlation of every attention head.

    Attributes:
        samples: number of training samples.
        richness: I_h, mean over the samples [layers, heads].
        richness_std: its standard deviation over the samples [layers, heads].
        correlation: r_hh', mean over the samples [layers, heads, heads].
    """

    samples: int
    richness: LayerValues
    richness_std: LayerValues
    correlation: list[LayerValues]

    @property
    def arrays(self) -> tuple[Array, Array]:
        """I_h [layers, heads] and r_hh' [layers, heads, heads]."""
        return np.array(self.richness), np.array(self.correlation)


class HeadImportance(HeadFile):
    """One value of every attention head, by which a measured ranking ranks them.

    Attributes:
        values: mean over the samples [layers, heads].
    """

    samples: int
    values: LayerValues


class HeadSelection(HeadFile):
    """The attention heads to tune; the other keys are those of `HeadsConfig` and `ChosenHeads`.

    Attributes:
        heads: a list for each layer.
        ties: layers in which equal values were ordered by head number.
    """

    rank: str
    heads: Heads
    ties: list[int]
