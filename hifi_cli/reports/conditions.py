"""Which runs may be compared: what runs of different methods must agree in, and what is said where they do not."""

from hifi_cli.config.choices import Score
from hifi_cli.reports.run_records import RunRecord


def disagreement(first: RunRecord, second: RunRecord, score: Score | None) -> str:
    """The conditions in which two runs do not agree, with both values; empty where they do.

    Args:
        score: the epoch whose score is compared; with one asked for, the epoch that each run reports does not matter.
    """
    ours, theirs = first.conditions, second.conditions
    keys = [key for key in ours if ours[key] != theirs[key] and not (score and key == "reported epoch")]
    return ", ".join(key if key == "data" else f"{key} ({_word(ours[key])} and {_word(theirs[key])})" for key in keys)


def _word(value: object) -> str:
    return "none" if value in (None, False) else str(value)
