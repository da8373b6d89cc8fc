"""Rows from the hub: the same as from the official files, and what a repository that differs is told."""

import json

import pytest
from official_rows import CB, JSONL, ROWS, content, read_train_rows

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import data_sources, task_spec
from hifi_cli.tasks.task_spec import HubDataset


def features(name):
    """A hub repository's columns for a task, and the record of the official file in them."""
    from datasets import ClassLabel, Features, Value
    from datasets import Sequence as Many

    def text(*names):
        return {column: Value("string") for column in names}

    def whole(*names):
        return {column: Value("int32") for column in names}

    truth = ClassLabel(names=["False", "True"])
    if name == "squad":
        columns = text("id", "title", "context", "question") | {
            "answers": Many({"text": Value("string"), "answer_start": Value("int32")})
        }
        return Features(columns), [
            {
                "id": "q1",
                "title": "T",
                "context": "The cat sat.",
                "question": "Who sat?",
                "answers": {"text": ["cat", "The cat"], "answer_start": [4, 0]},
            }
        ]
    if name == "swag":
        columns = text("sent1", "sent2", "ending0", "ending1", "ending2", "ending3") | {
            "label": ClassLabel(names=["0", "1", "2", "3"])
        }
        return Features(columns), [
            dict(zip(columns, ["He stops.", "He", "goes, then sits", "runs", 'says "no"', "is", 2], strict=True))
        ]
    if name == "multirc":
        columns = text("paragraph", "question", "answer") | {"idx": whole("paragraph", "question", "answer"), "label": truth}
        idx = [{"paragraph": 3, "question": 7, "answer": answer} for answer in (1, 2)]
        return Features(columns), [
            {"paragraph": "A text.", "question": "Who?", "answer": "He", "idx": idx[0], "label": 1},
            {"paragraph": "A text.", "question": "Who?", "answer": "She", "idx": idx[1], "label": 0},
        ]
    if name == "record":
        columns = text("passage", "query") | {"entities": Many(Value("string")), "answers": Many(Value("string"))}
        passage, (query,) = JSONL[name]["passage"], JSONL[name]["qas"]
        return Features(columns | {"idx": whole("passage", "query")}), [
            {
                "passage": passage["text"],
                "query": query["query"],
                "entities": ["Ann Lee", "Bo", "Lee"],
                "answers": ["Ann Lee", "Lee"],
                "idx": {"passage": 2, "query": 5},
            }
        ]
    labels = {"copa": ["choice1", "choice2"], "cb": ["entailment", "contradiction", "neutral"]}
    record = {
        key: value for key, value in (JSONL[name] | JSONL[name].get("target", {})).items() if key not in ("target", "version")
    }
    columns = {key: Value("string") if isinstance(value, str) else Value("int32") for key, value in record.items()}
    names = labels.get(name, ["False", "True"])
    record["label"] = names.index(record["label"]) if isinstance(record["label"], str) else int(record["label"])
    return Features(columns | {"label": ClassLabel(names=names)}), [record]


def write_repository(directory, name, splits):
    """A data set repository with one configuration, as the hub lays them out."""
    from datasets import Dataset

    task = task_spec.load(name)
    columns, records = features(name)
    config = task.hub.config or "default"
    for split in splits:
        path = directory / config / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_list(records, features=columns).to_parquet(path)
    files = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    (directory / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n")
    return task.hub.model_copy(update={"id": str(directory)})


def load(name, repository):
    """The rows of a task whose repository is another one, and no files."""
    return data_sources.load(task_spec.load(name).model_copy(update={"hub": repository, "rows": {}}), data_dir=None)


@pytest.mark.parametrize(("change", "message"), [
    (lambda table: table.map(lambda _: {"label": -1}), "train, row 0: the label column 'label' is empty"),
    (lambda table: table.remove_columns("label"), "train, row 0: no column 'label'"),
    (lambda table: table.remove_columns("premise"), "train, row 0: no column 'premise'"),
    (lambda table: table.map(lambda _: {"premise": " "}), "train, row 0: premise is empty"),
])  # fmt: skip
def test_a_hub_table_is_checked_like_a_file(tmp_path, monkeypatch, change, message):
    import datasets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    columns, records = features("cb")
    table = change(datasets.Dataset.from_list(records, features=columns))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": table, "validation": table})
    with pytest.raises(UsageError, match=message):
        load("cb", HubDataset(id="somebody/copy"))


def test_hidden_labels_of_a_test_split_are_none(monkeypatch):
    import datasets

    columns, records = features("cb")
    table = datasets.Dataset.from_list(records, features=columns)
    hidden = table.map(lambda _: {"label": -1})
    splits = {"train": table, "validation": table, "test": hidden}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: splits)
    data = load("cb", HubDataset(id="somebody/own"))
    assert [data.splits[split][0].label for split in splits] == [2, 2, None]


def test_an_unreachable_hub_names_the_ways_out_for_data(monkeypatch):
    def offline(*words, **options):
        raise ConnectionError("offline")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(MissingError, match=r"use --data-dir .*HIFI_DATA_DIR.* --protocol demo"):
        load("rte", HubDataset(id="nobody/nothing"))


@pytest.mark.parametrize("name", ROWS)
def test_the_hub_gives_the_same_rows_as_the_official_files(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = load(name, write_repository(tmp_path / "repository", name, ["train", "validation"]))
    assert data.splits["train"] == read_train_rows(tmp_path, name, content(name)) == ROWS[name]
    assert len(data.fingerprint["train"]) == 64


def test_a_repository_with_other_labels_or_splits_is_refused(tmp_path):
    repository = write_repository(tmp_path / "one", "boolq", ["train", "validation"])
    with pytest.raises(UsageError, match="train, row 0: unknown label 'True'; the labels are false, true"):
        load("boolq", repository.model_copy(update={"labels": None}))
    with pytest.raises(UsageError, match="no split 'validation'; the splits are train"):
        load("cb", write_repository(tmp_path / "two", "cb", ["train"]))


def test_the_hubs_conversion_of_a_script_has_a_folder_for_each_configuration(monkeypatch):
    requests = []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.load_dataset", lambda *words, **options: requests.append((*words, options)))
    data_sources.load_tables(HubDataset(id="a/script", revision="refs/convert/parquet"), "cb")
    assert requests == [("a/script", {"revision": "refs/convert/parquet", "data_dir": "cb"})]


def test_a_data_directory_keeps_everything_from_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("hifi_cli.hub.resolve_commit", lambda *_: pytest.fail("the hub was asked"))
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("the hub was read"))
    read_train_rows(tmp_path, "cb", json.dumps(CB))
    data = data_sources.load(task_spec.load("cb"), data_dir=tmp_path, required=())
    assert data.splits["train"] == ROWS["cb"]
