"""`hifi table per-class`, `confusion` and `ensemble`, against scikit-learn and scipy."""

import json
from pathlib import Path

import numpy as np
import pytest
from run_folders import run_folder
from scipy import stats
from scipy.special import expit, softmax
from sklearn import metrics
from synthetic_runs import write_run

from hifi_cli.tasks import task_spec

CLASSES = {
    "rte": ["entailment", "not_entailment"],
    "cb": ["entailment", "contradiction", "neutral"],
}
ROWS = 50


def write_predictions(folder, labels, predictions, logits, order=range(ROWS)):
    lines = [
        {
            "id": str(at),
            "label": labels[at],
            "prediction": predictions[at],
            "logits": [*map(float, logits[at])],
        }
        for at in order
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write(task, seed, *, method="full-ft", outputs=None, order=range(ROWS)):
    """A run with random predictions; returns the labels' and predictions' words, and the logits."""
    names, generator = np.array(CLASSES[task]), np.random.default_rng([seed, len(method)])
    labels = np.arange(ROWS) % len(names)
    logits = generator.normal(0, 1, (ROWS, outputs or len(names)))
    if outputs is None:
        logits[np.arange(ROWS), labels] += 0.8
        predicted = logits.argmax(1)
    else:
        predicted = (logits[:, 0] > 0).astype(int)
    accuracy = float((labels == predicted).mean())
    folder = write_run("results", method, task, seed, accuracy, metrics={"accuracy": accuracy})
    write_predictions(folder, names[labels], names[predicted], logits, order)
    return names[labels], names[predicted], logits


def table_of(hifi, line, at=0):
    answer = hifi(f"table {line} --format json")
    assert answer.code == 0, answer.err
    tables = json.loads(answer.out)
    return tables[at] if isinstance(tables, list) else tables


def check_cell(row, key, of_seeds, highest=100):
    assert row[key] == pytest.approx(np.mean(of_seeds))
    low, high = stats.t.interval(0.95, len(of_seeds) - 1, np.mean(of_seeds), stats.sem(of_seeds))
    assert row[f"{key}_low"] == pytest.approx(max(0, low))
    assert row[f"{key}_high"] == pytest.approx(min(highest, high))


def test_scores_of_classes_are_scikit_learns(hifi):
    runs = [write("cb", seed) for seed in (1, 2, 3)]
    table = table_of(hifi, "per-class --task cb --method full-ft")
    of_seeds = np.array(
        [
            metrics.precision_recall_fscore_support(labels, predicted, labels=CLASSES["cb"])
            for labels, predicted, _ in runs
        ]
    )
    for place, row in enumerate(table["rows"][:3]):
        for at, key in enumerate(("precision", "recall", "f1")):
            check_cell(row, key, 100 * of_seeds[:, at, place])
        assert row["rows"] == of_seeds[0, 3, place]
    assert [row["label"] for row in table["rows"]] == [*CLASSES["cb"], "macro mean"]
    macro = [metrics.f1_score(labels, predicted, average="macro") for labels, predicted, _ in runs]
    check_cell(table["rows"][3], "f1", 100 * np.array(macro))
    mean, low, high = (table["rows"][3][key] for key in ("f1", "f1_low", "f1_high"))
    assert f"{mean:.1f} [{low:.1f}, {high:.1f}]" in hifi("table per-class --task cb").out


def test_confusions_are_scikit_learns(hifi):
    runs = [
        write("cb", seed, order=np.random.default_rng(seed).permutation(ROWS)) for seed in (1, 2, 3)
    ]
    table = table_of(hifi, "confusion --task cb --method full-ft")
    of_seeds = np.array(
        [
            metrics.confusion_matrix(labels, predicted, labels=CLASSES["cb"])
            for labels, predicted, _ in runs
        ]
    )
    for place, row in enumerate(table["rows"]):
        for at, name in enumerate(CLASSES["cb"]):
            check_cell(row, f"predicted.{name}", of_seeds[:, place, at], row["rows"])
        assert row["rows"] == of_seeds[0, place].sum()
    assert [*table["headings"].values()] == [*CLASSES["cb"], "Rows"]


@pytest.mark.parametrize(("task", "outputs"), [("cb", None), ("rte", 1)])
def test_an_ensemble_is_the_mean_of_the_probabilities(hifi, task, outputs):
    runs = [
        write(task, seed, outputs=outputs, order=np.random.default_rng(seed).permutation(ROWS))
        for seed in (1, 2, 3, 4)
    ]
    labels = runs[0][0]

    def score(chosen):
        logits = np.array([runs[at][2] for at in chosen])
        if outputs == 1:
            second = expit(logits[..., 0]).mean(0)
            places = (second > 0.5).astype(int)
        else:
            places = softmax(logits, axis=2).mean(0).argmax(1)
        return 100 * metrics.accuracy_score(labels, np.array(CLASSES[task])[places])

    [row] = table_of(hifi, f"ensemble --task {task}")["rows"]
    single = [100 * metrics.accuracy_score(labels, predicted) for _, predicted, _ in runs]
    assert row["mean"] == pytest.approx(np.mean(single))
    assert row["mean_std"] == pytest.approx(np.std(single, ddof=1))
    assert row["ensemble"] == pytest.approx(score([0, 1, 2, 3]))
    assert row["gain"] == pytest.approx(row["ensemble"] - row["mean"]) and row["seeds"] == 4
    without_one = [score([at for at in range(4) if at != left_out]) for left_out in range(4)]
    assert [row["low"], row["high"]] == pytest.approx([min(without_one), max(without_one)])


def test_a_note_on_the_runs_of_an_ensemble_names_the_row(hifi):
    """Both methods have a note of their own, below the one table that has both as rows."""
    for method in ("full-ft", "bitfit"):
        for seed in (1, 2):
            write("cb", seed, method=method)
    for seed in (1, 2):
        folder = run_folder(backbone="bert-large", method="bitfit", task="cb", seed=seed)
        path = folder / "results.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"collapsed": True}))
    table = table_of(hifi, "ensemble --task cb")
    assert [note for note in table["notes"] if "collapsed" in note] == [
        "BitFit on CB: 2 runs collapsed, included"
    ]
    best = max(table["rows"], key=lambda row: row["ensemble"])
    bold = [line for line in hifi("table ensemble --format md").out.splitlines() if "**" in line]
    assert len(bold) == 1 and f"| {best['label']} | " in bold[0]
    # A table of classes has the method in its title.
    assert "2 runs collapsed, included" in table_of(hifi, "per-class --method bitfit")["notes"]


def test_an_ensemble_of_numbers_is_their_mean(hifi):
    generator = np.random.default_rng(3)
    labels, outputs = generator.uniform(0, 5, ROWS), []
    for seed in (1, 2, 3):
        numbers = labels + generator.normal(0, 1, ROWS)
        outputs.append(numbers)
        score = stats.spearmanr(labels, numbers).statistic
        folder = write_run("results", "lora", "stsb", seed, score)
        write_predictions(folder, labels, numbers, numbers[:, None])
    [row] = table_of(hifi, "ensemble --task stsb")["rows"]
    assert row["ensemble"] == pytest.approx(
        100 * stats.spearmanr(labels, np.mean(outputs, axis=0)).statistic
    )


def test_several_labels_of_a_row(hifi):
    generator = np.random.default_rng(5)
    names = np.array(task_spec.load("demo-topics").labels)
    runs = []
    for seed in (1, 2):
        labels = np.arange(ROWS * len(names)).reshape(ROWS, -1) % 3 == 0
        logits = generator.normal(0, 1, labels.shape) + labels
        # Nothing has the first class, nor is predicted to have it.
        labels[:, 0] = False
        logits[:, 0] = -9
        predicted = logits > 0
        score = metrics.f1_score(labels, predicted, average="micro")
        folder = write_run("results", "lora", "demo-topics", seed, score, primary_metric="f1_micro")
        write_predictions(
            folder, [[*names[row]] for row in labels], [[*names[row]] for row in predicted], logits
        )
        runs.append((labels, predicted, logits))
    rows = table_of(hifi, "per-class --task demo-topics")["rows"]
    of_seeds = [metrics.f1_score(*run[:2], average=None, zero_division=0) for run in runs]
    expected = 100 * np.mean(of_seeds, axis=0)
    assert [row["f1"] for row in rows] == pytest.approx([*expected, expected.mean()])
    assert [row["rows"] for row in rows] == [*runs[0][0].sum(axis=0), ROWS]
    [row] = table_of(hifi, "ensemble --task demo-topics")["rows"]
    together = expit([run[2] for run in runs]).mean(0) > 0.5
    primary = task_spec.load("demo-topics").primary
    assert row["ensemble"] == pytest.approx(
        100 * metrics.f1_score(runs[0][0], together, average=primary.removeprefix("f1_"))
    )
    refused = hifi("table confusion --task demo-topics")
    assert refused.code == 3 and "its rows have no single class" in refused.err


def test_a_task_without_a_table_is_named_below_those_that_have_one(hifi):
    for seed in (1, 2):
        write("cb", seed)
    numbers = np.arange(ROWS) / 10
    folder = write_run("results", "lora", "stsb", 1, 0.5)
    write_predictions(folder, numbers, numbers, numbers[:, None])
    for name, why in (
        ("confusion", "STS-B: its rows have no single class"),
        ("ensemble", "LoRA on STS-B: an ensemble needs two seeds"),
    ):
        assert f"left out: {why}" in table_of(hifi, name)["notes"]


def test_what_is_left_out_is_said(hifi):
    for seed in (1, 2):
        write("cb", seed)
    write("cb", 1, method="lora")
    write_run("results", "full-ft", "cb", 3, 0.5)
    write("cb", 4, order=range(ROWS - 1))
    # The number of rows is the same, and one row is another.
    write("cb", 5)
    other = run_folder(backbone="bert-large", method="full-ft", task="cb", seed=5)
    file = other / "predictions.jsonl"
    file.write_text(file.read_text().replace('"id": "7"', '"id": "another"'))
    notes = table_of(hifi, "ensemble --task cb")["notes"]
    assert "left out: LoRA on CB: an ensemble needs two seeds" in notes
    assert "left out: 1 run of Full-FT without predictions" in notes
    assert "left out: 2 runs of Full-FT with predictions of other rows" in notes
    assert "predictions of the epoch that each run keeps" in notes
    assert any("scores are too high" in note for note in notes)
    one = table_of(hifi, "per-class --task cb --method lora")
    assert one["rows"][0]["precision_low"] is None
    assert not any("t-interval" in note for note in one["notes"])
    assert "[" in hifi("table per-class --task cb --method full-ft").out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("confusion --method dora", 3, "no finished run of --methods dora in results"),
        ("ensemble --method lroa", 2, "unknown method 'lroa'"),
        ("ensemble --task rte", 3, "no run has stored predictions"),
    ],
)
def test_what_cannot_be_shown_is_told(hifi, words, code, message):
    write("cb", 1)
    write_run("results", "full-ft", "rte", 1, 0.5)
    answer = hifi(f"table {words}")
    assert answer.code == code and message in answer.err, answer.err


def write_own(method, seed):
    """A run of the user's own task and method, of which it keeps the YAMLs; returns labels and predictions."""
    names = np.array(["praise", "question", "other"])
    generator = np.random.default_rng([seed, len(method)])
    labels = names[np.arange(ROWS) % 3]
    predicted = np.where(
        generator.random(ROWS) < 0.7, labels, names[generator.integers(0, 3, ROWS)]
    )
    accuracy = float((labels == predicted).mean())
    folder = write_run("results", method, "tickets", seed, accuracy, metrics={"accuracy": accuracy})
    write_predictions(folder, labels, predicted, generator.normal(0, 1, (ROWS, 3)))
    for kind in ("tasks", "methods"):
        (folder / "own" / kind).mkdir(parents=True)
    (folder / "own" / "tasks" / "tickets.yaml").write_text(
        "description: Support tickets\nlabel: Tickets\nsource: tickets.csv\ninputs: [text]\n"
        "labels: [praise, question, other]\nmetrics: [accuracy]\nprimary: accuracy\n"
        "local: {folder: ., files: {train: tickets.csv}}\n"
    )
    if method == "norm-tuning":
        (folder / "own" / "methods" / "norm-tuning.yaml").write_text("label: NormTuning\n")
    return labels, predicted


def test_own_tasks_have_them_by_the_yaml_that_the_runs_keep(hifi):
    runs = [write_own("norm-tuning", seed) for seed in (1, 2)]
    write_own("full-ft", 1)
    confusion = table_of(hifi, "confusion --method norm-tuning")
    assert "NormTuning on Tickets" in confusion["title"]
    expected = [
        metrics.confusion_matrix(labels, predicted, labels=["praise", "question", "other"])
        for labels, predicted in runs
    ]
    found = [
        [row[f"predicted.{name}"] for name in ("praise", "question", "other")]
        for row in confusion["rows"]
    ]
    assert np.array(found) == pytest.approx(np.mean(expected, axis=0))
    assert table_of(hifi, "per-class --method full-ft")["rows"][3]["label"] == "macro mean"
    assert table_of(hifi, "ensemble --method norm-tuning")["rows"][0]["seeds"] == 2


def test_a_table_of_an_own_task_that_is_named_has_its_label_and_measures(hifi):
    for seed in (1, 2):
        write_own("full-ft", seed)
    every = table_of(hifi, "--metrics score,ece")
    assert every["headings"]["tickets.ece"] == "Tickets (ECE)"
    assert table_of(hifi, "--metrics score,ece --task tickets") == every


def test_comparisons_of_own_methods_and_tasks_have_their_labels_and_rows(hifi):
    for seed in (1, 2):
        write_own("norm-tuning", seed)
        write_own("full-ft", seed)
    verdicts, per_task, rows = json.loads(
        hifi("compare norm-tuning full-ft --rows --format json").out
    )
    assert verdicts["title"].startswith("NormTuning minus each other method")
    assert [row["label"] for row in per_task["rows"]] == ["Tickets"]
    (row,) = rows["rows"]
    assert row["rows"] == ROWS and row["label"] == "Tickets"


def test_a_task_whose_yaml_is_not_here_is_named(hifi):
    write_own("full-ft", 1)
    for yaml in Path("results").rglob("own/tasks/tickets.yaml"):
        yaml.unlink()
    answer = hifi("table confusion")
    assert answer.code == 3
    assert "nothing to show in results: tickets: unknown task 'tickets'" in answer.err


def test_every_format_has_them(hifi):
    for seed in (1, 2):
        write("cb", seed)
    for format_ in ("text", "md", "tex", "csv", "json"):
        for name in ("per-class", "confusion", "ensemble"):
            assert hifi(f"table {name} --format {format_}").code == 0
