"""Every task's official files as rows, and what a bad file is told."""

import json
import re
import string
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official_rows import (
    CB,
    COPA,
    JSONL,
    MULTIRC,
    RECORD,
    ROWS,
    SWAG,
    WIC,
    WSC,
    content,
    read_train_rows,
)
from tiny_inputs import write_lines

from hifi_cli.config import registry
from hifi_cli.errors import HifiError, MissingError, UsageError
from hifi_cli.tasks import file_formats, scores, task_spec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.task_spec import Row


@pytest.mark.parametrize("name", ROWS)
def test_each_layout_becomes_the_tasks_rows(tmp_path, name):
    assert read_train_rows(tmp_path, name, content(name)) == ROWS[name]


def test_a_cause_is_asked_for_by_because(tmp_path):
    (row,) = read_train_rows(tmp_path, "copa", json.dumps(COPA | {"question": "cause"}))
    assert row.sequences[0] == ("The man fell because he cried.",)


@pytest.mark.parametrize("word", ["Cause", "CAUSE", " cause "])
def test_copas_question_may_have_a_capital(tmp_path, word):
    (row,) = read_train_rows(tmp_path, "copa", json.dumps(COPA | {"question": word}))
    assert row.sequences[0] == ("The man fell because he cried.",)


def test_the_pronoun_is_marked_where_its_index_is_one_off(tmp_path):
    target = {"span1_text": "it", "span2_index": 4, "span2_text": "It"}
    (row,) = read_train_rows(
        tmp_path,
        "wsc",
        json.dumps(WSC | {"text": "It is here. They itch it , all.", "target": target}),
    )
    assert row.sequences[0][0] == "It is here. They itch * it * , all."


def test_a_target_word_may_end_its_sentence(tmp_path):
    end = {"sentence1": "a dog", "start1": 2, "end1": 5}
    (row,) = read_train_rows(tmp_path, "wic", json.dumps(WIC | end))
    assert row.word_spans[0] == (2, 5)


def test_an_answer_of_multirc_may_be_empty(tmp_path):
    question = {"question": "Who?", "idx": 7, "answers": [{"text": "", "idx": 1, "label": 0}]}
    (row,) = read_train_rows(
        tmp_path,
        "multirc",
        json.dumps(MULTIRC | {"passage": {"text": "A text.", "questions": [question]}}),
    )
    assert row.sequences == (("A text.", "Who? "),)


def squad(**changes):
    answer = {"text": "cat", "answer_start": 4, **changes}
    question = {"id": "q1", "question": "Who?", "answers": [answer]}
    return json.dumps(
        {"data": [{"title": "T", "paragraphs": [{"context": "The cat sat.", "qas": [question]}]}]}
    )


BAD = [
    ("cb", json.dumps(CB) + "\n{\"premise\": ", "train.jsonl, line 2: not JSON ("),
    ("cb", "[1]\n", "train.jsonl, object 1: 1 is not an object of columns"),
    ("cb", json.dumps(CB | {"label": "maybe"}), "train.jsonl, line 1: unknown label 'maybe'; the labels are entailment"),
    ("cb", json.dumps(CB | {"label": None}), "train.jsonl, line 1: label is empty"),
    ("cb", json.dumps({"premise": "x", "label": "neutral"}), "train.jsonl, line 1: no column 'hypothesis'; the columns are premise, label"),
    ("cb", json.dumps({"premise": "x", "hypothesis": "y"}), "line 1: no column 'label'"),
    ("cb", json.dumps(CB | {"premise": " "}), "train.jsonl, line 1: premise is empty"),
    ("cb", json.dumps(CB | {"premise": 3}), "line 1: premise is 3, not text"),
    ("cb", json.dumps(CB) + "\n" + json.dumps(CB), "train.jsonl, line 2: duplicate id 0"),
    ("copa", json.dumps(COPA | {"question": "why"}), "line 1: question is 'why', not cause or effect"),
    ("copa", json.dumps(COPA | {"question": None}), "line 1: question is empty"),
    ("wic", json.dumps(WIC | {"end1": 900}), "is outside of sentence1, which has "),
    ("wic", json.dumps(WIC | {"start1": 3, "end1": 3}), "line 1: the target word, characters 3 to 3, is outside of sentence1"),
    ("wic", json.dumps(WIC | {"start2": -1}), "line 1: the target word, characters -1 to "),
    ("wsc", json.dumps(WSC | {"target": WSC["target"] | {"span2_index": "third"}}), "line 1: span2_index is 'third', not an integer"),
    ("wsc", json.dumps({key: value for key, value in WSC.items() if key != "target"}), "line 1: no column 'span2_text'"),
    ("record", json.dumps(RECORD | {"qas": [{"query": "x", "answers": []}]}), "line 1: not laid out as the official files of record; it has no 'idx'"),
    ("wic", json.dumps(WIC | {"start1": "x"}), "line 1: start1 is 'x', not an integer"),
    ("wsc", json.dumps(WSC | {"target": WSC["target"] | {"span2_text": "she"}}), "line 1: the pronoun 'she' (span2_text) is not in the text"),
    ("cb", '{"premise": "cut \\ud83d"}', "train.jsonl, line 1: not JSON ("),
    ("multirc", json.dumps(MULTIRC | {"passage": {"text": "x"}}), "line 1: not laid out as the official files of multirc; it has no 'questions'"),
    ("record", json.dumps(RECORD | {"qas": 3}), "train.jsonl, line 1: not laid out as the official files of record"),
    ("record", json.dumps(RECORD | {"qas": [{"idx": 1, "query": "@placeholder?"}]}), "line 1: no answers"),
    ("record", json.dumps(RECORD | {"passage": {"text": "x", "entities": []}}), "line 1: entities is empty"),
    ("squad", squad(answer_start=5), "question q1: the answer 'cat' is not at character 5"),
    ("squad", squad(answer_start=-8), "the answer 'cat' is not at character -8"),
    ("squad", squad(text=None), "train-v1.1.json, line 1: not a row of format 'squad'"),
    ("squad", '{"data": 3}', "train-v1.1.json, line 1: not laid out as the official files of squad"),
    ("squad", '{"data": []}', "train-v1.1.json has no rows"),
    ("swag", SWAG.replace(",2\n", ",4\n"), "train.csv, line 2: unknown label '4'"),
    ("swag", SWAG + '1,"x\n', "train.csv, line 3: a quote is opened and never closed"),
    ("swag", SWAG + "1,v\n", "train.csv, line 3: label is empty"),
    ("stsb", "sentence1\tsentence2\tscore\na\tb\tsix\n", "train.tsv, line 2: the label 'six' is not a number"),
    ("stsb", "sentence1\tsentence2\tscore\na\tb\t5.1\n", "train.tsv, line 2: the label '5.1' is not a number in [0, 5]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_file_is_told_in_one_line_with_its_place(tmp_path, name, text, message):
    with pytest.raises(UsageError) as error:
        read_train_rows(tmp_path, name, text)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_official_rows_that_end_early_are_left_out_and_counted(tmp_path, caplog):
    text = "id\tquestion1\tquestion2\tis_duplicate\n5\ta\tb\t1\n6\ta\n7\t\tb\t0\n8\tc\td\t0\n"
    rows = read_train_rows(tmp_path, "qqp", text)
    assert [(row.id, row.sequences, row.label) for row in rows] == [
        ("0", (("a", "b"),), 1),
        ("3", (("c", "d"),), 0),
    ]
    assert "skipped 2 rows without a text or label" in caplog.text


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(string.ascii_lowercase, max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(JSONL)), st.data())
@settings(max_examples=60, deadline=None)
def test_any_json_lines_are_read_or_refused(tmp_path_factory, name, data):
    record = json.loads(json.dumps(JSONL[name]))
    key = data.draw(st.sampled_from(sorted(record)))
    record[key] = data.draw(ANY)
    junk = data.draw(st.one_of(st.just(""), st.text(max_size=30), st.just(json.dumps(record))))
    try:
        rows = read_train_rows(
            tmp_path_factory.mktemp("fuzz"),
            name,
            (json.dumps(record) + "\n" + junk).encode("utf-8", "replace"),
        )
    except HifiError as error:
        assert "\n" not in str(error)
        return
    assert all(
        isinstance(text, str) and text.strip()
        for row in rows
        for sequence in row.sequences
        for text in sequence
    )


MNLI_HEADER = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"


def test_mnlis_validation_sets_are_two_and_its_test_sets_three(tmp_path):
    task = task_spec.load("mnli")
    folder = tmp_path / "glue" / "MNLI"
    folder.mkdir(parents=True)
    row = "0" + "\tn/a" * 7 + "\tA b.\tC."
    for name, word in (
        ("train", "neutral"),
        ("dev_matched", "entailment"),
        ("dev_mismatched", "contradiction"),
    ):
        (folder / f"{name}.tsv").write_text(f"{MNLI_HEADER}\tgold_label\n{row}\t{word}\n")
    (folder / "test_matched.tsv").write_text(f"{MNLI_HEADER}\n{row}\n")
    (folder.parent / "diagnostic").mkdir()
    (folder.parent / "diagnostic" / "diagnostic.tsv").write_text(
        "index\tsentence1\tsentence2\n0\tA.\tB.\n"
    )
    data = task_sources.load(task, data_dir=tmp_path)
    assert {split: [row.label for row in rows] for split, rows in data.splits.items()} == {
        "train": [1], "validation": [0], "validation_mismatched": [2], "test": [None], "test_diagnostic": [None],
    }  # fmt: skip
    assert task.extra_validation == {"mismatched": "validation_mismatched"}
    with pytest.raises(MissingError, match="no test_mismatched split"):
        data.rows("test_mismatched")


HANS_HEADER = MNLI_HEADER.partition("genre")[2] + "\tpairID\theuristic\tsubcase\ttemplate"
HANS_LABELS = ["non-entailment", "non-entailment", "non-entailment", "entailment", "entailment"]


def test_challenge_sets_are_measured_with_mnlis_classes(tmp_path):
    (tmp_path / "MNLI").mkdir()
    parses = "\tn/a" * 4
    for name in ("train", "dev_matched", "dev_mismatched"):
        row = f"0\t1\t1n\tfiction{parses}\tA b.\tC.\tneutral"
        (tmp_path / "MNLI" / f"{name}.tsv").write_text(f"{MNLI_HEADER}\tgold_label\n{row}\n")
    hans = [
        f"{label}{parses}\tHe ran {at}.\tHe ran.\tex{at}\tlexical_overlap\tln\ttemp1"
        for at, label in enumerate(HANS_LABELS)
    ]
    write_lines(
        tmp_path / "HANS" / "heuristics_evaluation_set.txt", [f"gold_label{HANS_HEADER}", *hans]
    )
    for index, label in enumerate("nce", start=1):
        (tmp_path / "anli_v1.0" / f"R{index}").mkdir(parents=True)
        row = {
            "uid": "u1",
            "context": "It rained.",
            "hypothesis": "It snowed.",
            "label": label,
            "model_label": "e",
            "reason": "r",
        }
        (tmp_path / "anli_v1.0" / f"R{index}" / "dev.jsonl").write_text(json.dumps(row) + "\n")
    task = task_spec.load("mnli-challenge")
    data = task_sources.load(task, data_dir=tmp_path)
    assert {name: data.rows(split)[0].label for name, split in task.extra_validation.items()} == {
        "mismatched": 1, "hans": 1, "anli_r1": 1, "anli_r2": 2, "anli_r3": 0,
    }  # fmt: skip
    assert data.rows("validation_anli_r2") == [Row("u1", (("It rained.", "It snowed."),), 2)]
    assert (
        {*data.fingerprint}
        == {*data.splits}
        == {"train", "validation", *task.extra_validation.values()}
    )
    # neutral and contradiction are both non-entailment: only the third row and the last one are wrong
    computed = scores.compute(
        task.on_split("validation_hans"), data.rows("validation_hans"), np.array([1.0, 2, 0, 0, 2])
    )
    assert computed == {"binary_accuracy": 0.6}

    # Digests are remembered until one of all the files changes.
    def fingerprint():
        return task_sources.fingerprint_of_files(
            task, tmp_path, lambda: task_sources.load(task, data_dir=tmp_path)
        )

    assert fingerprint() == data.fingerprint
    (tmp_path / "anli_v1.0/R3/dev.jsonl").write_text(json.dumps(row | {"uid": "another"}) + "\n")
    differing = [
        split for split, value in fingerprint().items() if value != data.fingerprint[split]
    ]
    assert differing == ["validation_anli_r3"]


def test_xnli_is_english_and_the_test_rows_of_every_language(monkeypatch, tmp_path):
    from datasets import ClassLabel, Dataset

    def table(config):
        rows = Dataset.from_list([{"premise": f"{config} a", "hypothesis": "b", "label": 2}])
        return rows.cast_column(
            "label", ClassLabel(names=["entailment", "neutral", "contradiction"])
        )

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(
        "datasets.load_dataset",
        lambda _, name, **__: dict.fromkeys(("train", "validation", "test"), table(name)),
    )
    task = task_spec.load("xnli").model_copy(update={"rows": {}})
    data = task_sources.load(task, data_dir=None)
    assert len(task.extra_validation) == 15 and {
        "train",
        "validation",
        *task.extra_validation.values(),
    } == {*data.splits}
    assert data.rows("validation_sw") == [Row("0", (("sw a", "b"),), 2)]
    assert data.rows("train") == data.rows("validation_en") == [Row("0", (("en a", "b"),), 2)]
    header = "language\tgold_label\tsentence1\tsentence2"
    lines = [f"{name}\tcontradiction\t{name} a\tb" for name in task.extra_validation]
    for name in ("MNLI/train", "XNLI-1.0/xnli.dev", "XNLI-1.0/xnli.test"):
        write_lines(tmp_path / f"{name}.tsv", [header, *(lines[:1] if "MNLI" in name else lines)])
    assert task_sources.load(task, data_dir=tmp_path).splits == data.splits


def test_a_task_without_its_train_file_says_which(tmp_path, caplog):
    read_train_rows(tmp_path, "cb", json.dumps(CB))
    (tmp_path / "CB" / "train.jsonl").rename(tmp_path / "CB" / "val.jsonl")
    with pytest.raises(
        MissingError, match="CB: the data have no train split; the splits are validation"
    ):
        task_sources.load(task_spec.load("cb"), data_dir=tmp_path)
    assert "no file CB/train.jsonl; the train split is missing" in caplog.text
    assert [*task_sources.load(task_spec.load("cb"), data_dir=tmp_path, required=()).splits] == [
        "validation"
    ]


def test_row_counts_leave_a_gap_where_data_are_not_at_hand(tmp_path):
    read_train_rows(tmp_path, "cb", json.dumps(CB))
    assert task_sources.count_rows(["cb", "rte"], data_dir=tmp_path) == {"cb": {"train": 1}}
    (tmp_path / "CB" / "train.jsonl").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        task_sources.count_rows(["cb"], data_dir=tmp_path)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("primary: accuracy", "primary: f1", "primary: 'f1' is not among metrics"),
    ("labels: [entailment, contradiction, neutral]\nmetrics", "labels: [entailment]\nmetrics", "regression requires one name, all others two or more"),
    ("inputs:", "kind: multiple-choice\ninputs:", "format plain does not fit kind multiple-choice, which requires copa or swag"),
    ("reader: jsonl", "reader: json", "local.reader must be "),
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


def test_every_task_with_a_hub_names_its_splits_and_counts():
    for name in registry.names("tasks"):
        task = task_spec.load(name)
        if task.hub:
            assert set(task.hub.splits) >= {"train", "validation"}
            assert (
                {"train", "validation"} <= set(task.rows) <= {*task.local.files, *task.hub.splits}
            )
        if task.submission:
            assert set(task.submission.files) <= set(task.rows)
            has_labels = task.kind != "regression" and task.format != "record"
            assert len(task.submission.labels) in (
                len(task.labels) if has_labels else 0,
                len(task.labels),
            )


def test_every_suffix_is_in_the_documentation_and_in_the_messages(hifi):
    """The table of formats is the only list: messages are made from it, and the page is compared with it."""
    suffixes = [suffix for known in file_formats.FORMATS.values() for suffix in known.suffixes]
    assert len({*suffixes}) == len(suffixes) > 5
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert f"({', '.join(f'`{suffix}`' for suffix in suffixes)})" in page
    *others, last = suffixes
    answer = hifi("train --task nowhere --method full-ft")
    assert f"data files are {', '.join(others)} or {last})" in answer.err
    with pytest.raises(UsageError, match=re.escape(", ".join(suffixes))):
        file_formats.format_of(Path("data.xlsx"))
