"""How messages show counts, lists of numbers and durations."""

import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of control characters: names in data or files of others may hold a terminal's."""
    return _CONTROL.sub("\ufffd", text)


def counted_noun(count: int, noun: str) -> str:
    """Return a count with its noun: `1 epoch`, `2 epochs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_of(names: Sequence[str], separator: str = ", ") -> str:
    """Return the names, of more than three the first three: `a, b, c and 4 more`."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{separator.join(names[:3])}{more}"


def number_ranges(numbers: Iterable[int]) -> str:
    """Return distinct numbers as `--seeds` accepts them: `1,2,3`, from four consecutive ones on a range, `1-5,8`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 3 else ",".join(map(str, run)) for run in ranges)


def format_duration(seconds: float | None) -> str:
    """`m:ss`, or `h:mm:ss`; `?` where it is unknown."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
