"""Rows from the hub: the same as from the official files, and what a repository that differs is told."""

import json

import pytest
from official_rows import CB, JSONL, ROWS, content, read_train_rows

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import HubDataset

PASSAGE = {
    "passage": JSONL["record"]["passage"]["text"],
    "entities": ["Ann Lee", "Bo", "Lee"],
    "answers": ["Ann Lee", "Lee"],
}
ANSWERS = {"text": ["cat", "The cat"], "answer_start": [4, 0]}
RECORDS = {  # of the hub, where their columns are not those of the official files
    "squad": [{"id": "q1", "title": "T", "context": "The cat sat.", "question": "Who sat?", "answers": ANSWERS}],
    "swag": [{"sent1": "He stops.", "sent2": "He", "ending0": "goes, then sits", "ending1": "runs", "ending2": 'says "no"', "ending3": "is", "label": 2}],
    "multirc": [
        {"paragraph": "A text.", "question": "Who?", "answer": text, "idx": {"paragraph": 3, "question": 7, "answer": at}, "label": label}
        for text, at, label in (("He", 1, 1), ("She", 2, 0))
    ],
    "record": [PASSAGE | {"query": "It was @placeholder who left.", "idx": {"passage": 2, "query": 5}}],
}  # fmt: skip
LABELS = {
    "copa": ["choice1", "choice2"],
    "cb": ["entailment", "contradiction", "neutral"],
    "swag": ["0", "1", "2", "3"],
}


def table_of(name):
    """The official file's record as a table of the hub, with class indices."""
    from datasets import ClassLabel, Dataset

    names = LABELS.get(name, ["False", "True"])
    record = JSONL.get(name, {}) | JSONL.get(name, {}).get("target", {})
    record |= {"label": names.index(record["label"])} if record.get("label") in names else {}
    record.pop("target", None)
    table = Dataset.from_list(RECORDS.get(name) or [record])
    return (
        table.cast_column("label", ClassLabel(names=names))
        if "label" in table.column_names
        else table
    )


def write_repository(directory, name, splits):
    """A data set repository with one configuration, as the hub lays them out."""
    task = task_spec.load(name)
    config = task.hub.config or "default"
    (directory / config).mkdir(parents=True)
    for split in splits:
        table_of(name).to_parquet(directory / config / f"{split}-00000-of-00001.parquet")
    files = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    (directory / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n"
    )
    return task.hub.model_copy(update={"id": str(directory)})


def load(name, repository):
    """The rows of a task whose repository is another one, and no files."""
    return task_sources.load(
        task_spec.load(name).model_copy(update={"hub": repository, "rows": {}}), data_dir=None
    )


@pytest.mark.parametrize(("change", "message"), [
    (lambda table: table.map(lambda _: {"label": -1}), "train, row 0: label is empty"),
    (lambda table: table.remove_columns("label"), "train, row 0: no column 'label'"),
    (lambda table: table.remove_columns("premise"), "train, row 0: no column 'premise'"),
    (lambda table: table.map(lambda _: {"premise": " "}), "train, row 0: premise is empty"),
])  # fmt: skip
def test_a_hub_table_is_checked_like_a_file(tmp_path, monkeypatch, change, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    table = change(table_of("cb"))
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *_, **__: {"train": table, "validation": table}
    )
    with pytest.raises(UsageError, match=message):
        load("cb", HubDataset(id="somebody/copy"))


def test_hidden_labels_of_a_test_split_are_none(monkeypatch):
    table = table_of("cb")
    splits = {"train": table, "validation": table, "test": table.map(lambda _: {"label": -1})}
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: splits)
    data = load("cb", HubDataset(id="somebody/own"))
    assert [data.splits[split][0].label for split in splits] == [2, 2, None]


def test_an_unreachable_hub_names_the_ways_out_for_data(monkeypatch):
    def offline(*words, **options):
        raise ConnectionError("offline")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(
        MissingError, match=r"use --data-dir .*HIFI_DATA_DIR.* --task demo-entailment"
    ):
        load("rte", HubDataset(id="nobody/nothing"))


@pytest.mark.parametrize("name", ROWS)
def test_the_hub_gives_the_same_rows_as_the_official_files(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = load(name, write_repository(tmp_path / "repository", name, ["train", "validation"]))
    assert data.splits["train"] == read_train_rows(tmp_path, name, content(name)) == ROWS[name]
    assert len(data.fingerprint["train"]) == 64


def test_a_repository_with_other_labels_or_splits_is_refused(tmp_path):
    repository = write_repository(tmp_path / "one", "boolq", ["train", "validation"])
    with pytest.raises(
        UsageError, match="train, row 0: unknown label 'True'; the labels are false, true"
    ):
        load("boolq", repository.model_copy(update={"labels": None}))
    with pytest.raises(UsageError, match="no split 'validation'; the splits are train"):
        load("cb", write_repository(tmp_path / "two", "cb", ["train"]))


def test_the_hubs_conversion_of_a_script_has_a_folder_for_each_configuration(monkeypatch):
    requests = []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *words, **options: requests.append((*words, options))
    )
    task_sources.load_tables("a/script", "refs/convert/parquet", "cb")
    assert requests == [("a/script", {"revision": "refs/convert/parquet", "data_dir": "cb"})]


def test_a_data_directory_keeps_everything_from_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hifi_cli.tasks.sources.resolve_commit", lambda *_: pytest.fail("the hub was asked")
    )
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("the hub was read"))
    read_train_rows(tmp_path, "cb", json.dumps(CB))
    data = task_sources.load(task_spec.load("cb"), data_dir=tmp_path, required=())
    assert data.splits["train"] == ROWS["cb"]
