"""What became of a run or a file of results that was pushed or pulled."""

from enum import StrEnum


class TransferState(StrEnum):
    """What became of a run or a file."""

    COPIED = "copied"
    SAME = "same"
    """It was there before, with the same content."""
    CONFLICT = "conflict"
    """Other content is at the same path."""
    REFUSED = "refused"
    """It is damaged, or names code that is not trusted."""
