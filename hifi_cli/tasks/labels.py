"""A label as a data file has it: a name, a number, a list (also written as a text), or a vector of 0 and 1."""

import ast
import math
import re
from typing import Any

from hifi_cli.text import printable

# `re.ASCII` throughout: digits of other scripts are text.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"0|-?[1-9]\d*", re.ASCII)
# A number as people and programs write it besides: <0.1, 85.5%, 0,5 or 1.000,5.
_DECORATED = re.compile(r"[<>=≤≥~≈±$€£]*\s*[-+]?\d[\d.,' ]*([eE][-+]?\d+)?\s*[%‰$€£]?", re.ASCII)
# A part of a list that a text spells out: in quotes, as Python 2 wrote it too, or without a space.
_PART = re.compile(r"""u?'(?:[^'\\]|\\.)*'|u?"(?:[^"\\]|\\.)*"|[^\s,'"\[\](){}]+""")
# A list without lists in it. NumPy writes spaces between the parts, Python commas.
_FLAT_LIST = re.compile(rf"\[\s*(?:(?:{_PART.pattern})(?:\s*,\s*|\s+))*(?:{_PART.pattern})?\s*\]")
# Two or more numbers 0 and 1, in brackets or not: `[0, 1]`, `(0;1)`, `0 1`, `0.|1.`.
_VECTOR = re.compile(r"[\[(]?\s*[01](\.0*)?([\s,;|]+[01](\.0*)?)+\s*[\])]?", re.ASCII)
_PART_OF_VECTOR = re.compile(r"[01](?:\.0*)?")
# The spaces of ASCII: a no-break or ideographic space is part of a word.
SPACES = " \t\r\n"


def label_name(value: Any) -> str:
    """Return a label as printable text without spaces around it; True is `true`."""
    text = str(value)
    if isinstance(value, bool):
        # JSON and YAML write it so.
        text = text.lower()
    return printable(text.strip())


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
    if not _NUMBER.fullmatch(name):
        return math.nan
    return float(name)


def is_decorated_number(value: Any) -> bool:
    """Return whether a label is a number with a sign of its unit or limit, or a decimal comma."""
    return _DECORATED.fullmatch(label_name(value)) is not None


def is_integer(value: Any) -> bool:
    """Return whether a label is an integer as indices are written: `0`, `12` or `-1`, not `01`."""
    return _INTEGER.fullmatch(label_name(value)) is not None


def list_in(value: Any) -> list[Any] | None:
    """Return the list that a value is, or that a text spells out; None if there is none.

    Python writes a list as `['a', 'b']`, and pandas one of NumPy as `['a' 'b']`.
    """
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not _FLAT_LIST.fullmatch(value.strip()):
        return None
    # Python takes two texts without a comma for one.
    parts = ", ".join(_PART.findall(value))
    try:
        written: list[Any] = ast.literal_eval(f"[{parts}]")
    except (ValueError, SyntaxError):
        # Brackets around words without quotes are a text.
        return None
    return written


def vector_in(value: Any) -> list[int] | None:
    """Return a vector of two or more numbers 0 and 1, given as a list or as a text; None for others."""
    parts = value
    if isinstance(value, str):
        if not _VECTOR.fullmatch(value.strip()):
            return None
        parts = _PART_OF_VECTOR.findall(value)
    if not isinstance(parts, list) or len(parts) < 2:
        return None
    vector = []
    for part in parts:
        if isinstance(part, bool):
            part = int(part)
        number = as_number(part)
        if number not in (0, 1):
            return None
        vector.append(int(number))
    return vector


def split_words(text: str) -> list[str]:
    """Split a text at spaces of ASCII; other spaces are part of a word."""
    return [word for word in re.split(f"[{SPACES}]+", text) if word]


def words_in(text: str) -> list[str]:
    """Return the words of a list that a text spells out, or of the text, split at spaces of ASCII."""
    written = list_in(text)
    # Numbers in brackets are words as any others: `[ 1 ]` are three.
    if written and all(isinstance(word, str) for word in written):
        return written
    return split_words(text)
