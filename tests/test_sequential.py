"""The levels of repeated looks: against textbook values and simulations."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from hifi_cli.reports import sequential

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def simulation():
    path = Path(__file__).parent.parent / "scripts" / "sequential_claims.py"
    spec = importlib.util.spec_from_file_location("sequential_claims", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bounds_are_those_of_the_textbook():
    fifths = [0.2, 0.4, 0.6, 0.8, 1.0]
    # Jennison and Turnbull 2000, and the tables of Lan and DeMets: O'Brien-Fleming-type spending, two-sided 5 %
    assert sequential.look_bounds(fifths) == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=0.001)
    pocock, obrien = [2.413] * 5, [2.040 * fraction**-0.5 for fraction in fifths]
    for bounds, error in ((pocock, 0.05), (obrien, 0.05), ([stats.norm.ppf(0.975)] * 5, 0.142)):
        upper, lower = sequential.crossing_probabilities(bounds, fifths)
        assert upper.sum() == pytest.approx(lower.sum())
        assert upper.sum() + lower.sum() == pytest.approx(error, abs=0.0005)
    assert sequential.look_levels([20]) == pytest.approx([0.05], abs=1e-5)
    assert sequential.declared_looks(3, 20) == [4, 8, 12, 16, 20] and sequential.declared_looks(3, 4) == [3, 4]


def test_power_and_detectable_effect_agree():
    one_look = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert sequential.detectable_effect(2.0, [10]) == pytest.approx(2 * one_look, abs=0.001)
    effect = sequential.detectable_effect(2.0, [4, 8, 12, 16, 20])
    assert 1 < effect / (2 * one_look) < 1.03 and sequential.power(effect, 2.0, [4, 8, 12, 16, 20]) == pytest.approx(0.8)


def test_without_a_difference_repeated_looks_err_in_at_most_5_percent(simulation):
    repeats = 1200
    wrong = simulation.rates(0.0, simulation.levels_of(corrected=True), repeats=repeats)
    assert wrong["supported"] + wrong["contradicted"] <= 0.05 + 2 * (0.05 * 0.95 / repeats) ** 0.5
    uncorrected = simulation.rates(0.0, simulation.levels_of(corrected=False), repeats=repeats // 2)
    assert uncorrected["supported"] + uncorrected["contradicted"] > 0.1


def test_the_power_is_the_calculated_one_and_large_differences_stop_early(simulation):
    looks, error = list(simulation.levels_of(corrected=True)), simulation.final_error()
    effect = sequential.detectable_effect(error, looks)
    shown = simulation.rates(effect, simulation.levels_of(corrected=True), repeats=500)
    assert shown["supported"] == pytest.approx(0.8, abs=3 * 0.018 + 0.02) and shown["contradicted"] < 0.01
    large = simulation.rates(3 * effect, simulation.levels_of(corrected=True), repeats=100)
    assert large["supported"] == 1.0 and large["seeds"] < 12 < shown["seeds"]


def test_the_page_has_the_numbers_of_the_simulation():
    root = Path(__file__).parent.parent
    rows = pd.read_csv(root / "results/bench/sequential.csv")
    null, planned = rows.iloc[0], rows.iloc[(rows.calculated - 0.8).abs().argmin()]
    page = " ".join((root / "docs/claims.md").read_text().split())
    wrong, plain = (100 * (null[f"{prefix}supported"] + null[f"{prefix}contradicted"]) for prefix in ("", "uncorrected "))
    assert f"{wrong:.1f} % of the verdicts are wrong where there is no difference, and {plain:.1f} % if each look" in page
    assert f"at most {100 * (rows.calculated - rows.supported).max():.1f} points below the calculated one" in page
    assert f"power of {100 * planned.calculated:.0f} % takes {planned.seeds:.1f} seeds per task" in page
