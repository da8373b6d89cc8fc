"""A label as a data file has it: a name, a number, a list (also written as a text), or a vector of 0 and 1."""

import ast
import math
import re
from typing import Any

from hifi_cli.text import printable

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
# A number as people and programs write it besides: <0.1, 85.5%, 0,5 or 1.000,5.
_DECORATED = re.compile(r"[<>=≤≥~≈±$€£]*\s*[-+]?\d[\d.,' ]*([eE][-+]?\d+)?\s*[%‰$€£]?", re.ASCII)
_FLAT_LIST = re.compile(r"\[[^\[\]{}()]*\]")
_VECTOR = re.compile(r"[\[(]?\s*[01](\.0*)?([\s,;|]+[01](\.0*)?)+\s*[\])]?", re.ASCII)
# The spaces of ASCII: a no-break or ideographic space is part of a word.
SPACES = " \t\r\n"


def label_name(value: Any) -> str:
    """Return a label as printable text without spaces around it; True is `true`."""
    return printable((str(value).lower() if isinstance(value, bool) else str(value)).strip())


def is_missing(value: Any) -> bool:
    """Return whether a reader found no value: null, an empty text, or the number NaN.

    The texts `nan`, `NA` and `NULL` are names as any others.
    """
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_number(value: Any) -> float:
    """Return the number that a label is, or NaN."""
    name = label_name(value)
    return float(name) if _NUMBER.fullmatch(name) else math.nan


def is_decorated_number(value: Any) -> bool:
    """Return whether a label is a number with a sign of its unit or limit, or a decimal comma."""
    return _DECORATED.fullmatch(label_name(value)) is not None


def is_integer(value: Any) -> bool:
    """Return whether a label is an integer as indices are written: `0`, `12` or `-1`, not `01`."""
    return re.fullmatch(r"0|-?[1-9]\d*", label_name(value), re.ASCII) is not None


def list_in(value: Any) -> list[Any] | None:
    """Return the list that a value is, or that a text spells out: `['a', 'b']`; None if there is none."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not _FLAT_LIST.fullmatch(value.strip()):
        return None
    try:
        written = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return None
    return written if isinstance(written, list) else None


def vector_in(value: Any) -> list[int] | None:
    """Return a vector of two or more numbers 0 and 1, given as a list or as a text; None for others."""
    if isinstance(value, str):
        if not _VECTOR.fullmatch(value.strip()):
            return None
        value = re.findall(r"[01](?:\.0*)?", value)
    if not isinstance(value, list) or len(value) < 2:
        return None
    numbers = [as_number(int(part) if isinstance(part, bool) else part) for part in value]
    return [int(number) for number in numbers] if {*numbers} <= {0, 1} else None


def split_words(text: str) -> list[str]:
    """Split a text at spaces of ASCII; other spaces are part of a word."""
    return [word for word in re.split(f"[{SPACES}]+", text) if word]
