"""Every task's files as rows: the official layouts, the hub's columns, and what a bad file is told."""

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifi_cli.config import registry
from hifi_cli.errors import HifiError, MissingError, UsageError
from hifi_cli.tasks import data_sources, hub_dataset, local_files, row_counts, task_spec
from hifi_cli.tasks.task_spec import HubDataset, Row

WIC = {
    "word": "run",
    "sentence1": "He ran home.",
    "sentence2": "A run of luck.",
    "idx": 0,
    "label": True,
    "start1": 3,
    "end1": 6,
    "start2": 2,
    "end2": 5,
    "version": 1.1,
}
COPA = {"premise": "The man fell.", "choice1": "He cried.", "choice2": "It rained.", "question": "effect", "label": 1, "idx": 0}
WSC = {
    "text": "Mark told Pete that he lied.",
    "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 4, "span2_text": "he"},
    "idx": 0,
    "label": False,
}
BOOLQ = {"question": "is it so", "passage": "It is -- so.", "idx": 0, "label": True}
CB = {"premise": "He said so.", "hypothesis": "it is so", "label": "neutral", "idx": 0}
MULTIRC = {"idx": 3, "version": 1.1, "passage": {"text": "A text.", "questions": [
    {"question": "Who?", "idx": 7, "answers": [{"text": "He", "idx": 1, "label": 1}, {"text": "She", "idx": 2, "label": 0}]},
]}}  # fmt: skip
SQUAD = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "The cat sat.", "qas": [
    {"id": "q1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}, {"text": "The cat", "answer_start": 0}]},
]}]}]}  # fmt: skip
SWAG = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n0,v,1,x,He stops.,He,gold,"goes, then sits",runs,"says ""no""",is,2\n'
JSONL = {"wic": WIC, "copa": COPA, "wsc": WSC, "boolq": BOOLQ, "cb": CB, "multirc": MULTIRC}


def content(name):
    return SWAG if name == "swag" else json.dumps(SQUAD if name == "squad" else JSONL[name]) + "\n"


def read(tmp_path, name, text, required=()):
    """The train rows of a task whose train file holds `text`."""
    task = task_spec.load(name).model_copy(update={"rows": {}})
    names = task.local.files["train"]
    path = tmp_path / task.local.folder / (names if isinstance(names, str) else names[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return local_files.load(task, tmp_path, required=required).splits["train"]


ROWS = {
    "wic": [Row("0", (("He ran home.", "A run of luck."),), 1, word_spans=((3, 6), (2, 5)))],
    "copa": [Row("0", (("The man fell so he cried.",), ("The man fell so it rained.",)), 1)],
    "wsc": [Row("0", (("Mark told Pete that * he * lied.", "Mark"),), 0)],
    "boolq": [Row("0", (("It is -- so.", "is it so"),), 1)],
    "cb": [Row("0", (("He said so.", "it is so"),), 2)],
    "multirc": [
        Row("3-7-1", (("A text.", "Who? He"),), 1, group="3-7"),
        Row("3-7-2", (("A text.", "Who? She"),), 0, group="3-7"),
    ],
    "squad": [Row("q1", (("Who sat?", "The cat sat."),), None, answers=(("cat", 4), ("The cat", 0)))],
    "swag": [
        Row(
            "0",
            (
                ("He stops.", "He goes, then sits"),
                ("He stops.", "He runs"),
                ("He stops.", 'He says "no"'),
                ("He stops.", "He is"),
            ),
            2,
        )
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_each_layout_becomes_the_tasks_rows(tmp_path, name):
    assert read(tmp_path, name, content(name)) == ROWS[name]


def test_a_cause_is_asked_for_by_because(tmp_path):
    (row,) = read(tmp_path, "copa", json.dumps(COPA | {"question": "cause"}))
    assert row.sequences[0] == ("The man fell because he cried.",)


def squad(**changes):
    answer = {"text": "cat", "answer_start": 4, **changes}
    question = {"id": "q1", "question": "Who?", "answers": [answer]}
    return json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "The cat sat.", "qas": [question]}]}]})


BAD = [
    ("cb", json.dumps(CB) + "\n{\"premise\": ", "train.jsonl, line 2: invalid JSON"),
    ("cb", "[1]\n", "train.jsonl, line 1: expected a JSON object"),
    ("cb", json.dumps(CB | {"label": "maybe"}), "train.jsonl, line 1: unknown label 'maybe'; the labels are entailment"),
    ("cb", json.dumps({"premise": "x", "label": "neutral"}), "train.jsonl, line 1: no column 'hypothesis'; the columns are premise, label"),
    ("cb", json.dumps({"premise": "x", "hypothesis": "y"}), "line 1: no column 'label'"),
    ("cb", json.dumps(CB | {"premise": " "}), "train.jsonl, line 1: premise is empty"),
    ("cb", json.dumps(CB | {"premise": 3}), "line 1: premise is 3, not text"),
    ("cb", json.dumps(CB) + "\n" + json.dumps(CB), "train.jsonl, line 2: duplicate id 0, first used in line 1"),
    ("boolq", json.dumps(BOOLQ | {"label": "yes"}), "unknown label 'yes'; the labels are false, true"),
    ("copa", json.dumps(COPA | {"question": "why"}), "question 'why' is neither cause nor effect"),
    ("wic", json.dumps(WIC | {"start1": 4}), "line 1: start1, end1 = 4, 6 do not mark the word 'run' but 'an'"),
    ("wic", json.dumps(WIC | {"end2": 60}), "start2, end2 = 2, 60 do not mark the word 'run'"),
    ("wic", json.dumps(WIC | {"end1": 5}), "start1, end1 = 3, 5 do not mark"),
    ("wic", json.dumps(WIC | {"start1": "3"}), "start1 is '3', not an integer"),
    ("wsc", json.dumps(WSC | {"target": WSC["target"] | {"span2_index": 6}}), "span2_index 6 is outside the text's 6 words"),
    ("multirc", json.dumps(MULTIRC | {"passage": {"text": "x"}}), "line 1: 'questions' is missing"),
    ("multirc", json.dumps(MULTIRC | {"idx": None}), "integers for paragraph, question and answer are required"),
    ("squad", squad(answer_start=5), "question q1: the answer 'cat' is not at character 5 of its context"),
    ("squad", squad(answer_start=400), "the answer 'cat' is not at character 400"),
    ("squad", squad(answer_start=-8), "the answer 'cat' is not at character -8"),
    ("squad", squad(text=None), "question q1: answers: None"),
    ("squad", '{"data": 3}', "train-v1.1.json: 'data' is missing or is no list"),
    ("squad", '{"data": []}', "train-v1.1.json has no rows"),
    ("swag", SWAG.replace(",2\n", ",4\n"), "train.csv, line 2: unknown label '4'"),
    ("swag", SWAG + '1,"x\n', "train.csv, line 3: not valid CSV"),
    ("swag", SWAG + "1,v\n", "train.csv, line 3: 2 columns, 12 are expected"),
    ("swag", SWAG.partition("\n")[0], "has a header and no rows"),
    ("qqp", "id\tquestion1\tquestion2\tis_duplicate\n1\ta\tb\t2\n", "train.tsv, line 2: unknown label '2'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_file_is_told_in_one_line_with_its_place(tmp_path, name, text, message):
    with pytest.raises(UsageError) as error:
        read(tmp_path, name, text)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_lemma_need_not_look_like_its_word_and_may_be_negated(tmp_path):
    sentence = "It doesn't go."
    (row,) = read(tmp_path, "wic", json.dumps(WIC | {"word": "do", "sentence1": sentence, "start1": 3, "end1": 7}))
    assert sentence[slice(*row.word_spans[0])] == "does"


def test_official_rows_that_end_early_are_left_out_and_counted(tmp_path, caplog):
    text = "id\tquestion1\tquestion2\tis_duplicate\n5\ta\tb\t1\n6\ta\n7\t\tb\t0\n8\tc\td\t0\n"
    rows = read(tmp_path, "qqp", text)
    assert [(row.id, row.sequences, row.label) for row in rows] == [("0", (("a", "b"),), 1), ("1", (("c", "d"),), 0)]
    assert "skipped 1 rows with missing columns" in caplog.text
    assert "skipped 1 rows with an empty text" in caplog.text


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_lowercase, max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(JSONL)), st.data())
@settings(max_examples=200, deadline=None)
def test_any_json_lines_are_read_or_refused(tmp_path_factory, name, data):
    record = json.loads(json.dumps(JSONL[name]))
    key = data.draw(st.sampled_from(sorted(record)))
    record[key] = data.draw(ANY)
    junk = data.draw(st.one_of(st.just(""), st.text(max_size=30), st.just(json.dumps(record))))
    try:
        rows = read(tmp_path_factory.mktemp("fuzz"), name, (json.dumps(record) + "\n" + junk).encode("utf-8", "replace"))
    except HifiError as error:
        assert "\n" not in str(error)
        return
    assert all(isinstance(text, str) and text.strip() for row in rows for sequence in row.sequences for text in sequence)


@given(
    st.sampled_from(["title", "paragraphs", "context", "qas", "id", "question", "answers", "text", "answer_start", "data"]), ANY
)
@settings(max_examples=200, deadline=None)
def test_any_squad_file_is_read_or_refused(tmp_path_factory, key, value):
    def put(node):
        if isinstance(node, dict):
            return {name: value if name == key else put(inner) for name, inner in node.items()}
        return [put(inner) for inner in node] if isinstance(node, list) else node

    try:
        rows = read(tmp_path_factory.mktemp("fuzz"), "squad", json.dumps(put(SQUAD)))
    except HifiError as error:
        assert "\n" not in str(error)
        return
    assert all(row.sequences[0][1][start : start + len(text)] == text for row in rows for text, start in row.answers)


@given(st.binary(max_size=120))
@settings(max_examples=150, deadline=None)
def test_any_csv_is_read_or_refused(tmp_path_factory, junk):
    try:
        rows = read(tmp_path_factory.mktemp("fuzz"), "swag", SWAG.encode() + junk)
    except HifiError as error:
        assert "\n" not in str(error)
        return
    assert all(len(row.sequences) == 4 and row.label in range(4) for row in rows)


MNLI_HEADER = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"


def test_mnlis_validation_sets_are_two_and_its_test_sets_three(tmp_path, caplog):
    task = task_spec.load("mnli")
    folder = tmp_path / "glue" / "MNLI"
    folder.mkdir(parents=True)
    row = "0" + "\tn/a" * 7 + "\tA b.\tC."
    for name, word in (("train", "neutral"), ("dev_matched", "entailment"), ("dev_mismatched", "contradiction")):
        (folder / f"{name}.tsv").write_text(f"{MNLI_HEADER}\tgold_label\n{row}\t{word}\n")
    (folder / "test_matched.tsv").write_text(f"{MNLI_HEADER}\n{row}\n")
    (folder.parent / "diagnostic").mkdir()
    (folder.parent / "diagnostic" / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\tA.\tB.\n")
    data = local_files.load(task, tmp_path)
    assert {split: [row.label for row in rows] for split, rows in data.splits.items()} == {
        "train": [1], "validation": [0], "validation_mismatched": [2], "test": [None], "test_diagnostic": [None],
    }  # fmt: skip
    assert task.extra_validation == {"mismatched": "validation_mismatched"}
    with pytest.raises(MissingError, match="no test_mismatched split"):
        data.rows("test_mismatched")
    (folder / "dev_mismatched.tsv").unlink()
    assert "validation_mismatched" not in local_files.load(task, tmp_path).splits
    assert "dev_mismatched.tsv" in caplog.text


def test_a_task_without_its_train_file_says_which(tmp_path):
    read(tmp_path, "cb", json.dumps(CB))
    (tmp_path / "CB" / "train.jsonl").rename(tmp_path / "CB" / "val.jsonl")
    with pytest.raises(MissingError, match=r"no file .*train\.jsonl; the train split of the official download is required"):
        local_files.load(task_spec.load("cb"), tmp_path)
    assert [*local_files.load(task_spec.load("cb"), tmp_path, required=()).splits] == ["validation"]


def test_counts_stand_beside_the_official_ones(tmp_path):
    read(tmp_path, "cb", json.dumps(CB))
    task = task_spec.load("cb")
    counts = row_counts.count(task, local_files.load(task, tmp_path, required=()))
    train = {"entailment": 0, "contradiction": 0, "neutral": 1}
    assert [(one.split, one.rows, one.official) for one in counts] == [
        ("train", 1, 250),
        ("validation", None, 56),
        ("test", None, 250),
    ]
    assert {key: value for key, value in train.items() if value} == counts[0].labels


def test_counts_of_several_tasks_leave_a_gap_where_data_are_not_at_hand(tmp_path):
    read(tmp_path, "cb", json.dumps(CB))
    found = row_counts.collect(["cb", "rte"], data_dir=tmp_path, results_dir=tmp_path)
    assert [one.rows for one in found["cb"]] == [1, None, None]
    assert [(one.rows, one.official) for one in found["rte"]] == [(None, 2490), (None, 277), (None, 3000)]
    (tmp_path / "CB" / "train.jsonl").write_text("{")
    with pytest.raises(UsageError, match="invalid JSON"):
        row_counts.collect(["cb"], data_dir=tmp_path, results_dir=tmp_path)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("train: train.jsonl", "trian: train.jsonl", "'trian' is not one of train, validation, test"),
    ("primary: accuracy", "primary: f1", "primary 'f1' is not among metrics"),
    ("labels: [entailment, contradiction, neutral]\nmetrics", "labels: [entailment]\nmetrics", "regression requires one name, all others two or more"),
    ("reader: jsonl", "reader: json", "local.reader: "),
    ("inputs: [premise, hypothesis]", "inputs: [a, b, c]", "one or two text columns are required"),
])  # fmt: skip
def test_a_task_file_that_does_not_hold_together_is_told(tmp_path, old, new, message):
    text = registry.find("tasks", "cb").read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as error:
        task_spec.load(str(path))
    assert message in str(error.value) and str(path) in str(error.value)


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


@pytest.mark.parametrize(("change", "message"), [
    (lambda table: table.map(lambda _: {"label": -1}), "train, row 0: no label"),
    (lambda table: table.remove_columns("label"), "train: no column 'label'"),
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
        hub_dataset.load(task_spec.load("cb"), HubDataset(id="somebody/copy"))


def test_the_hubs_incomplete_rows_are_left_out_too(monkeypatch, caplog):
    import datasets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    columns = {"question1": ["a", "", "c"], "question2": ["b", "b", "d"], "label": [1, 0, 0]}
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *_, **__: {split: datasets.Dataset.from_dict(columns) for split in ("train", "validation")},
    )
    data = hub_dataset.load(task_spec.load("qqp"), HubDataset(id="somebody/copy"))
    assert [(row.id, row.sequences[0]) for row in data.splits["train"]] == [("0", ("a", "b")), ("1", ("c", "d"))]
    assert "somebody/copy, train: skipped 1 rows with an empty text" in caplog.text


@pytest.mark.parametrize("name", ROWS)
def test_the_hub_gives_the_same_rows_as_the_official_files(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    task = task_spec.load(name).model_copy(update={"rows": {}})
    repository = write_repository(tmp_path / "repository", name, ["train", "validation"])
    data = hub_dataset.load(task, repository)
    assert data.splits["train"] == read(tmp_path, name, content(name)) == ROWS[name]
    assert len(data.fingerprint["train"]) == 64


def test_a_repository_with_other_columns_or_splits_is_refused(tmp_path):
    task = task_spec.load("cb")
    repository = write_repository(tmp_path / "one", "boolq", ["train", "validation"])
    with pytest.raises(UsageError, match=r"train: the labels are .* the task has"):
        hub_dataset.load(task, repository.model_copy(update={"labels": None}))
    repository = write_repository(tmp_path / "two", "cb", ["train"])
    with pytest.raises(UsageError, match="no split 'validation'; the splits are train"):
        hub_dataset.load(task, repository)


def test_a_script_repository_is_read_from_the_hubs_conversion(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = []
    local_copy = write_repository(tmp_path / "repository", "cb", ["train", "validation"])
    real = datasets.load_dataset

    def load_dataset(name, config=None, data_dir=None, revision=None):
        asked.append((name, config, data_dir, revision))
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found super_glue.py")
        return real(local_copy.id, data_dir)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = hub_dataset.load(task_spec.load("cb"), HubDataset(id="aps/super_glue", config="cb"))
    assert data.splits["train"] == ROWS["cb"]
    assert asked == [("aps/super_glue", "cb", None, None), ("aps/super_glue", None, "cb", "refs/convert/parquet")]


def test_a_data_directory_keeps_everything_from_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("hifi_cli.hub.resolve_commit", lambda *_: pytest.fail("the hub was asked"))
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("the hub was read"))
    read(tmp_path, "cb", json.dumps(CB))
    data = data_sources.load(task_spec.load("cb"), data_dir=tmp_path, results_dir=tmp_path, required=())
    assert data.splits["train"] == ROWS["cb"]


def test_every_task_with_a_hub_names_its_splits_and_counts():
    for name in registry.names("tasks"):
        task = task_spec.load(name)
        if task.hub:
            assert set(task.hub.splits) >= {"train", "validation"}
            assert {"train", "validation"} <= set(task.rows) <= set(task.local.files)
        if task.submission:
            assert set(task.submission.files) <= set(task.rows)
            assert len(task.submission.labels) in (0 if task.kind == "regression" else len(task.labels), len(task.labels))
