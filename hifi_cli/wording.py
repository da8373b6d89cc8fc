"""How messages name counts."""


def counted_noun(count: int, noun: str) -> str:
    """Return a count with its noun: `1 epoch`, `2 epochs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
