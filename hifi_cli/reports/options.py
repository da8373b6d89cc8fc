"""Options of all tables of one command."""

from collections.abc import Collection
from dataclasses import dataclass

from hifi_cli.config.epoch_rule import EpochChoice

# Flags that do not exclude a run. Runs with changed settings count, and are named in a footnote.
# Collapsed runs have no flag and always count: dropping them would favour unstable methods.
INCLUDED_BY_DEFAULT = frozenset({"changed"})


@dataclass(frozen=True)
class ReportOptions:
    """Options that apply to every table, comparison and claim of a command.

    Attributes:
        epoch_choice: the epoch whose score is shown; None: the one that each run's protocol reports.
        included: flags (`limited`, `unequal`, `draws`, `changed`) of runs that count.
        show_published: whether tables show the papers' numbers too.
        show_intervals: whether means of tables of scores have intervals in place of deviations.
    """

    epoch_choice: EpochChoice | None = None
    included: frozenset[str] = INCLUDED_BY_DEFAULT
    show_published: bool = False
    show_intervals: bool = False


def flags_that_count(include: Collection[str] | None) -> frozenset[str]:
    """Return the flags of runs that count: the default ones, and those of `--include`."""
    return INCLUDED_BY_DEFAULT.union(include or ())
