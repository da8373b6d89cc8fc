"""With how many seeds a claim can be decided at all."""

from dataclasses import dataclass

from hifi_cli.paired_tests import LEVEL, seeds_that_reach
from hifi_cli.reports.claims.spec import Claim, ClaimsFile, NumberClaim, tasks_of


@dataclass(frozen=True)
class SmallestSeeds:
    """The smallest numbers of seeds per task, if every task counts and all differences have one sign.

    Attributes:
        to_reproduce: every comparison is shown at the whole level; None: the number is not of runs
            with seeds, or no task is asked about.
        to_refute: one comparison is shown at the level divided by their number; None likewise.
    """

    to_reproduce: int | None
    to_refute: int | None


def smallest_seeds(claim: Claim, file: ClaimsFile) -> SmallestSeeds:
    """Return the smallest numbers of seeds that can reproduce and that can refute a claim."""
    if isinstance(claim, NumberClaim) and claim.figure and "seed" not in claim.per:
        return SmallestSeeds(None, None)
    comparisons, tasks = _comparisons_and_tasks(claim, file)
    # A claim about every task has no comparison where none of its tasks is asked about.
    if not tasks or not comparisons:
        return SmallestSeeds(None, None)
    return SmallestSeeds(
        to_reproduce=seeds_that_reach(LEVEL, tasks),
        to_refute=seeds_that_reach(LEVEL / comparisons, tasks),
    )


def _comparisons_and_tasks(claim: Claim, file: ClaimsFile) -> tuple[int, int]:
    """Return how many comparisons decide a claim, and over how many tasks each of them is."""
    if isinstance(claim, NumberClaim):
        comparisons = 1 if claim.figure else len(claim.methods)
        return comparisons, len(tasks_of(claim, file))
    pairs_of_methods = len(claim.first) * len(claim.second)
    tasks = len(tasks_of(claim, file))
    if claim.every_task:
        # Each task is a comparison of its own.
        return pairs_of_methods * tasks, 1
    return pairs_of_methods, tasks
