"""Statistics beside the verdict of a comparison: textbook examples, other libraries, and simulated coverage."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score
from synthetic_runs import write_run

from hifi_cli.config import registry
from hifi_cli.reports import example_statistics
from hifi_cli.reports.effect_statistics import (
    detectable_effect,
    equivalence,
    improvement_interval,
    interquartile_mean,
    probability_of_improvement,
)
from hifi_cli.reports.example_statistics import ExamplePairs, hierarchical_bootstrap, paired_bootstrap
from hifi_cli.reports.method_ranks import rank_methods
from hifi_cli.reports.proportions import Failures, equal_rates_p, rate_interval
from hifi_cli.tasks import metrics

VALUES = [0.4, -0.3, 1.1, 0.2, 0.6, -0.1, 0.9, 0.35]


def test_equivalence_is_the_larger_of_two_one_sided_t_tests():
    sides = [stats.ttest_1samp(VALUES, bound, alternative=way).pvalue for bound, way in ((-1, "greater"), (1, "less"))]
    result = equivalence([VALUES], 1.0)
    assert result.p == pytest.approx(max(sides))
    at_the_edge = equivalence([VALUES], result.smallest_margin)
    assert at_the_edge.p == pytest.approx(0.05)
    assert equivalence([[1.0]], 1.0) is None
    exact = equivalence([[0.5, 0.5]], 1.0)
    assert (exact.p, exact.smallest_margin) == (0.0, 0.5) and equivalence([[2.0, 2.0]], 1.0).p == 1.0


def test_the_detectable_effect_has_a_power_of_80_percent():
    effect, error = detectable_effect([VALUES]), stats.sem(VALUES)
    critical = stats.t.ppf(0.975, len(VALUES) - 1)
    assert stats.nct.sf(critical, len(VALUES) - 1, effect / error) == pytest.approx(0.8, abs=0.02)


def test_robust_mean_and_probability_of_improvement_by_hand():
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 100]) == (2 + 3 + 4 + 5) / 4
    first, second = [[3.0, 5.0], [1.0, 1.0]], [[4.0, 2.0], [1.0, 2.0]]
    # task 1: 3 > 2, 5 > 4, 5 > 2 of four pairs; task 2: two ties of four pairs, and two losses
    assert probability_of_improvement(first, second) == pytest.approx((3 / 4 + 2 * 0.5 / 4) / 2)


def test_the_interval_of_improvement_is_a_score_interval():
    assert improvement_interval([[1.0]], [[0.0]]) == pytest.approx(rate_interval(1, 1))  # one pair: Wilson's interval
    low, high = improvement_interval([[5.0, 6.0]], [[1.0, 2.0]])
    assert 0.2 < low < 0.6 and high == 1.0 and improvement_interval([[1.0, 2.0]], [[5.0, 6.0]]) == (0.0, pytest.approx(1 - low))
    both = improvement_interval([[5.0, 6.0]] * 2, [[1.0, 2.0]] * 2)
    assert low < both[0] < 0.8, "two tasks say more than one"


@pytest.mark.parametrize(("tasks", "seeds", "true"), [(1, 5, 0.92), (1, 5, 0.5), (2, 5, 0.8), (4, 3, 0.7)])
def test_the_interval_of_improvement_covers_the_true_probability(tasks, seeds, true):
    rng, shift = np.random.default_rng(0), np.sqrt(2) * stats.norm.ppf(true)
    first, second = rng.normal(shift, 1, (200, tasks, seeds)), rng.normal(0, 1, (200, tasks, seeds))
    intervals = [improvement_interval(*groups) for groups in zip(first.tolist(), second.tolist(), strict=True)]
    assert np.mean([low <= true <= high for low, high in intervals]) >= 0.92


DEMSAR = {  # table 6 of Demsar (JMLR 2006): AUC of four variants of C4.5 on 14 data sets
    "C4.5": [0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1.0, 0.94, 0.619, 0.972, 0.957],
    "+m": [0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1.0, 0.962, 0.666, 0.981, 0.978],
    "+cf": [
        0.771,
        0.59,
        0.968,
        0.654,
        0.886,
        0.916,
        0.609,
        0.563,
        0.866,
        1.0,
        0.965,
        0.614,
        0.97501,
        0.946,
    ],  # voting: printed 0.975, ranked before +m+cf
    "+m+cf": [0.798, 0.569, 0.967, 0.657, 0.898, 0.931, 0.685, 0.625, 0.875, 1.0, 0.962, 0.669, 0.975, 0.97],
}


def test_ranks_are_those_of_demsars_example():
    ranks = rank_methods(DEMSAR)
    assert {name: round(rank, 3) for name, rank in ranks.mean_ranks.items()} == {
        "+m+cf": 1.964,
        "+m": 2.0,
        "+cf": 2.893,
        "C4.5": 3.143,
    }
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)
    ties_ignored = 12 * 14 / (4 * 5) * (sum(rank**2 for rank in ranks.mean_ranks.values()) - 4 * 5**2 / 4)
    assert ties_ignored == pytest.approx(9.28, abs=0.01)  # as printed; ours is corrected for ties
    assert ranks.statistic == pytest.approx(stats.friedmanchisquare(*DEMSAR.values()).statistic) and ranks.p < 0.05
    assert ranks.groups == [["+m+cf", "+m", "+cf", "C4.5"]]  # the paper finds no difference at the 5 % level either
    clear = rank_methods({name: [level + wobble for wobble in range(20)] for level, name in enumerate("abcd")})
    assert clear.groups == [["d", "c"], ["c", "b"], ["b", "a"]]
    assert rank_methods({"a": [1, 2], "b": [1, 2]}) is None
    assert rank_methods({name: [1.0, 1.0] for name in "abc"}).p == 1.0


def test_rates_have_wilsons_interval_and_fishers_test():
    n, k, z = 10, 2, stats.norm.ppf(0.975)  # by hand, Wilson 1927
    middle, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * (k * (n - k) / n + z * z / 4) ** 0.5
    assert rate_interval(k, n) == pytest.approx((middle - half, middle + half))
    assert rate_interval(0, 5)[0] == 0.0 and str(Failures(1, 1, 10)) == "2 of 10 (6 to 51 %)"
    tea = Failures(3, 0, 4), Failures(1, 0, 4)  # Fisher's lady tasting tea
    assert equal_rates_p(*tea) == pytest.approx(34 / 70)


def pairs_of(labels, first, second, metric="accuracy"):
    return ExamplePairs(np.asarray(labels, float), np.asarray(first, float), np.asarray(second, float), metric)


def test_mcnemar_is_the_binomial_test_of_the_discordant_examples():
    pairs = pairs_of([1] * 30, [1] * 20 + [0] * 10, [1] * 12 + [0] * 8 + [1] * 2 + [0] * 8)
    assert (pairs.only_first_right, pairs.only_second_right) == (8, 2)
    assert pairs.mcnemar_p() == pytest.approx(2 * sum(math.comb(10, k) for k in range(3)) / 2**10)
    assert pairs_of([1, 0], [1, 0], [1, 0]).mcnemar_p() == 1.0


@pytest.mark.parametrize("metric", example_statistics.WEIGHTED_METRICS)
def test_a_weighted_metric_is_that_of_the_drawn_examples(metric):
    rng = np.random.default_rng(0)
    classes = metric not in ("pearson", "spearman")
    shape = (40, 3) if metric == "f1_micro" else 40
    count = 3 if metric in ("f1_macro", "matthews") else 2
    labels = rng.integers(count, size=shape).astype(float) if classes else rng.normal(size=40)
    predictions = np.where(rng.random(shape) < 0.7, labels, labels[::-1]) if classes else labels + rng.normal(size=40)
    weights = rng.multinomial(40, np.full(40, 1 / 40), size=5)
    if metric == "spearman":  # ranks are those in all examples
        weights = np.ones((1, 40), int)
    ours = example_statistics.WEIGHTED_METRICS[metric](labels, predictions, weights.astype(float))
    for value, counts in zip(ours, weights, strict=True):
        drawn = np.repeat(np.arange(40), counts)
        assert value == pytest.approx(metrics.METRICS[metric](labels[drawn], predictions[drawn]))
    few = (4, 1) if metric == "f1_micro" else 4
    constant = example_statistics.WEIGHTED_METRICS[metric](np.ones(few), np.zeros(few), np.ones((1, 4)))
    assert np.isfinite(constant).all()


def test_the_paired_bootstrap_of_accuracies_is_the_normal_interval_of_many_examples():
    rng = np.random.default_rng(1)
    first, second = rng.random(2000) < 0.8, rng.random(2000) < 0.75
    differences = 100 * (first.astype(float) - second)
    half = 1.96 * differences.std() / 2000**0.5
    low, high = paired_bootstrap(pairs_of(np.ones(2000), first, second))
    assert (low, high) == pytest.approx((differences.mean() - half, differences.mean() + half), abs=0.25)
    assert paired_bootstrap(pairs_of([1] * 9, [1] * 9, [1] * 9)) == (0.0, 0.0)


def test_examples_of_several_tasks_are_drawn_independently():
    """Of two tasks with the same spread the mean varies half as much in square, also where the examples are the same."""
    rng = np.random.default_rng(3)
    runs = [pairs_of(np.ones(100), row, np.zeros(100)) for row in (rng.random(100) < 0.5)[None].repeat(3, axis=0)]
    (low, high), (low_of_two, high_of_two) = (hierarchical_bootstrap(tasks) for tasks in ({"a": runs}, {"a": runs, "b": runs}))
    assert (high_of_two - low_of_two) / (high - low) == pytest.approx(0.5**0.5, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "seeds_suffice"), [(0.0, False), (0.04, False), (0.12, True)])
def test_the_hierarchical_bootstrap_covers_new_seeds_and_new_examples(spread, seeds_suffice):
    """Two tasks with 5 seeds and 80 examples; the truth is a difference of 5 points; `spread` is that of the seeds."""
    rng = np.random.default_rng(2)
    covered, seeds_only = [], []
    for _ in range(200):
        tasks, differences = {}, []
        for task in "ab":
            gain = np.where(rng.random(80) < 0.4, 0.5, -0.25)  # of the first method on each example: 0.05 on average
            shift = rng.normal(0, spread, size=(5, 1))  # of each seed
            first = rng.random((5, 80)) < 0.6 + gain / 2 + shift
            second = rng.random((5, 80)) < 0.6 - gain / 2
            tasks[task] = [pairs_of(np.ones(80), *runs) for runs in zip(first, second, strict=True)]
            differences.append(100 * (first.mean(1) - second.mean(1)))
        low, high = hierarchical_bootstrap(tasks, resamples=300)
        covered.append(low <= 5 <= high)
        mean, error = np.mean(differences), np.mean([d.var(ddof=1) / 5 for d in differences]) ** 0.5 / 2**0.5
        seeds_only.append(abs(mean - 5) <= stats.t.ppf(0.975, 8) * error)
    assert np.mean(covered) >= 0.95 - 2 * (0.95 * 0.05 / 200) ** 0.5
    if not seeds_suffice:  # an interval over seeds says nothing about new examples
        assert np.mean(seeds_only) < np.mean(covered) - 0.05
    assert hierarchical_bootstrap({"a": tasks["a"][:1]}) is None


def write_predictions(method, seed, right, *, task="rte", **changes):
    """A run whose predictions are right on the first `right` of 50 examples."""
    labels = ["entailment", "not_entailment"] * 25
    others = {"entailment": "not_entailment", "not_entailment": "entailment"}
    rows = [
        {"id": str(i), "label": label, "prediction": label if i < right else others[label], "logits": [0.0, 1.0]}
        for i, label in enumerate(labels)
    ]
    folder = write_run("results", method, task, seed, right / 50, **changes)
    (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_two_runs_are_compared_by_their_predictions(hifi):
    first, second = write_predictions("bitfit", 1, 40), write_predictions("full-ft", 1, 30)
    answer = hifi("compare", first, second, "--format", "json")
    content = json.loads(answer.out)
    assert [row["cells"]["score"]["value"] for row in content["rows"]] == [80.0, 60.0]
    assert content["notes"][0].startswith("first minus second: +20.00 points, 95 % interval +")
    assert content["notes"][1] == (
        "only the first is right on 10 examples, only the second on 0: p = 0.00195 (exact McNemar test)"
    )
    other = write_predictions("bitfit", 1, 40, task="cola")
    assert "different tasks, rte and cola" in hifi("compare", first, other).err
    assert "differ in data" in hifi("compare", first, write_predictions("lora", 1, 40, data={})).err
    (second / "predictions.jsonl").unlink()
    assert hifi("compare", first, second).code == 3


def test_details_print_intervals_over_examples_and_ranks(hifi):
    for task in ("rte", "wnli"):
        for seed in range(1, 5):
            for number, method in enumerate(("bitfit", "full-ft", "lora")):
                write_predictions(method, seed, 40 - 5 * number + seed % 2 * (number + 1), task=task)
    answer = hifi("compare", "bitfit", "full-ft", "lora", "--details", "--margin", "20", "--format", "json")
    main, details, ranks = json.loads(answer.out)
    cells = details["rows"][0]["cells"]
    low, high = cells["seeds_and_examples"]["value"]
    assert low < cells["mean"]["value"] < high and cells["p_better"]["text"] == "1.00 (0.74 to 1.00)"
    assert any("BitFit and Full-FT are equal up to 20 points (two one-sided t-tests, p = " in note for note in main["notes"])
    assert [row["label"] for row in ranks["rows"]] == ["BitFit", "Full-FT", "LoRA"]
    answer = hifi("compare", "bitfit", "full-ft", "--details", "--score", "last", "--format", "json")
    _, details = json.loads(answer.out)
    assert details["rows"][0]["cells"]["seeds_and_examples"] == {"value": None}
    assert any("Full-FT: no interval over examples: predictions are those" in note for note in details["notes"])


def test_details_resample_the_examples_of_a_multi_label_task(hifi):
    """scikit-learn's f1_micro of the drawn examples; the command prints the interval and no test of single examples."""
    words = registry.load("tasks", "demo-topics")["labels"]
    rng = np.random.default_rng(1)
    labels = rng.random((30, len(words))) < 0.4
    folders, predicted = {}, {}
    for seed in (1, 2):
        for method, noise in (("bitfit", 0.1), ("full-ft", 0.3)):
            said = predicted[method, seed] = labels ^ (rng.random(labels.shape) < noise)
            rows = [
                {"id": str(i), "label": named(words, labels[i]), "prediction": named(words, said[i]), "logits": [0.0]}
                for i in range(len(labels))
            ]
            score = f1_score(labels, said, average="micro")
            folder = write_run("results", method, "demo-topics", seed, score, primary_metric="f1_micro")
            (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            folders[method, seed] = folder
    drawn = rng.integers(len(labels), size=50)
    weights = np.bincount(drawn, minlength=len(labels)).astype(float)[None]
    ours = example_statistics.WEIGHTED_METRICS["f1_micro"](labels * 1.0, predicted["bitfit", 1] * 1.0, weights)
    assert ours[0] == pytest.approx(f1_score(labels[drawn], predicted["bitfit", 1][drawn], average="micro"))
    answer = hifi("compare", "bitfit", "full-ft", "--details", "--format", "json")
    assert answer.code == 0, answer.err
    _, details = json.loads(answer.out)
    cells = details["rows"][0]["cells"]
    low, high = cells["seeds_and_examples"]["value"]
    assert low < cells["mean"]["value"] < high and not any("no interval" in note for note in details["notes"])
    content = json.loads(hifi("compare", folders["bitfit", 1], folders["full-ft", 1], "--format", "json").out)
    scores = [100 * f1_score(labels, predicted[method, 1], average="micro") for method in ("bitfit", "full-ft")]
    assert [row["cells"]["score"]["value"] for row in content["rows"]] == pytest.approx(scores)
    assert not any("McNemar" in note for note in content["notes"])


def named(words, row):
    return [word for word, is_set in zip(words, row, strict=True) if is_set]


def test_failed_runs_are_shown_with_intervals_and_compared(hifi):
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.6)
        write_run("results", "bitfit", "rte", seed, 0.6 + 0.01 * seed if seed < 3 else 0.5, collapsed=seed > 2)
    content = json.loads(hifi("compare", "bitfit", "full-ft", "--format", "json").out)
    assert content["rows"][0]["cells"]["failed"]["text"] == "6 of 8 (41 to 93 %) / 0 of 8 (0 to 32 %)"
    first, second = content["rows"][0]["cells"]["failed"]["value"]
    assert (first["collapsed"], first["runs"], second["collapsed"]) == (6, 8, 0)
    assert first["rate_interval"] == pytest.approx((0.41, 0.93), abs=0.01)
    p = stats.fisher_exact([[6, 2], [0, 8]]).pvalue
    assert any(f"one method fails more often (Fisher's exact test, p = {p:.3g})" in note for note in content["notes"])
