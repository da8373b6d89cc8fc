"""Equal tuning: as many settings for every method of a search, chosen on examples whose scores are not reported."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value
from hifi_cli.errors import UsageError

Setting = tuple[tuple[str, str], ...]


def sample_settings(varied: Mapping[str, Sequence[object]], trials: int | None) -> list[Setting]:
    """Return settings of a method in the grid's order: every combination, or `trials` random ones.

    The seed is fixed, so methods with the same keys and values get the same settings, and a search with more trials contains
    the settings of one with fewer.

    Args:
        varied: the keys that vary, and their values.
        trials: number of settings; None or more than there are: every combination.
    """
    keys = tuple(varied)
    combinations = [tuple(zip(keys, map(override_value, values), strict=True)) for values in product(*varied.values())]
    if trials is None:
        return combinations
    order = list(range(len(combinations)))
    random.Random(1).shuffle(order)
    return [combinations[index] for index in sorted(order[:trials])]


def refuse_too_few(counts: Mapping[str, int], trials: int, grid: str) -> None:
    """Refuse a search in which a method has fewer settings than trials.

    Args:
        counts: number of settings of each method.

    Raises:
        UsageError: names these methods.
    """
    if too_few := {method: count for method, count in counts.items() if count < trials}:
        numbers = ", ".join(f"{method} has {count}" for method, count in too_few.items())
        raise UsageError(
            f"grid {grid}: {trials} trials per method, but there are fewer settings ({numbers}): use --trials"
            f" {min(too_few.values())}, add values under vary, or name other --methods"
        )


def refuse_reported_split(configs: Iterable[RunConfig], grid: str) -> None:
    """Refuse a search that would choose a setting by the scores that are reported.

    Raises:
        UsageError: names the keys to set.
    """
    for config in configs:
        remedies = ["selection=holdout"] if config.selection == "validation" and not config.shots else []
        remedies += ["report=best"] if config.report == "max" else []
        if remedies:
            raise UsageError(
                f"grid {grid}: its settings would be chosen on the split whose scores are reported, which makes them look"
                f" too good: add {' '.join(remedies)}"
            )
