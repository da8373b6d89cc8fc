"""The files of attention heads: their scores, and the heads chosen by them."""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt, model_validator

from hifi_cli.files import digest
from hifi_cli.results.record import Provenance
from hifi_cli.results.stored_file import Record, StoredFile

LayerValues = list[list[float]]
PairValues = list[list[list[float]]]


def scores_digest(backbone: str, task: str, richness: LayerValues, correlation: PairValues) -> str:
    """The SHA-256 that names a scoring, whatever machine or version made it."""
    return digest([backbone, task, richness, correlation], 64)


class MeasuredHeads(StoredFile):
    """What all measurements of a backbone's attention heads on a task's training samples have in common.

    Attributes:
        samples: number of training samples.
        max_length, seed, warm_steps: see `ScoringConfig`.
        data: fingerprint of the train split.
    """

    description: ClassVar[str] = "scores"
    remedy: ClassVar[str] = "delete it and score again"

    backbone: str
    task: str
    max_length: int
    seed: int
    warm_steps: int
    samples: int
    num_layers: PositiveInt
    num_heads: PositiveInt
    backbone_weights_id: str
    data: str
    provenance: Provenance


class HeadScores(MeasuredHeads):
    """Information richness and correlation of every attention head of a backbone on a task.

    Attributes:
        xi: see `ScoringConfig`.
        richness: I_h, mean over the samples [layers, heads].
        richness_std: its standard deviation over the samples [layers, heads].
        correlation: r_hh', mean over the samples [layers, heads, heads].
        sha256: see `scores_digest`.
        run: directory of the finished run whose model was scored instead of the pretrained one.
    """

    xi: float
    richness: LayerValues
    richness_std: LayerValues
    correlation: PairValues
    sha256: str
    run: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        shape = (self.num_layers, self.num_heads)
        arrays = (self.richness_array, self.richness_std_array, self.correlation_array)  # ValueError for a ragged list
        if [array.shape for array in arrays] != [shape, shape, (*shape, self.num_heads)]:
            raise ValueError(f"scores of {self.num_layers} layers with {self.num_heads} heads each are expected")
        if self.sha256 != scores_digest(self.backbone, self.task, self.richness, self.correlation):
            raise ValueError("sha256 is not that of the scores")
        return self

    @cached_property
    def richness_array(self) -> NDArray[np.float64]:
        """I_h [layers, heads]."""
        return np.array(self.richness)

    @cached_property
    def richness_std_array(self) -> NDArray[np.float64]:
        """Standard deviation of I_h [layers, heads]."""
        return np.array(self.richness_std)

    @cached_property
    def correlation_array(self) -> NDArray[np.float64]:
        """r_hh' [layers, heads, heads]."""
        return np.array(self.correlation)


class HeadImportance(MeasuredHeads):
    """One value of every attention head of a backbone on a task, by which a measured ranking ranks them.

    Attributes:
        rank: the ranking, one of `MeasuredRanking`.
        values: mean over the samples [layers, heads].
    """

    rank: str
    values: LayerValues

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.array.shape != (self.num_layers, self.num_heads):  # ValueError for a ragged list
            raise ValueError(f"values of {self.num_layers} layers with {self.num_heads} heads each are expected")
        return self

    @cached_property
    def array(self) -> NDArray[np.float64]:
        """The values [layers, heads]."""
        return np.array(self.values)

    @property
    def sha256(self) -> str:
        """The SHA-256 that names these values, whatever machine or version measured them."""
        return digest([self.backbone, self.task, self.rank, self.values], 64)


class Overlap(Record):
    """How many of each layer's chosen heads one signal alone would choose too."""

    richness: list[int]
    correlation: list[int]


class HeadSelection(StoredFile):
    """The attention heads to tune, and what drove the choice; every list has one entry per layer.

    Attributes:
        rank, strategy, k, damping, epsilon: see `HeadsConfig`.
        seed: of `random`; None for other rankings, which do not draw.
        heads: chosen heads, ascending; empty for a frozen layer.
        values: the ranking's value of every head.
        iterations: PageRank's steps; 0 for other rankings.
        ties: layers in which the lower head number decided between equal values.
        scores_sha256: `sha256` of the scores.
        importance_sha256: `sha256` of what was measured; None for rankings that follow from the scores.
    """

    description: ClassVar[str] = "heads"
    remedy: ClassVar[str] = "delete it and select again"

    backbone: str
    task: str
    num_heads: PositiveInt
    rank: str
    strategy: str
    k: int
    damping: float
    epsilon: float
    seed: int | None = None
    heads: list[list[int]]
    values: LayerValues
    iterations: list[int]
    ties: list[int]
    overlap: Overlap
    scores_sha256: str
    importance_sha256: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        lists: tuple[Sequence[object], ...] = (self.values, self.iterations, self.overlap.richness, self.overlap.correlation)
        if not self.heads or any(len(values) != len(self.heads) for values in lists):
            raise ValueError("heads, values, iterations and overlap must hold one entry per layer")
        if any(len(values) != self.num_heads for values in self.values):
            raise ValueError("values must hold one number per head")
        if any(not 0 <= head < self.num_heads for heads in self.heads for head in heads):
            raise ValueError(f"heads must be between 0 and {self.num_heads - 1}")
        if any(heads != sorted(set(heads)) for heads in self.heads):
            raise ValueError("the heads of a layer must be ascending, each of them once")
        return self
