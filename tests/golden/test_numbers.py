"""Tables, comparisons, claims and figures: the numbers of published results and of a stored study stay as they are."""

import frozen
import pytest

# Relative: sums of doubles may be added in another order.
EXACT = 1e-12
# On another machine: the quantiles of scipy 1.15 differ from those of 1.17 in the eleventh digit.
NEARLY_EXACT = 1e-9


numbers = [
    pytest.param(name, marks=[pytest.mark.slow] if name in frozen.SLOW_NUMBERS else [])
    for name in frozen.NUMBERS
]


@pytest.mark.parametrize("name", numbers)
def test_the_numbers_stay_as_they_are(name, study_cwd, same_machine):
    found = frozen.as_read(name, frozen.NUMBERS[name](study_cwd))
    tolerance = EXACT if same_machine else NEARLY_EXACT
    assert frozen.differences(frozen.read(name), found, tolerance) == []


def check_computed(name, compute, cwd, same_machine):
    """On another processor rounding may decide a rank here and there."""
    expected, found = frozen.read(name), frozen.as_read(name, compute(cwd))
    different = frozen.differences(expected, found, 1e-6 if same_machine else 1e-3)
    allowed = 0 if same_machine else count(expected) // 50
    assert len(different) <= allowed, different


def count(value):
    """How many numbers and words a value holds."""
    if isinstance(value, dict | list):
        return sum(count(part) for part in (value.values() if isinstance(value, dict) else value))
    return 1


@pytest.mark.parametrize("name", frozen.COMPUTED)
def test_heads_and_figures_of_the_demo_stay_as_they_are(name, demo_cwd, same_machine):
    check_computed(name, frozen.COMPUTED[name], demo_cwd, same_machine)


@pytest.mark.slow
@pytest.mark.parametrize("name", frozen.SLOWLY_COMPUTED)
def test_measured_heads_and_figures_of_the_demo_stay_as_they_are(name, demo_cwd, same_machine):
    check_computed(name, frozen.SLOWLY_COMPUTED[name], demo_cwd, same_machine)
