"""Texts of messages and tables: control characters, command lines, counts, lists, durations, cells of CSV."""

import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import timedelta
from math import copysign
from typing import Any

# Control characters but for tabs and line breaks, and those that override the direction of a text,
# so that it reads as another one.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Python has a surrogate for a byte that is not UTF-8.
_SURROGATE = re.compile("[\ud800-\udfff]")
_SECONDS_PER_HOUR = 3600
# Rounding errors of a mean are smaller, and differences that a reader sees are larger.
_LESS_THAN_PRINTED = 1e-9


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of control characters: names in data or files of others may hold a terminal's.

    Likewise what overrides the direction of a text.
    """
    return _CONTROL.sub("\ufffd", text)


def well_formed(text: str) -> str:
    """Return a text with U+FFFD for each byte that is not UTF-8, as names of files may hold them."""
    return _SURROGATE.sub("\ufffd", text)


def command_line(words: Iterable[str]) -> str:
    """Return words quoted for a shell, on one line; U+FFFD stands for what cannot be printed."""
    letters = list(shlex.join(words))
    for index, letter in enumerate(letters):
        if not letter.isprintable():
            letters[index] = "\ufffd"
    return "".join(letters)


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


def format_number(value: float, form: str) -> str:
    """Return a number as every table and sentence prints it.

    Halves of the last decimal are rounded away from zero, as in both papers (55.95 is 56.0). A
    difference is thus printed with the same digits whichever of the two is named first.

    Args:
        value: the number.
        form: for `format`. With a fixed number of significant digits (`g`) nothing is added: a p
            value may be smaller than what moves a half.
    """
    if form.endswith("g"):
        return format(value, form)
    if abs(value) < _LESS_THAN_PRINTED:
        return format(0.0, form)
    return format(value + copysign(_LESS_THAN_PRINTED, value), form)


def format_interval(low: float, high: float, form: str) -> str:
    """Return an interval as `[low, high]`, with ends as `format_number` has them.

    An end below zero that rounds to zero keeps its sign, which says that the interval contains zero.
    """
    return f"[{format_number(low, form)}, {format_number(high, form)}]"


def format_duration(seconds: float | None) -> str:
    """Return a duration as `h:mm:ss`; `?` where it is unknown."""
    if seconds is None:
        return "?"
    return str(timedelta(seconds=round(seconds)))


def format_hours(seconds: float) -> str:
    """Return a duration as `h:mm:ss`, and from an hour on as hours: `31.2 hours`."""
    if seconds < _SECONDS_PER_HOUR:
        return format_duration(seconds)
    return f"{seconds / _SECONDS_PER_HOUR:,.1f} hours"


def format_bytes(size: float) -> str:
    """Return a number of bytes in the unit that keeps it short: `68 kB`, `91 MB`, `1.3 GB`."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    unit = units[0]
    digits = 1 if size < 9.95 and unit != "B" else 0
    return f"{size:,.{digits}f} {unit}"


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
