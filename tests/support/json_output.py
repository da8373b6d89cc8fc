"""What a command prints with --format json."""

import json


def printed(answer):
    """The JSON that a command printed."""
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def tables_of(answer):
    """The tables that `hifi table` printed; each row has its `cells` by column (value, std, notes) and `scores` by seed."""
    content = printed(answer)
    tables = content if isinstance(content, list) else [content]
    for table in tables:
        for row in table["rows"]:
            keys = [key for key in row if key not in ("method", "label", "source", "notes")]
            notes = row.pop("notes", {})
            row["notes"] = notes.get("row", [])
            row["cells"] = {
                key: {"value": row[key], "std": row.get(f"{key}_std"), "notes": notes.get(key, [])}
                for key in keys
                if not key.endswith(("_std", "_seeds"))
            }
            row["scores"] = {}
            for run in table.get("scores", []):
                if run["method"] == row["method"] and row["source"] in ("runs", "test server"):
                    row["scores"].setdefault(run["column"], []).append(run["score"])
    return tables


def table_of(answer):
    """The one table that `hifi table` printed."""
    (table,) = tables_of(answer)
    return table


def claim_of(answer, name="mine"):
    """The row of a claim, its note, and what is missing."""
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    row = next(row for row in content["rows"] if row["label"] == name)
    (note,) = [note for note in content["notes"] if note.startswith(f"{name}: ")]
    return row, note.removeprefix(f"{name}: "), content["missing"]
