"""How messages show counts and durations."""


def counted_noun(count: int, noun: str) -> str:
    """Return a count with its noun: `1 epoch`, `2 epochs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_duration(seconds: float | None) -> str:
    """`m:ss`, or `h:mm:ss`; `?` where it is unknown."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
