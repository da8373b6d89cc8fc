"""The conclusion of `hifi report` in words: it says what the verdicts of `hifi compare` say, and no more."""

import json
import re

import pytest
from report_pages import conclusion_of, page_of, sections_of
from scipy import stats
from synthetic_runs import write_run

pytestmark = pytest.mark.slow

TITLE = "protocol hifi, backbone bert-large"


def write_runs(seeds, tasks=("rte",), **shifts):
    """Runs of Full-FT, and of other methods whose scores differ from its by about a shift."""
    for task in tasks:
        for seed in seeds:
            score = 0.6 + seed / 1000
            write_run("results", "full-ft", task, seed, score)
            for method, shift in shifts.items():
                spread = (seed % 3) / 500 if shift else 0
                write_run("results", method.replace("_", "-"), task, seed, score + shift + spread)


def seeds_of_compare(answer):
    """How many seeds would show a difference, as `hifi compare` says."""
    words = " ".join(answer.out.split())
    return int(re.search(r"about (\d+) seeds would show one as large as now", words)[1])


def test_the_highest_method_has_the_interval_of_its_seeds(hifi):
    write_runs(range(1, 8), bitfit=-0.1)
    write_run("results", "lora", "rte", 1, 0.5)
    # Runs on other data are ranked with no others.
    for seed in (1, 2):
        write_run("results", "adapter", "rte", seed, 0.9, data={"train": "o", "validation": "o"})
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    scores = [60 + seed / 10 for seed in range(1, 8)]
    low, high = stats.t.interval(0.95, 6, stats.tmean(scores), stats.sem(scores))
    expected = f"Full-FT, 60.4 (95 % interval {low:.1f} to {high:.1f}, 7 seeds)"
    assert sentences[0] == f"Highest mean: {expected}."


def test_an_interval_ends_where_the_score_ends(hifi):
    for seed, score in enumerate((0.61, 0.92, 0.97), start=1):
        write_run("results", "full-ft", "rte", seed, score)
        write_run("results", "lora", "cola", seed, score - 0.9)
    found = conclusion_of(page_of(hifi("report --score best")))[TITLE]
    sentences = " ".join(sentence for of_task in found.values() for sentence in of_task)
    low, _ = stats.t.interval(0.95, 2, 83 + 1 / 3, stats.sem([61, 92, 97]))
    assert f"Full-FT, 83.3 (95 % interval {low:.1f} to 100.0, 3 seeds" in sentences
    assert f"95 % interval {low - 90:.1f} to " in sentences


def test_equal_means_are_both_the_highest(hifi):
    write_runs(range(1, 8), lora=0.0)
    for seed in range(1, 8):
        # Equal as it is printed.
        write_run("results", "bitfit", "rte", seed, 0.60001 + seed / 1000)
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    assert sentences[0].startswith("Highest mean: BitFit, 60.4 (")
    assert "; Full-FT, 60.4 (" in sentences[0] and "; LoRA, 60.4 (" in sentences[0]


def test_differences_are_decided_as_compare_decides_them(hifi):
    write_runs(range(1, 8), bitfit=-0.1, lora=0.0)
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    verdicts, _ = json.loads(hifi("compare bitfit full-ft --format json").out)
    (row,) = verdicts["rows"]
    numbers = f"(95 % interval {row['low']:+.2f} to {row['high']:+.2f})"
    assert sentences[1] == f"Decided: BitFit is {-row['mean']:.2f} points below Full-FT {numbers}."
    # Of two comparisons, each is decided at 2.5 %: seven pairs that differ, and here none does.
    assert sentences[2] == "Undecided against Full-FT: LoRA (at least 7 more seeds)."


def test_undecided_differences_say_how_many_seeds_would_show_them(hifi):
    """Beyond those of the task with most of them, and at the level of one of two comparisons."""
    for task, seeds in (("rte", 8), ("qnli", 10)):
        for seed in range(1, seeds + 1):
            write_run("results", "full-ft", task, seed, 0.6)
            for method in ("bitfit", "lora"):
                write_run("results", method, task, seed, 0.605 + (-1) ** seed * 0.01)
    findings = conclusion_of(page_of(hifi("report")))[TITLE]
    more = seeds_of_compare(hifi("compare full-ft bitfit lora")) - 10
    assert findings["All tasks together, those that both methods have"] == [
        "No difference is decided.",
        f"Undecided against Full-FT: BitFit, LoRA (about {more} more seeds).",
    ]


def test_a_difference_that_the_test_alone_shows_lacks_no_pairs(hifi):
    """Holm asks the second of two comparisons for six pairs, and seven would suit both."""
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.6)
        write_run("results", "bitfit", "rte", seed, 0.5 + seed / 1000)
    for seed, score in enumerate((0.63, 0.602, 0.603, 0.604, 0.605, 0.606), start=1):
        write_run("results", "lora", "rte", seed, score)
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    answer = hifi("compare full-ft bitfit lora")
    assert "the sign-flip test has p = 0.031, but the interval includes 0" in answer.out
    more = seeds_of_compare(answer) - 6
    assert sentences[2] == f"Undecided against Full-FT: LoRA (about {more} more seeds)."


def test_collapsed_runs_have_no_highest_mean_and_ask_for_no_seeds(hifi):
    for task in ("rte", "qnli"):
        for method in ("full-ft", "bitfit"):
            for seed in (1, 2, 3):
                write_run("results", method, task, seed, 0.5, collapsed=True)
    findings = conclusion_of(page_of(hifi("report")))[TITLE]
    assert findings.pop("All tasks together, those that both methods have") == [
        "No difference is decided.",
        "Undecided against Full-FT: BitFit (every run collapsed to one class).",
    ]
    for sentences in findings.values():
        assert sentences == [
            "Every run collapsed to one class: no method is ahead, and more seeds do not help."
            " Train longer, or change the learning rate."
        ]


def test_a_highest_mean_says_how_many_of_its_runs_collapsed(hifi):
    # The median of Full-FT is higher, and its mean is not.
    for seed, score in enumerate((0.6, 0.6, 0.2), start=1):
        write_run("results", "full-ft", "rte", seed, score)
    for seed in (1, 2):
        write_run("results", "bitfit", "rte", seed, 0.5, collapsed=seed == 1)
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    assert sentences[0].startswith("Highest mean: BitFit, 50.0 (")
    assert sentences[0].endswith(", 2 seeds, 1 run collapsed to one class).")


def test_one_seed_says_nothing(hifi):
    write_runs([1], tasks=("rte", "cola", "mrpc", "qnli", "sst2", "wnli"), bitfit=-0.1)
    findings = conclusion_of(page_of(hifi("report")))[TITLE]
    assert len(findings) == 6
    for sentences in findings.values():
        assert sentences == ["Each method has one seed, from which nothing can be said."]


def test_all_tasks_are_corrected_together(hifi):
    """Six pairs decide one comparison, and not two."""
    write_runs(range(1, 7), tasks=("rte", "qnli"), bitfit=-0.1)
    text = page_of(hifi("report"))
    findings = conclusion_of(text)[TITLE]
    for subject in ("RTE (Acc.)", "QNLI (Acc.)"):
        assert findings[subject][1:] == [
            "No difference is decided.",
            "Undecided against Full-FT: BitFit (at least 1 more seed).",
        ]
    assert findings["All tasks together, those that both methods have"][0].startswith(
        "Decided: BitFit is 9.8"
    )
    assert "for the 2 comparisons of all tasks" in sections_of(text)["conclusion"]
    (one,) = conclusion_of(page_of(hifi("report --tasks rte")))[TITLE].values()
    assert one[1].startswith("Decided: BitFit is 9.8")


def test_a_new_seed_is_a_pair_on_each_task(hifi):
    """Two comparisons need seven pairs that differ, which four seeds have on two tasks."""
    write_runs([1, 2], tasks=("rte", "qnli"), bitfit=0.0, lora=0.0)
    findings = conclusion_of(page_of(hifi("report")))[TITLE]
    assert findings["All tasks together, those that both methods have"] == [
        "No difference is decided.",
        "Undecided against Full-FT: BitFit, LoRA (at least 4 more seeds).",
    ]


def test_a_method_ahead_with_diverged_runs_is_not_called_better(hifi):
    write_runs(range(1, 8), bitfit=0.1)
    write_run("results", "full-ft", "rte", 8, 0.6)
    write_run("results", "bitfit", "rte", 8, 0.0, status="diverged", reason="loss is nan")
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    assert sentences[0].startswith("Highest mean: BitFit, 70.")
    assert sentences[0].endswith(", 7 seeds, 1 run diverged).")
    assert sentences[1] == "No difference is decided."
    assert sentences[2].startswith("Undecided against Full-FT: BitFit (BitFit is ahead, but 1 run")


def test_without_a_run_of_the_reference_no_difference_is_tested(hifi):
    for seed in (1, 2):
        write_run("results", "lora", "rte", seed, 0.6 + seed / 100)
    (sentences,) = conclusion_of(page_of(hifi("report")))[TITLE].values()
    assert sentences[0].startswith("Highest mean: LoRA, 61.5 (")
    assert sentences[1:] == [
        "No other method shares a seed with Full-FT, so that no difference is tested."
    ]


def test_the_first_of_the_methods_is_the_reference(hifi):
    write_runs(range(1, 8), bitfit=-0.1, lora=0.1)
    text = page_of(hifi("report --methods lora,full-ft"))
    (sentences,) = conclusion_of(text)[TITLE].values()
    assert sentences[1].startswith("Decided: Full-FT is 10.") and " below LoRA (" in sentences[1]
    assert "BitFit" not in text and "LoRA minus each other method" in text


def test_a_method_without_scores_takes_no_other_one_out(hifi):
    for seed in (1, 2):
        scores = {"last": 0.6, "best": 0.6, "max": None}
        for task in ("rte", "qnli"):
            write_run("results", "bitfit", task, seed, 0.6, selection="holdout", scores=scores)
        write_run("results", "full-ft", "rte", seed, 0.7)
    # No run of QNLI has a score.
    findings = conclusion_of(page_of(hifi("report --score max")))[TITLE]
    assert [*findings] == ["RTE (Acc.)"]
    assert findings["RTE (Acc.)"][0].startswith("Highest mean: Full-FT, 70.0 (")


def test_runs_without_a_score_are_said(hifi):
    write_run("results", "full-ft", "rte", 1, 0.0, status="diverged", reason="loss is nan")
    findings = conclusion_of(page_of(hifi("report")))[TITLE]
    assert findings == {"No run has a score that counts.": []}
