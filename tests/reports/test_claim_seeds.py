"""The smallest number of seeds that can reproduce and refute a claim, against a count of every pattern of signs."""

from fractions import Fraction
from itertools import product
from math import inf

import pytest

from hifi_cli.paired_tests import LEVEL
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.claims.decide import Condition, verdict_of_values
from hifi_cli.reports.claims.seeds import smallest_seeds

ABOVE = Condition((0.0, inf), (0.5, inf))


def p_of_differences_of_one_sign(count):
    """The share of sign patterns whose sum is as far from zero as that of differences that are all positive."""
    values = [1 + Fraction(number, 1000) for number in range(count)]
    observed = sum(values)
    as_far = 0
    for signs in product((-1, 1), repeat=count):
        total = sum(sign * value for sign, value in zip(signs, values, strict=True))
        as_far += abs(total) >= observed
    return Fraction(as_far, 2**count)


def seeds_by_counting(tasks, level):
    """The first number of seeds, from two on, whose smallest p is below a level."""
    for seeds in range(2, 20):
        if p_of_differences_of_one_sign(seeds * tasks) < level:
            return seeds
    raise AssertionError("none")


def claim_of(first, second, tasks, **keys):
    methods = ["full-ft", "bitfit", "lora", "adapter"]
    content = {
        "description": "a test's",
        "protocol": "laptop",
        "backbone": "minilm",
        "tasks": ["cola", "mrpc", "stsb", "rte"][:tasks],
        "claims": {
            "one": {
                "kind": "difference",
                "text": "a test's",
                "where": "here",
                "first": methods[:first],
                "second": ["hifi-layerwise", "rocoft-row", "linear-probing"][:second],
                **keys,
            }
        },
    }
    file = claims_spec.ClaimsFile.model_validate(content)
    return file.claims["one"], file


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("every_task", [False, True])
def test_the_numbers_are_those_of_a_count_of_all_patterns(tasks, first, second, every_task):
    found = smallest_seeds(*claim_of(first, second, tasks, every_task=every_task))
    comparisons = first * second
    if every_task:
        comparisons, tasks = comparisons * tasks, 1
    assert found.to_reproduce == seeds_by_counting(tasks, LEVEL)
    assert found.to_refute == seeds_by_counting(tasks, Fraction(5, 100) / comparisons)


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("comparisons", [1, 3])
def test_the_rule_decides_with_these_numbers_and_not_with_one_seed_less(tasks, comparisons):
    """Large differences of one sign, in the rule that `hifi claims` applies to each comparison."""
    found = smallest_seeds(*claim_of(comparisons, 1, tasks))
    level = LEVEL / comparisons
    for seeds in range(2, 10):
        up = [[50 + number / 100 for number in range(seeds)] for _ in range(tasks)]
        down = [[-value for value in values] for values in up]
        can_reproduce = verdict_of_values(up, ABOVE, level) == "reproduced"
        can_refute = verdict_of_values(down, ABOVE, level) == "not reproduced"
        assert can_reproduce == (seeds >= found.to_reproduce)
        assert can_refute == (seeds >= found.to_refute)


def test_figures_count_where_their_repetitions_are_seeds():
    file = claims_spec.load("ehft", protocol="laptop-ehft")
    of_seeds = smallest_seeds(file.claims["moves-features-less"], file)
    assert (of_seeds.to_reproduce, of_seeds.to_refute) == (6, 6)
    file = claims_spec.load("hifi", protocol="laptop")
    of_layers = smallest_seeds(file.claims["iterations-rise"], file)
    assert (of_layers.to_reproduce, of_layers.to_refute) == (None, None)


@pytest.mark.parametrize("every_task", [False, True])
def test_without_a_task_that_is_asked_about_no_number_decides(every_task):
    claim, file = claim_of(2, 1, 3, every_task=every_task)
    elsewhere = file.model_copy(update={"only_tasks": ["demo-entailment"]})
    found = smallest_seeds(claim, elsewhere)
    assert (found.to_reproduce, found.to_refute) == (None, None)


def test_every_claim_is_printed_with_its_numbers(hifi, tmp_path):
    answer = hifi(f"claims hifi --protocol laptop --results-dir {tmp_path}")
    printed = " ".join(answer.out.split())
    # two seeds on four tasks are eight signs, of which 2 in 256 patterns are alike
    assert "2 and 2 for above-full-ft, above-peft, midtop-close" in printed
    answer = hifi(f"claims ehft/cb --protocol laptop-ehft --results-dir {tmp_path}")
    assert "6 and 6 for cb" in " ".join(answer.out.split())
