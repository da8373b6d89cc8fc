"""The commands that a table prints for its missing runs make them."""

import json
from pathlib import Path

from hifi_cli.config import registry


def test_the_command_of_a_missing_run_repeats_the_keys_of_the_others(tiny, hifi, data):
    """Without them it would make a run that the table leaves out, and print the same command again."""
    assert tiny("train", "--method", "bitfit", "--seeds", "1,2", "learning_rate=3e-4").code == 0
    assert tiny("train", "--method", "full-ft", "--seeds", "1,2,3").code == 0
    (missing,) = json.loads(hifi("table", "--format", "json").out)["missing"]
    assert "--from results/runs/" in missing["command"] and "--seeds 3" in missing["command"]
    answer = hifi(*missing["command"].split()[1:], "--data-dir", data)
    assert answer.code == 0, answer.err
    assert json.loads(hifi("table", "--format", "json").out)["missing"] == []


def test_so_does_that_of_a_users_own_data(hifi):
    rows = [f"{word} {side},{side}" for word in "abcdefghij" for side in ("good", "bad")]
    Path("own.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = ("train", "--task", "own.csv", "--backbone", "demo", "--protocol", "demo", "epochs=1")
    assert hifi(*words, "--method", "linear-probing", "--seeds", "1,2").code == 0
    assert hifi(*words, "--method", "bitfit").code == 0
    registry._user_files.clear()  # as in a new process
    (missing,) = json.loads(hifi("table", "--format", "json").out)["missing"]
    assert missing["command"] == "hifi train --from results/runs/demo/demo/own/bitfit/seed1 --seeds 2"
    assert hifi(*missing["command"].split()[1:]).code == 0
    assert json.loads(hifi("table", "--format", "json").out)["missing"] == []
