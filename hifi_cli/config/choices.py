"""The values that both configuration keys and command-line options choose from; importing them costs nothing."""

from typing import Literal

Ranking = Literal[
    "pagerank",
    "pagerank-personalized",
    "pagerank-literal",
    "pagerank-inverse",
    "richness",
    "richness-inverse",
    "correlation",
    "random",
]
Strategy = Literal["layerwise", "midtop", "global"]
Score = Literal["best", "last", "max"]
