"""Readers on good and bad files, metrics against hand-computed cases, tokens and batches."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from project_files import load_script

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import metrics, task_spec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.encode import epoch_batches, evaluation_order, split_batch

RTE = task_spec.load("rte").model_copy(update={"rows": {}})
GOOD = 'index\tsentence1\tsentence2\tlabel\n0\tA\u2028dog\x0b.\tA "pet.\tentailment\n1\tNo.\tYes.\tnot_entailment\n'


def read(tmp_path, train, dev=GOOD, task=RTE):
    folder = tmp_path / task.local.folder
    folder.mkdir(exist_ok=True)
    (folder / "train.tsv").write_bytes(train.encode() if isinstance(train, str) else train)
    (folder / "dev.tsv").write_bytes(dev.encode())
    return task_sources.load(task, data_dir=tmp_path)


def test_rows_are_read_as_they_stand(tmp_path):
    rows = read(tmp_path, GOOD).splits["train"]
    assert [(row.sequences[0], row.label) for row in rows] == [
        (("A\u2028dog\x0b.", 'A "pet.'), 0),  # a line separator of Unicode ends no row
        (("No.", "Yes."), 1),
    ]


def test_of_several_names_of_a_column_the_first_that_is_there_is_read(tmp_path):
    local = RTE.local.model_copy(update={"columns": {"sentence1": ["text", "premise", "other"]}})
    task = RTE.model_copy(update={"local": local})
    train = GOOD.replace("index\tsentence1\tsentence2", "other\tpremise\tsentence2")
    rows = read(tmp_path, train, train, task).splits["train"]
    assert [row.sequences[0][0] for row in rows] == ["A\u2028dog\x0b.", "No."]
    swapped = RTE.local.model_copy(
        update={
            "columns": {"sentence1": ["sentence2"], "sentence2": ["sentence1"]},
            "files": {"train": ["none.tsv", "train.tsv", "dev.tsv"], "validation": ["dev.tsv"]},
        }
    )
    task = RTE.model_copy(update={"local": swapped})
    rows = read(tmp_path, GOOD, GOOD.replace("No.", "Never."), task).splits["train"]
    assert [row.sequences[0] for row in rows] == [
        ('A "pet.', "A\u2028dog\x0b."),
        ("Yes.", "No."),
    ]


def test_only_the_test_file_of_cola_has_a_line_of_names(tmp_path):
    (tmp_path / "CoLA").mkdir()
    lines = "gj04\t1\t\tThe dog sees.\ngj04\t0\t*\tDog the sees.\n"
    for split, text in {
        "train": lines,
        "dev": lines,
        "test": "index\tsentence\n0\tCats.\n",
    }.items():
        (tmp_path / "CoLA" / f"{split}.tsv").write_text(text)
    splits = task_sources.load(task_spec.load("cola"), data_dir=tmp_path).splits
    assert [(row.sequences[0][0], row.label) for row in splits["train"]] == [
        ("The dog sees.", 1),
        ("Dog the sees.", 0),
    ]
    assert [row.sequences[0][0] for row in splits["test"]] == ["Cats."]


@pytest.mark.parametrize(
    "text", ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace("1\tNo", "\n1\tNo")]
)
def test_a_mark_crlf_and_empty_lines_change_nothing(tmp_path, text):
    assert read(tmp_path, text).splits == read(tmp_path, GOOD).splits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.tsv has no rows"),
        ("index\tsentence1\tsentence2\tlabel\n", "train.tsv has no rows"),
        (
            GOOD + "2\tshort\n",
            "train.tsv, line 4: label is empty; fill it in or remove the row",
        ),
        (GOOD + "2\ta\tb\tentailment\tmore\n", "train.tsv, line 4: more cells than column names"),
        (
            GOOD + "2\ta\tb\tmaybe\n",
            "train.tsv, line 4: unknown label 'maybe'; the labels are entailment, not_entailment",
        ),
        (GOOD + "2\t \tb\tentailment\n", "train.tsv, line 4: sentence1 is empty"),
        (
            GOOD.replace("sentence2", "other"),
            "line 2, line 3: no column 'sentence2'; the columns are index, sentence1, other, label",
        ),
        (
            GOOD + "2\ta\n3\t\tb\tentailment\n4\tb\n5\tc\n6\td\n",
            "line 4, line 6, line 7 and 1 more: label is empty; line 5: sentence1 is empty; fill it in or remove the row, or set skip_incomplete=true",
        ),
        (
            GOOD + "1\ta\tb\tentailment\n",
            "train.tsv, line 4: duplicate id 1; give each row an id of its own, or leave out id=: rows are then numbered",
        ),
        (
            GOOD.encode() + b"2\t\xff\tb\tentailment\n",
            "not UTF-8 (byte 0x",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    assert message in str(error.value)


def test_missing_data_say_so(tmp_path):
    with pytest.raises(
        MissingError, match=r"no folder RTE with train.tsv, .* in .*, nor in its subf"
    ):
        task_sources.load(RTE, data_dir=tmp_path)


def test_other_row_counts_than_the_official_ones_are_told(tmp_path, caplog):
    read(tmp_path, GOOD, task=task_spec.load("rte"))
    assert "2 rows, the official train split has 2490" in caplog.text
    read(tmp_path, GOOD, task=RTE.model_copy(update={"rows": {"train": 1, "validation": 2}}))
    assert "2 rows, the official train split has 1 (+1)" in caplog.text
    assert "2 rows, the official validation split has 2 " not in caplog.text


def test_metrics_by_hand():
    labels, predictions = np.array([1.0, 1, 1, 0, 0]), np.array([1.0, 1, 0, 1, 0])
    scores = {
        name: metrics.METRICS[name].function(labels, predictions)
        for name in ("accuracy", "f1", "matthews")
    }
    assert scores == pytest.approx(
        {"accuracy": 3 / 5, "f1": 2 * 2 / (2 * 2 + 1 + 1), "matthews": (2 * 1 - 1 * 1) / 6}
    )
    ranked = np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 100])
    assert metrics.METRICS["spearman"].function(*ranked) == pytest.approx(1)
    # Close predictions are not constant, and those that differ by rounding are.
    assert metrics.METRICS["pearson"].function(ranked[0], 1 + 1e-6 * ranked[0]) == pytest.approx(1)
    assert metrics.METRICS["pearson"].function(ranked[0], 0.3 + 1e-16 * ranked[0]) == 0


OF_LABELS = [name for name, metric in metrics.METRICS.items() if metric.needs == "labels"]


@pytest.mark.parametrize("name", OF_LABELS)
def test_constant_predictions_have_a_value_and_are_marked(name):
    labels, predictions = np.array([0.0, 1, 1, 0]), np.zeros(4)
    assert metrics.METRICS[name].function(labels, predictions) == {
        "accuracy": 1 / 2,
        "binary_accuracy": 1 / 2,
        "f1_macro": (2 / 3 + 0) / 2,
        "f1_micro": 1 / 2,
    }.get(name, 0)
    assert RTE.rules.is_collapsed(predictions)
    assert not RTE.rules.is_collapsed(predictions[:1])
    assert not RTE.rules.is_collapsed(labels)
    assert RTE.rules.is_collapsed(np.array([0.1, float("nan")]))


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=300)


STRATEGIES = ("random", "group_by_length")


@given(
    LENGTHS, st.integers(1, 40), st.integers(0, 5), st.integers(0, 3), st.sampled_from(STRATEGIES)
)
@settings(deadline=None)
def test_an_epoch_holds_every_example_once(lengths, size, seed, epoch, strategy):
    examples = [range(index, index + length) for index, length in enumerate(lengths)]
    config = RunConfig.model_construct(train_sampling_strategy=strategy, seed=seed)
    batches = epoch_batches(config, size, examples, epoch)
    assert sorted(example.start for batch in batches for example in batch) == list(
        range(len(lengths))
    )
    assert len(batches) == math.ceil(len(lengths) / size)
    assert batches == epoch_batches(config, size, examples, epoch)
    assert sorted(index for batch in evaluation_order(examples, size) for index in batch) == list(
        range(len(lengths))
    )


@pytest.mark.parametrize(("strategy", "most_padding"), [("random", 1.8), ("group_by_length", 1.06)])
def test_only_grouped_batches_hold_like_lengths_and_epochs_differ(strategy, most_padding):
    examples = [range(10 + index % 50) for index in range(2000)]
    config = RunConfig.model_construct(train_sampling_strategy=strategy, seed=1)
    batches = epoch_batches(config, 16, examples, 0)
    padded = sum(max(map(len, batch)) * len(batch) for batch in batches)
    assert most_padding - 0.2 < padded / sum(map(len, examples)) < most_padding
    assert batches != epoch_batches(config, 16, examples, 1)


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 9))
def test_a_batch_is_cut_into_its_parts(batch, parts):
    cut = list(split_batch(batch, parts))
    assert [index for part in cut for index in part] == batch
    assert len(cut) <= parts


def test_the_demo_data_are_those_that_the_script_makes(tmp_path):
    load_script("make_demo_data").write(tmp_path)
    for name in (
        "demo-acceptability",
        "demo-entailment",
        "demo-similarity",
        "demo-topics",
        "demo-roles",
    ):
        task = task_spec.load(name)
        first, second = (
            task_sources.load(task, data_dir=None),
            task_sources._load_files(task, tmp_path),
        )
        assert first.fingerprint == second.fingerprint
        assert (len(first.splits["train"]), len(first.splits["validation"])) == (1000, 200)
