"""The components that draw random numbers in a run, by its configuration."""

import pytest

from hifi_cli.config.draws import COMMON_DRAWS, changed_draws, draws_of
from hifi_cli.config.sources import resolve

ALWAYS = {"order of data", "task head"}
DROPOUT = "dropout on cpu"


@pytest.mark.parametrize(
    ("method", "words", "others"),
    [
        ("full-ft", [], {DROPOUT}),  # the encoder's own dropout
        ("full-ft", ["dropout=0.1"], {DROPOUT}),
        ("full-ft", ["dropout=0"], set()),
        ("full-ft", ["dropout=0", "selection=holdout"], {"holdout"}),
        # Few-shot rows that select the epoch are drawn with the others.
        ("full-ft", ["dropout=0", "selection=holdout", "shots=16"], {"few-shot rows"}),
        ("lora", ["dropout=0"], {"method lora"}),
        ("hifi-layerwise", ["dropout=0"], {"samples that score heads"}),
        ("hifi-layerwise", ["dropout=0", "heads.rank=random"], {"choice of heads"}),
        ("hifi-layerwise", ["dropout=0", "heads.given=[[0]]"], set()),
        ("eh-ft", ["dropout=0", "stage1.method=lora"], {"method lora"}),
    ],
)
def test_a_run_names_what_it_draws(method, words, others):
    config = resolve(task="rte", method=method, overrides=words)
    draws = draws_of(config, ["cpu"], selects_heads=method.startswith("hifi"))
    assert draws.keys() == ALWAYS | others
    assert changed_draws(draws) == {}


def test_draws_of_other_versions_and_unknown_ones_are_changed():
    assert changed_draws({"order of data": 0, "task head": 1, "tea leaves": 1}) == {
        "order of data": 0,
        "tea leaves": 1,
    }
    assert {"order of data", "task head"} <= COMMON_DRAWS
    assert "choice of heads" not in COMMON_DRAWS
