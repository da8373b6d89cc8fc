"""The CSV of predictions: the user's cells as they are."""

import json

from hifi_cli.tasks.file_formats import read
from hifi_cli.tasks.prediction_table import csv_text


def test_the_users_cells_stay_as_they_are(tmp_path):
    """An integer beside an empty cell is no fraction, a large id keeps its digits, and the file can be read."""
    texts = ["a\rb", 'c, "d"\n', " ", "e"]
    ids = [1234567890123456789, None, 7, None]
    rows = [{"id": id_, "text": text} for id_, text in zip(ids, texts, strict=True)]
    rows[3] = {"text": "e", "score": float("nan"), "stars": 5}
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    users = [record.values for record in read(tmp_path / "new.jsonl", "jsonl")]
    predictions = [{"prediction": label} for label in ("x", ["x", "y"], "=x", 0.1)]
    (tmp_path / "said.csv").write_text(csv_text(users, predictions), newline="")
    said = [record.values for record in read(tmp_path / "said.csv", "csv")]
    assert [row["id"] for row in said] == ["1234567890123456789", "", "7", ""]
    assert [row["text"] for row in said] == texts
    assert [row["prediction"] for row in said] == ["x", "x|y", "'=x", "0.1"]
    assert [(row["score"], row["stars"]) for row in said] == [("", "")] * 3 + [("", "5")]
