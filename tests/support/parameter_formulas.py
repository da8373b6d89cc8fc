"""How many numbers each method trains in the backbone, as closed formulas of the encoder's shape."""

import math
from dataclasses import dataclass

from hifi_cli.config.specs import method_spec


@dataclass(frozen=True)
class Shape:
    """An encoder and the methods' sizes: L layers of H heads, D wide, F inside the feed-forward network, E in embeddings."""

    L: int
    H: int
    D: int
    F: int
    E: int
    k: int = 3
    top: int = 3
    rank: int = 8
    bottleneck: int = 64
    reduction: int = 32
    n: int = 4
    prefix: int = 16
    mlp: int = 512
    lines: int = 3
    child: float = 0.3
    diff: float = 0.005
    circulant: int = 64

    @property
    def biases(self):
        return (
            4 * self.D + self.F + self.D + 2 * self.D
        )  # of a layer: projections, feed-forward, two LayerNorms

    @property
    def layer(self):
        return 4 * self.D**2 + 2 * self.D * self.F + self.biases + 2 * self.D

    @property
    def backbone(self):
        return self.E + self.L * self.layer

    @property
    def rows(self):
        return 3 * self.k * self.D // self.H * (self.D + 1)  # of a layer: Q, K and V, with biases

    @property
    def norms(self):
        return (2 * self.L + 1) * 2 * self.D

    @property
    def low_rank(self):
        return self.L * 2 * self.rank * 2 * self.D  # query and key, A and B

    @property
    def pair(self):
        return 2 * self.L  # matrices, [D, D]: query and value of every layer

    @property
    def chosen_rows(self):
        return self.k * self.D // self.H  # of a matrix

    @property
    def all_outputs(self):
        return 4 * self.D + self.F + self.D  # of a layer's six matrices

    @property
    def lokr(self):
        """LoKr's two factors of a [D, D]: [a, a], and [b, b] or its rank-r product, where a b = D and a <= b are close."""
        a = max(size for size in range(1, math.isqrt(self.D) + 1) if self.D % size == 0)
        b = self.D // a
        return a * a + (2 * b * self.rank if self.rank < b / 2 else b * b)

    def kronecker(self, width):
        return (
            2 * (self.D + width) + self.D + width
        )  # of a bottleneck: two layers of s and t, and their biases


FORMULAS = {
    "full-ft": lambda s: s.backbone,
    "linear-probing": lambda s: 0,
    "top-k": lambda s: s.top * s.layer,
    "bitfit": lambda s: s.L * s.biases + s.D,  # and the embeddings' LayerNorm
    "lora": lambda s: s.low_rank,
    "adapter": lambda s: s.norms + s.L * 2 * (2 * s.D * s.bottleneck + s.bottleneck + s.D),
    "compacter": lambda s: s.norms + s.n**3 + s.L * 2 * s.kronecker(s.D // s.reduction),
    "prefix-tuning": lambda s: s.L * 2 * s.prefix * s.D,
    "prefix-tuning-mlp": lambda s: s.prefix * s.D + (s.D + 1) * s.mlp + (s.mlp + 1) * s.L * 2 * s.D,
    "child-tuning-f": lambda s: s.backbone,
    "child-tuning-d": lambda s: s.E + round(s.child * s.L * s.layer),
    "random-parameters": lambda s: s.L * s.biases,
    "mixout": lambda s: s.backbone,
    "diff-pruning": lambda s: round(s.diff * s.backbone),
    "hifi-layerwise": lambda s: s.L * s.rows,
    "hifi-midtop": lambda s: s.L // 2 * s.rows,
    "rocoft-row": lambda s: (
        s.L * (s.lines + 1) * (5 * s.D + s.F)
    ),  # rows or columns and biases of six matrices
    "rslora": lambda s: s.low_rank,
    "peft": lambda s: s.low_rank,  # LoRA, with peft's rank of 8
    "dora": lambda s: s.low_rank + s.pair * s.D,  # and the norms of the columns
    "pissa": lambda s: s.low_rank,
    "olora": lambda s: s.low_rank,
    "adalora": lambda s: (
        s.L * 12 * (4 * (2 * s.D + 1) + 2 * (s.D + s.F + 1))
    ),  # P, E and Q of six matrices
    "ia3": lambda s: s.L * (2 * s.D + s.F),
    "vera": lambda s: s.pair * (256 + s.D),
    "oft": lambda s: s.pair * s.D // 32 * (32 * 31 // 2),  # skew-symmetric blocks
    "boft": lambda s: s.pair * (s.D * 8 + s.D),  # blocks, and a scale of every output
    "hra": lambda s: s.pair * s.D * 8,
    "fourierft": lambda s: s.pair * 1000,
    "loha": lambda s: s.pair * 4 * s.D * s.rank,
    "lokr": lambda s: s.pair * s.lokr,
    "randlora": lambda s: s.pair * math.ceil(s.D / 32) * (s.D + 32),
    "road": lambda s: s.L * s.all_outputs,  # an angle and a scale of every pair of outputs
    "shira": lambda s: s.pair * 2 * s.D * s.rank,
    "c3a": lambda s: s.pair * s.D * s.D // s.circulant,
    "waveft": lambda s: s.pair * 1000,
    "ln-tuning": lambda s: s.norms,
    "hifi-lora": lambda s: s.pair * s.rank * (s.D + s.chosen_rows),
    "hifi-dora": lambda s: s.pair * (s.rank * (s.D + s.chosen_rows) + s.chosen_rows),
    "hifi-ia3": lambda s: s.pair * s.chosen_rows,
    "lp-ft": lambda s: s.backbone,
    "eh-ft": lambda s: s.backbone,
    "eh-ft-bitfit": lambda s: s.backbone,
    "eh-ft-bitfit-reserve": lambda s: s.backbone,
    "eh-ft-lora": lambda s: s.backbone,
    "eh-ft-lora-reserve": lambda s: s.backbone + s.low_rank,
    "eh-ft-prefix": lambda s: s.backbone,
    "eh-ft-prefix-reserve": lambda s: s.backbone + s.L * 2 * 16 * s.D,
    "eh-ft-hifi": lambda s: s.backbone,
    "eh-ft-random": lambda s: s.backbone,
}


def trained_count(method, shape):
    """How many numbers of the backbone a method trains; a variation without a formula of its own has its base's."""
    while method not in FORMULAS:
        method = method_spec(method).base
    return FORMULAS[method](shape)


def stored_count(method, shape):
    """How many numbers of the backbone a delta stores: of prefix-tuning-mlp the prefix, not the MLP that made it."""
    return trained_count("prefix-tuning" if method == "prefix-tuning-mlp" else method, shape)
