"""Parquet files as the libraries datasets and pandas write them: class names, nulls, categories, two columns of one name."""

import pandas
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from pyarrow import parquet

from hifi_cli.errors import UsageError
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.own_data import from_data, register

TEXTS = [f"the dog sees house {number}" for number in range(12)]


def labels_read(path, *words):
    """The labels of all rows, as people read them, and the task."""
    task = task_spec.load(register(str(path), [*words, "validation=0.3"]))
    data = task_sources.load(task, data_dir=None)
    rows = [*data.rows("train"), *data.rows("validation")]
    ordered = sorted(rows, key=lambda row: int(row.id))
    return [task.rules.label_word(row.label) for row in ordered], task


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.parquet"


def test_class_names_are_read_from_the_file(path):
    # The space is no part of the name, as in every cell of a label.
    features = Features(
        {"text": Value("string"), "label": ClassLabel(names=["negative", "neutral", " positive"])}
    )
    rows = {"text": TEXTS, "label": [2, 0] * 6}
    Dataset.from_dict(rows, features=features).to_parquet(path)
    labels, task = labels_read(path)
    assert task.labels == ["negative", "neutral", "positive"]
    assert labels == ["positive", "negative"] * 6
    assert "labels of no row: neutral" in from_data(str(path), []).summary


def test_names_of_tags_are_read_from_the_file(path):
    tags = ClassLabel(names=["O", "B-ACT"])
    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(tags)})
    rows = {"tokens": [["the", f"dog{at}"] for at in range(12)], "ner_tags": [[0, 1]] * 12}
    Dataset.from_dict(rows, features=features).to_parquet(path)
    labels, task = labels_read(path)
    assert (task.labels, task.primary) == (["O", "B-ACT"], "ner_f1")
    assert labels == [["O", "B-ACT"]] * 12


def test_a_tag_without_a_name_is_refused(path):
    tags = ClassLabel(names=["O", "B-ACT"])
    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(tags)})
    rows = {"tokens": [["the", "dog"]] * 12, "ner_tags": [[0, -1]] * 12}
    Dataset.from_dict(rows, features=features).to_parquet(path)
    with pytest.raises(
        UsageError, match=r"a.parquet: ner_tags has a class other than 0 to 1: \[0, -1\]"
    ):
        labels_read(path)


def test_a_hidden_label_is_none(path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    rows = {"text": TEXTS, "label": [0, 1, -1] * 4}
    Dataset.from_dict(rows, features=features).to_parquet(path)
    with pytest.raises(UsageError, match="row 2, row 5, row 8 and 1 more: label is empty"):
        labels_read(path)
    assert labels_read(path, "skip_incomplete=true")[0] == ["no", "yes"] * 4


def test_the_text_nan_is_a_label_and_null_is_none(path):
    """A text column of Parquet has nulls of its own."""
    frame = pandas.DataFrame({"text": TEXTS, "label": ["NAN", "ABC", None] * 4})
    frame.to_parquet(path)
    with pytest.raises(UsageError, match="row 2, row 5, row 8 and 1 more: label is empty"):
        labels_read(path)
    assert labels_read(path, "skip_incomplete=true")[0] == ["NAN", "ABC"] * 4


def test_categories_of_pandas_are_names(path):
    labels = pandas.Categorical(["good", "bad"] * 6)
    pandas.DataFrame({"text": TEXTS, "label": labels}).to_parquet(path)
    assert labels_read(path)[0] == ["good", "bad"] * 6


def test_a_number_that_is_none_is_empty(path):
    scores = [0.5, 1.5, float("nan")] * 4
    pandas.DataFrame({"text": TEXTS, "label": scores}).to_parquet(path)
    with pytest.raises(UsageError, match="label is empty"):
        labels_read(path)
    labels, task = labels_read(path, "skip_incomplete=true")
    assert (task.kind, labels) == ("regression", [0.5, 1.5] * 4)


def test_two_columns_of_one_name_are_refused(path):
    columns = [pyarrow.array(TEXTS), pyarrow.array(TEXTS), pyarrow.array([0, 1] * 6)]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["text", "text", "label"]), path)
    with pytest.raises(UsageError, match="two columns are called 'text'"):
        labels_read(path)
