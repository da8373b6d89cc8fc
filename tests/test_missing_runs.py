"""The commands that a table prints for its missing runs make them."""

import json


def test_the_command_of_a_missing_run_repeats_the_keys_of_the_others(tiny, hifi, data):
    """Without them it would make a run that the table leaves out, and print the same command again."""
    assert tiny("train", "--method", "bitfit", "--seeds", "1,2", "learning_rate=3e-4").code == 0
    assert tiny("train", "--method", "full-ft", "--seeds", "1,2,3").code == 0
    (missing,) = json.loads(hifi("table", "--format", "json").out)["missing"]
    assert "--from results/runs/" in missing["command"] and "--seeds 3" in missing["command"]
    answer = hifi(*missing["command"].split()[1:], "--data-dir", data)
    assert answer.code == 0, answer.err
    assert json.loads(hifi("table", "--format", "json").out)["missing"] == []
