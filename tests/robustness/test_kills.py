"""Commands that are killed at seeded moments leave what undisturbed ones leave: one sequence each."""

import kills
import pytest


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["train", "grid", "score", "merge", "pack", "export"])
def test_a_killed_command_ends_as_an_undisturbed_one(tmp_path, name):
    outcomes = kills.disturb_all(tmp_path, kills=1, seed=1, names=[name])
    assert outcomes[name].kills.total() >= 1
    assert outcomes[name].problems == []
