"""Texts of messages and tables: control characters, numbers of things, durations."""

import re
from collections.abc import Sequence
from datetime import timedelta

# All but tabs and line breaks; and what turns the direction of a text, so that it reads as another one.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of control characters: names in data or files of others may hold a terminal's.

    Likewise what overrides the direction of a text.
    """
    return _CONTROL.sub("\ufffd", text)


def counted_noun(count: int, noun: str) -> str:
    """Return a count with its noun: `1 epoch`, `2 epochs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def abbreviate(names: Sequence[str], separator: str = ", ") -> str:
    """Return the names, of more than three the first three: `a, b, c and 4 more`."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{separator.join(names[:3])}{more}"


def format_duration(seconds: float | None) -> str:
    """`h:mm:ss`; `?` where it is unknown."""
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))
