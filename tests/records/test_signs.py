"""Signs that a score should not be believed: one line of each kind, in train, grid, table and report."""

import json
from pathlib import Path

import pytest
import yaml
from json_output import table_of
from synthetic_runs import write_run

from hifi_cli.config import registry
from hifi_cli.records.record import StepMetrics
from hifi_cli.records.signs import losses_of

PLACE = {"protocol": "laptop", "backbone": "minilm"}
BEST = "the best epoch is the last one in every seed"
NEVER = "a class is never predicted"
LOSS = "the training loss fell by less than 1 %"
SHARES = "rows of each class"
CHOSEN = "each run's best epoch, chosen on the same rows"


def epochs(best, total=3):
    return {"total": total, "last": total, "best": best, "max": best}


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


def test_a_class_without_rows_need_not_be_predicted(hifi):
    one = {"entailment": 100, "not_entailment": 0}
    classes = {"labels": one, "predicted": one}
    write_run("results", "full-ft", "rte", 1, 0.6, **PLACE, classes=classes)
    assert note(notes_of(hifi), NEVER) is None


def test_a_record_of_one_class_stops_no_table(hifi):
    one = {"equivalent": 30}
    classes = {"labels": one, "predicted": one}
    write_run("results", "full-ft", "mrpc", 1, 0.6, **PLACE, classes=classes)
    assert note(notes_of(hifi), SHARES).endswith("equivalent 100 %")


@pytest.mark.parametrize(
    ("best", "total", "is_said"),
    [([3, 3, 3], 3, True), ([3, 2, 3], 3, False), ([3], 3, False), ([1, 1], 1, False)],
    ids=["every seed", "not in one", "one seed", "one epoch"],
)
def test_the_best_epoch_is_the_last_in_every_seed_of_several(hifi, best, total, is_said):
    for seed, epoch in enumerate(best, start=1):
        folder = write_run("results", "full-ft", "rte", seed, 0.6, **PLACE)
        record = json.loads((folder / "results.json").read_text())
        changed = record | {"epochs": epochs(epoch, total)}
        (folder / "results.json").write_text(json.dumps(changed))
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


def test_a_method_whose_runs_all_collapsed_is_named_with_the_remedy(hifi):
    for seed in (1, 2):
        write_run("results", "lora", "rte", seed, 0.5, **PLACE, collapsed=True)
        write_run("results", "full-ft", "rte", seed, 0.5, **PLACE, collapsed=seed == 1)
    sign = "every run collapsed to one class; train longer, or change the learning rate"
    assert note(notes_of(hifi), sign) == f"{sign}: LoRA on RTE"


def test_of_many_classes_the_most_and_the_least_frequent_are_named(hifi):
    rows = {"other": 4, "praise": 3, "question": 2, "complaint": 1}
    write_run(
        "results", "full-ft", "rte", 1, 0.5, **PLACE, classes={"labels": rows, "predicted": rows}
    )
    expected = "rows of each class: RTE: other 40 %, 2 more classes, complaint 10 %"
    assert note(notes_of(hifi), SHARES) == expected


@pytest.mark.parametrize(
    ("steps", "steps_per_epoch", "expected"),
    [
        # Epochs of 40 steps, a line after 30: the second line has 10 steps alone, and steps 41 to 60
        # belong to the next one
        ([(30, 1.0), (40, 5.0), (60, 2.0), (80, 4.0)], 40, (2.0, 3.0)),
        ([(20, 1.0), (40, 3.0), (60, 5.0), (80, 7.0)], 80, (2.0, 6.0)),
        # The last line has 4 steps, and the one before 20.
        ([(20, 0.60), (40, 0.58), (60, 0.58), (64, 0.70)], 64, (0.59, 0.60)),
        # The first logged epoch has 2 steps, and the last one 8.
        (
            [
                (10, 0.4),
                (20, 0.6),
                (30, 0.6),
                (40, 0.5),
                (50, 0.5),
                (60, 0.5),
                (70, 0.5),
                (72, 0.4),
            ],
            8,
            None,
        ),
        # Epochs of 12 steps are shorter than 20, and halves of all that was logged are not.
        (
            [
                (10, 0.8),
                (12, 0.2),
                (22, 0.6),
                (24, 0.6),
                (34, 0.5),
                (36, 0.5),
                (46, 0.5),
                (48, 0.5),
            ],
            12,
            (0.65, 0.5),
        ),
        ([(10, 0.603), (20, 0.592), (30, 0.588), (32, 0.707)], 32, None),
        ([(80, 7.0)], 80, None),
        ([], 8, None),
    ],
    ids=[
        "two epochs",
        "halves of one",
        "a short last line",
        "few steps logged",
        "short epochs",
        "a short run",
        "one line",
        "none",
    ],
)
def test_losses_are_means_over_the_first_and_the_last_epoch(steps, steps_per_epoch, expected):
    lines = [StepMetrics(step=step, loss=loss, learning_rate=1e-4) for step, loss in steps]
    losses = losses_of(lines, steps_per_epoch)
    assert (losses and (losses.first, losses.last)) == (expected and pytest.approx(expected))


def test_a_rate_that_trains_nothing_is_said_by_train_and_table(hifi):
    words = ["--task", "demo-entailment", "--protocol", "demo", "--method", "linear-probing"]
    quick = ["epochs=2", "batch_size=2", "log_every=2"]
    answer = hifi("train", *words, *quick, "learning_rate=1e-9")
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    assert sum(line.startswith(f"note: {LOSS}: Linear probing on ") for line in lines) == 1
    assert sum(line.startswith(f"note: {SHARES}: ") for line in lines) == 1
    assert sum(line.startswith(f"note: {CHOSEN}") for line in lines) == 1
    notes = notes_of(hifi)
    assert note(notes, LOSS)
    record = json.loads(next(Path("results").rglob("results.json")).read_text())
    assert sum(record["classes"]["labels"].values()) == record["n_examples"]["reported"]
    lines = next(Path("results").rglob("predictions.jsonl")).read_text().splitlines()
    predicted = [json.loads(line)["prediction"] for line in lines]
    included = {word: predicted.count(word) for word in record["classes"]["predicted"]}
    assert record["classes"]["predicted"] == included


def test_the_line_on_losses_has_label_and_seeds(hifi):
    for seed, last in ((1, 0.3), (2, 0.7), (3, 0.71)):
        losses = {"first": 0.7, "last": last}
        write_run("results", "full-ft", "rte", seed, 0.6, **PLACE, losses=losses)
    assert note(notes_of(hifi), LOSS).endswith("Full-FT on RTE (seeds 2, 3)")


@pytest.mark.slow
def test_a_rate_that_trains_nothing_is_said_by_a_report(hifi):
    losses = {"first": 0.7, "last": 0.7}
    write_run("results", "full-ft", "rte", 1, 0.6, **PLACE, losses=losses)
    assert hifi("report").code == 0
    assert LOSS in Path("results/report.html").read_text()


def test_a_method_of_ones_own_has_its_label(hifi):
    shipped = registry.configs_directory() / "methods" / "linear-probing.yaml"
    own = yaml.safe_load(shipped.read_text()) | {"label": "My probe"}
    Path("own-probe.yaml").write_text(json.dumps(own))
    words = "train --task demo-entailment --protocol demo --method own-probe.yaml"
    quick = "epochs=2 batch_size=2 log_every=2 learning_rate=1e-9"
    answer = hifi(words, *quick.split())
    assert answer.code == 0, answer.err
    (line,) = [line for line in answer.err.splitlines() if LOSS in line]
    assert "My probe on Entail. (seed 1)" in line
    assert "My probe on Entail. (seed 1)" in note(notes_of(hifi), LOSS)


@pytest.mark.slow
def test_a_grid_says_the_signs_of_its_runs(hifi):
    spec = {"protocol": "demo", "backbone": "demo", "seeds": [1, 2]}
    spec |= {"tasks": ["demo-entailment"], "methods": ["linear-probing"]}
    Path("quick.yaml").write_text(json.dumps(spec))
    answer = hifi("grid quick.yaml epochs=2 batch_size=2 log_every=2 learning_rate=1e-9")
    assert answer.code == 0, answer.err
    assert f"note: {LOSS}: Linear probing on " in answer.err
