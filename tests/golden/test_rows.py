"""The rows of the official data files, as read: HIFI_DATA_DIR=path/to/glue_data make test-real."""

import os
from pathlib import Path

import frozen
import pytest
import rows


@pytest.mark.real
def test_every_official_file_gives_the_same_rows():
    """Files of which somebody has another excerpt are not compared: SQuAD's and SWAG's, for example."""
    assert os.environ.get("HIFI_DATA_DIR"), "HIFI_DATA_DIR must name the official download"
    expected, found = frozen.read("rows.json"), rows.digests(Path(os.environ["HIFI_DATA_DIR"]))
    compared = [
        (task, split)
        for task, splits in expected.items()
        for split, golden in splits.items()
        if found.get(task, {}).get(split, {}).get("rows") == golden["rows"]
    ]
    assert {("rte", "train"), ("mrpc", "train"), ("cola", "validation"), ("stsb", "train")} <= set(
        compared
    )
    assert [
        (task, split) for task, split in compared if found[task][split] != expected[task][split]
    ] == []
