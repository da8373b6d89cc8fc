"""Signs that a score should not be believed: one line of each kind, in train, grid, table and report."""

import json
from pathlib import Path

import pytest
from json_output import table_of
from synthetic_runs import write_run

from hifi_cli.records.record import StepMetrics
from hifi_cli.records.signs import losses_of

PLACE = {"protocol": "laptop", "backbone": "minilm"}
BEST = "the best epoch is the last one in every seed"
NEVER = "a class is never predicted"
LOSS = "the training loss fell by less than 1 %"
SHARES = "rows of each class"
CHOSEN = "each run's best epoch, chosen on the same rows"


def epochs(best):
    return {"total": 3, "last": 3, "best": best, "max": best}


def counts(predicted):
    labels = {"entailment": 60, "not_entailment": 40}
    return {"labels": labels, "predicted": predicted}


def notes_of(hifi):
    return table_of(hifi("table --format json"))["notes"]


def note(notes, sign):
    """The one note that begins with a sign; None where there is none."""
    found = [text for text in notes if text.startswith(sign)]
    assert len(found) < 2, found
    return found[0] if found else None


def test_a_table_of_300_runs_has_one_line_for_each_sign(hifi):
    both = {"entailment": 50, "not_entailment": 50}
    for task in ("rte", "qnli", "wnli"):
        for method in ("full-ft", "bitfit", "lora", "adapter"):
            for seed in range(1, 26):
                write_run(
                    "results",
                    method,
                    task,
                    seed,
                    0.6,
                    **PLACE,
                    classes=counts(both if method != "lora" else {**both, "not_entailment": 0}),
                    losses={"first": 0.7, "last": 0.6998 if method == "bitfit" else 0.3},
                )
    notes = notes_of(hifi)
    assert note(notes, NEVER).count("LoRA on ") == 3
    assert "BitFit on " in note(notes, LOSS)
    assert "Full-FT" not in note(notes, LOSS)
    assert note(notes, SHARES).count("entailment 60 %, not_entailment 40 %") == 3
    assert note(notes, CHOSEN)


def test_the_class_that_f1_counts_is_said(hifi):
    both = {"not_equivalent": 30, "equivalent": 70}
    classes = {"labels": both, "predicted": both}
    write_run("results", "full-ft", "mrpc", 1, 0.6, **PLACE, classes=classes)
    said = note(notes_of(hifi), SHARES)
    assert said.endswith("equivalent 70 % (F1 is of this class), not_equivalent 30 %")
    write_run(
        "results",
        "full-ft",
        "rte",
        1,
        0.6,
        **PLACE,
        classes=counts({"entailment": 100, "not_entailment": 0}),
    )
    assert note(notes_of(hifi), SHARES).count("F1 is of this class") == 1


@pytest.mark.parametrize(
    ("best", "is_said"),
    [([3, 3, 3], True), ([3, 2, 3], False), ([3], False)],
    ids=["every seed", "not in one", "one seed"],
)
def test_the_best_epoch_is_the_last_in_every_seed_of_several(hifi, best, is_said):
    for seed, epoch in enumerate(best, start=1):
        folder = write_run("results", "full-ft", "rte", seed, 0.6, **PLACE)
        record = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(json.dumps(record | {"epochs": epochs(epoch)}))
    said = note(notes_of(hifi), BEST)
    assert bool(said) == is_said
    assert not said or said.endswith(": Full-FT on RTE")


def test_records_of_before_say_nothing(hifi):
    write_run("results", "full-ft", "rte", 1, 0.6, **PLACE)
    notes = notes_of(hifi)
    assert all(note(notes, sign) is None for sign in (NEVER, LOSS, SHARES))


def test_a_collapsed_run_is_said_once(hifi):
    """Its footnote says that it predicts one class."""
    one = counts({"entailment": 100, "not_entailment": 0})
    write_run("results", "full-ft", "rte", 1, 0.6, **PLACE, collapsed=True, classes=one)
    notes = notes_of(hifi)
    assert note(notes, NEVER) is None
    assert note(notes, SHARES)


@pytest.mark.parametrize(
    ("steps", "steps_per_epoch", "expected"),
    [
        # Epochs of 4 steps, a line after 3: the second line has step 4 alone, and steps 5 and 6
        # belong to the next one
        ([(3, 1.0), (4, 5.0), (6, 2.0), (8, 4.0)], 4, (2.0, 3.0)),
        ([(2, 1.0), (4, 3.0), (6, 5.0), (8, 7.0)], 8, (2.0, 6.0)),
        ([(8, 7.0)], 8, None),
        ([], 8, None),
    ],
    ids=["two epochs", "halves of one", "one line", "none"],
)
def test_losses_are_means_over_the_first_and_the_last_epoch(steps, steps_per_epoch, expected):
    lines = [StepMetrics(step=step, loss=loss, learning_rate=1e-4) for step, loss in steps]
    losses = losses_of(lines, steps_per_epoch)
    assert (losses and (losses.first, losses.last)) == expected


def test_a_rate_that_trains_nothing_is_said_by_train_table_and_report(hifi):
    words = ["--task", "demo-entailment", "--protocol", "demo", "--method", "linear-probing"]
    quick = ["epochs=2", "batch_size=8", "log_every=2"]
    answer = hifi("train", *words, *quick, "learning_rate=1e-9")
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    assert sum(line.startswith(f"note: {LOSS}: Linear probing on ") for line in lines) == 1
    assert sum(line.startswith(f"note: {SHARES}: ") for line in lines) == 1
    assert sum(line.startswith(f"note: {CHOSEN}") for line in lines) == 1
    notes = notes_of(hifi)
    assert note(notes, LOSS)
    hifi("report")
    assert LOSS in Path("results/report.html").read_text()
    record = json.loads(next(Path("results").rglob("results.json")).read_text())
    assert sum(record["classes"]["labels"].values()) == record["n_examples"]["reported"]
    lines = next(Path("results").rglob("predictions.jsonl")).read_text().splitlines()
    predicted = [json.loads(line)["prediction"] for line in lines]
    included = {word: predicted.count(word) for word in record["classes"]["predicted"]}
    assert record["classes"]["predicted"] == included


@pytest.mark.slow
def test_a_grid_says_the_signs_of_its_runs(hifi):
    spec = {"protocol": "demo", "backbone": "demo", "seeds": [1, 2]}
    spec |= {"tasks": ["demo-entailment"], "methods": ["linear-probing"]}
    Path("quick.yaml").write_text(json.dumps(spec))
    answer = hifi("grid quick.yaml epochs=2 log_every=2 learning_rate=1e-9")
    assert answer.code == 0, answer.err
    assert f"note: {LOSS}: Linear probing on " in answer.err
