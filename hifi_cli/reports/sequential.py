"""Levels for repeated looks at growing results, so that the error over all looks stays at the declared one.

Alpha spending (Lan and DeMets 1983) with the O'Brien-Fleming-type function: little of the error is spent at early looks. The
looks are declared before the first one. The bounds are those of a normal statistic with independent increments; their nominal
two-sided levels are used with the t-interval and the sign-flip test (Jennison and Turnbull 2000, section 3.8).
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from scipy import special
from scipy.optimize import brentq

from hifi_cli.reports.statistics import LEVEL, Floats

LOOKS = 5
_POINTS = 401  # of the grid of integration; an odd number, for Simpson's rule
_HIGHEST_BOUND = 8.0  # a normal statistic above it has a probability of 1e-15


def declared_looks(first: int, last: int, count: int = LOOKS) -> list[int]:
    """Return the seeds per task at which results are looked at: evenly spaced, the first with at least `first` seeds."""
    looks = {max(first, round(last * number / count)) for number in range(1, count + 1)}
    return sorted(number for number in looks if number <= last)


def alpha_spent(fraction: float, level: float = LEVEL) -> float:
    """Return the error that is spent when a fraction of all data has been looked at, on both sides together."""
    return float(4 * special.ndtr(special.ndtri(level / 4) / fraction**0.5))


def look_bounds(fractions: Sequence[float], level: float = LEVEL) -> list[float]:
    """Return the bound of the absolute normal statistic at each look.

    Args:
        fractions: of all data at each look, rising to 1.
    """
    bounds: list[float] = []
    for number, fraction in enumerate(fractions):
        previous = alpha_spent(fractions[number - 1], level) if number else 0.0
        target = alpha_spent(fraction, level) - previous

        def excess(bound: float, target: float = target, number: int = number) -> float:
            upper, lower = crossing_probabilities([*bounds, bound], fractions[: number + 1])
            return float(upper[-1] + lower[-1] - target)

        high = excess(_HIGHEST_BOUND)
        bounds.append(_HIGHEST_BOUND if high >= 0 else float(brentq(excess, 0.5, _HIGHEST_BOUND, xtol=1e-6)))
    return bounds


def look_levels(looks: Sequence[int], level: float = LEVEL) -> list[float]:
    """Return the two-sided level of the test at each look, which has so many seeds per task."""
    return [2 * float(special.ndtr(-bound)) for bound in look_bounds([look / looks[-1] for look in looks], level)]


def level_at(looks: Sequence[int], number: int) -> Callable[[int], float]:
    """Return the level of a comparison at a look (from 1), by the number of comparisons: 5 % for all of them and all looks."""
    return lambda comparisons: _cached_levels(tuple(looks), LEVEL / comparisons)[number - 1]


@cache
def _cached_levels(looks: tuple[int, ...], level: float) -> list[float]:
    return look_levels(looks, level)


def crossing_probabilities(bounds: Sequence[float], fractions: Sequence[float], drift: float = 0.0) -> tuple[Floats, Floats]:
    """Return the probabilities of first being above the upper and below the lower bound, by look.

    Args:
        drift: expected statistic when all data are there.
    """
    upper, lower = np.zeros(len(bounds)), np.zeros(len(bounds))
    points, density, before = np.zeros(1), np.ones(1), 0.0  # weighted density of the sum so far, on a grid
    for number, (bound, fraction) in enumerate(zip(bounds, fractions, strict=True)):
        step, edge = fraction - before, bound * fraction**0.5
        moved = points + drift * step
        upper[number] = density @ special.ndtr((moved - edge) / step**0.5)
        lower[number] = density @ special.ndtr((-edge - moved) / step**0.5)
        grid = np.linspace(-edge, edge, _POINTS)
        weights = np.full(_POINTS, 2.0)
        weights[1::2], weights[[0, -1]] = 4.0, 1.0
        weights *= (grid[1] - grid[0]) / 3
        kernel = np.exp(-0.5 * ((grid[:, None] - moved[None, :]) / step**0.5) ** 2) / (2 * np.pi * step) ** 0.5
        points, density, before = grid, weights * (kernel @ density), fraction
    return upper, lower


def power(effect: float, error: float, looks: Sequence[int], level: float = LEVEL) -> float:
    """Return the probability that some look shows a positive effect.

    Args:
        error: standard error of the effect with all seeds.
    """
    fractions = [look / looks[-1] for look in looks]
    return float(crossing_probabilities(look_bounds(fractions, level), fractions, effect / error)[0].sum())


def detectable_effect(error: float, looks: Sequence[int], target: float = 0.8, level: float = LEVEL) -> float:
    """Return the effect that is shown with a probability of `target`, for a standard error with all seeds."""
    fractions = [look / looks[-1] for look in looks]
    bounds = look_bounds(fractions, level)
    drift = brentq(lambda value: float(crossing_probabilities(bounds, fractions, value)[0].sum()) - target, 0.0, 20.0)
    return float(drift) * error
