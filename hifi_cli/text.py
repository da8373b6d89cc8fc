"""Texts of messages and tables: control characters, counts, lists, durations, cells of CSV."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

# Control characters but for tabs and line breaks, and those that override the direction of a text,
# so that it reads as another one.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of control characters: names in data or files of others may hold a terminal's.

    Likewise what overrides the direction of a text.
    """
    return _CONTROL.sub("\ufffd", text)


def counted_noun(count: int, noun: str) -> str:
    """Return a count with its noun: `1 epoch`, `2 epochs`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def abbreviate(names: Sequence[str], separator: str = ", ") -> str:
    """Return the names, of more than three the first three: `a, b, c and 4 more`."""
    shown = separator.join(names[:3])
    if len(names) <= 3:
        return shown
    return f"{shown} and {len(names) - 3:,} more"


def format_duration(seconds: float | None) -> str:
    """Return a duration as `h:mm:ss`; `?` where it is unknown."""
    if seconds is None:
        return "?"
    return str(timedelta(seconds=round(seconds)))


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def spreadsheet_cell(value: Any) -> Any:
    """Return a value for CSV, with a quote before a text that a spreadsheet would take for a formula.

    Such a text begins with =, +, - or @. In a run of others it may be one that sends what is in the
    other cells to somebody.
    """
    if not isinstance(value, str):
        return value
    begins_formula = value.startswith(("=", "+", "-", "@", "\t", "\r"))
    if not begins_formula or value == "-" or is_number(value):
        return value
    return f"'{value}"
