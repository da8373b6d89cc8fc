"""The values that both configuration keys and command-line options choose from; importing them costs nothing."""

from typing import Literal

# Kinds of tasks whose head reads the states of all tokens.
TOKEN_KINDS = ("span", "token-classification")

# Rankings by one value per head that is measured on the model (`hifi_cli.heads.measures`); the highest are preferred.
MeasuredRanking = Literal["gradient", "ablation", "fisher", "confidence", "entropy", "output-norm"]
# All rankings; those that are not measured follow from the scores of equations 1 to 7 (`hifi_cli.heads.ranking`).
Ranking = Literal[
    "pagerank",
    "pagerank-personalized",
    "pagerank-literal",
    "pagerank-inverse",
    "richness",
    "richness-inverse",
    "correlation",
    "random",
    "first",
    MeasuredRanking,
]
Strategy = Literal["layerwise", "midtop", "global"]
Score = Literal["best", "last", "max"]
RunSortKey = Literal["path", "state", "task", "method", "seed", "score", "time"]
TRACKERS = ("tensorboard", "wandb", "trackio")
