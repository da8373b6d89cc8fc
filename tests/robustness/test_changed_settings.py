"""Runs whose settings are not their protocol's are named as such wherever their scores are shown."""

import json

import pytest
from json_output import table_of

HOW = [
    "eval_batch_size=7",
    "gradient_accumulation_steps=2",
    "log_every=1",
    "kernels=torch",
    "padding_free=false",
    "device=cpu",
]
NOTE = "2 runs with other settings than the protocol's: learning_rate 1e-05 (protocol: 2e-05), epochs 1 (protocol: 5)"


@pytest.fixture
def train(hifi, encoders, data):
    """`hifi train` on the tiny BERT and RTE, with the protocol's settings where none are given."""

    def run(*words):
        answer = hifi(f"train --task rte --backbone {encoders['bert']} --data-dir {data}", *words)
        assert answer.code == 0, answer.err

    return run


def notes_of(hifi, *words):
    """The notes of the cells of RTE in a table that name changed settings, by method."""
    rows = table_of(hifi("table", *words, "--format", "json"))["rows"]
    return {
        row["method"]: [
            note for note in row["cells"]["rte"].get("notes", []) if "protocol's" in note
        ]
        for row in rows
    }


def test_a_cell_and_a_comparison_name_the_changed_keys_and_not_limits_or_shots(hifi, train):
    train("--method", "linear-probing", "--seeds", "1,2", "limit=8", *HOW)
    train("--method", "full-ft", "--seeds", "1,2", "limit=8", "learning_rate=1e-5", "epochs=1")
    train("--method", "bitfit", "shots=4")
    assert notes_of(hifi, "--include", "limited", "--shots", "full") == {
        "full-ft": [NOTE],
        "linear-probing": [],
    }
    assert notes_of(hifi, "--shots", "4") == {"bitfit": []}
    words = "linear-probing full-ft --include unequal --include limited --shots full --format json".split()
    compared = json.loads(hifi("compare", *words).out)[0]
    assert [note for note in compared["notes"] if "protocol's:" in note] == [
        f"Full-FT on RTE: {NOTE}"
    ]
