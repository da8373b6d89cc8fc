"""`--task data.csv`: what is recognized, how it is changed, the cut, bad rows, and the way from a file to a prediction."""

import csv
import json
from collections import Counter

import pytest
import yaml
from project_files import copy_yaml

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import data_sources, task_from_data, task_spec
from hifi_cli.tasks.task_from_data import task_yaml

SENTENCES = ["the dog sees a cat", "a bird never likes the fish", "the old man hears a boy", "a small girl knows the woman"]


def reviews(count=60):
    """Rows of id, sentence1, sentence2, label and price: labels 1 to 3, the third one rare."""
    labels = [1 if row % 3 == 0 else 2 if row % 10 else 3 for row in range(count)]
    return [
        {
            "id": 100 + row,
            "sentence1": f"{SENTENCES[row % 4]} now {row}",
            "sentence2": SENTENCES[(row + 1) % 4],
            "label": star,
            "price": row / 8,
        }
        for row, star in enumerate(labels)
    ]


def write(path, rows):
    """Write rows in the format of the file's suffix."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        import pandas

        pandas.DataFrame(rows).to_parquet(path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return path


def spec_of(source, *overrides):
    name, text = task_yaml(str(source), overrides)
    return name, yaml.safe_load(text)


def load(source, *overrides):
    spec = task_spec.load(task_from_data.register(str(source), overrides))
    return spec, data_sources.load(spec, data_dir=None)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_gives_the_same_task_and_rows(tmp_path, suffix):
    name, content = spec_of(write(tmp_path / f"reviews.{suffix}", reviews()))
    assert name == "reviews"
    assert (content["kind"], content["inputs"], content["id"]) == ("classification", ["sentence1", "sentence2"], "id")
    assert content["local"]["columns"] == {"label": "label"}
    assert content["labels"] == ["1", "2", "3"]
    assert content["metrics"] == ["accuracy", "f1_macro"]
    _, data = load(tmp_path / f"reviews.{suffix}")
    reference = write(tmp_path / "reference.csv", reviews())
    assert data.fingerprint == load(reference)[1].fingerprint
    row = next(row for row in data.rows("train") if row.id == "101")
    assert row.sequences == ((reviews()[1]["sentence1"], reviews()[1]["sentence2"]),)
    assert row.label == 1  # label 2


def test_what_is_recognized_is_said_and_changed(tmp_path, caplog):
    path = write(tmp_path / "reviews.csv", reviews())
    content = spec_of(path, "inputs=sentence2", "label=price", "validation=0.25", "split_seed=3")[1]
    assert (content["kind"], content["inputs"], content["labels"]) == ("regression", ["sentence2"], ["price"])
    assert (content["metrics"], content["primary"]) == (["spearman", "pearson"], "spearman")
    assert content["cut"] == {"validation": 0.25, "seed": 3}
    assert caplog.messages[-1].endswith("60 rows, 25% of them cut off for validation; change it with key=value")
    assert "regression, inputs=sentence2 label=price," in caplog.messages[-1]
    content = spec_of(path, "kind=regression")[1]
    assert content["labels"] == ["label"]
    assert spec_of(path, "labels=[3, 2, 1]")[1]["labels"] == ["3", "2", "1"]


def test_names_do_not_hide_shipped_tasks(tmp_path):
    assert spec_of(write(tmp_path / "rte.csv", reviews()))[0] == "rte-data"
    (tmp_path / "shop").mkdir()
    assert spec_of(write(tmp_path / "shop" / "train.csv", reviews()))[0] == "shop"


def test_the_cut_is_stratified_and_repeats(tmp_path):
    path = write(tmp_path / "reviews.csv", reviews(200))
    data = load(path, "validation=0.2")[1]
    total = Counter(row["label"] - 1 for row in reviews(200))
    for seed in range(5):
        cut_off = Counter(row.label for row in load(path, "validation=0.2", f"split_seed={seed}")[1].rows("validation"))
        assert sum(cut_off.values()) == 40
        for label, count in total.items():
            assert abs(cut_off[label] - count / 5) <= 1
    ids = [row.id for split in ("train", "validation") for row in data.rows(split)]
    assert sorted(ids) == sorted(str(row["id"]) for row in reviews(200))
    assert load(path, "validation=0.2")[1].fingerprint == data.fingerprint
    assert load(path, "validation=0.2", "split_seed=1")[1].fingerprint != data.fingerprint


def test_given_splits_are_read(tmp_path):
    rows = reviews()
    path, dev = write(tmp_path / "reviews.csv", rows[:40]), write(tmp_path / "dev.csv", rows[40:])
    _, data = load(path, f"validation={dev}")
    assert [len(data.rows(split)) for split in ("train", "validation")] == [40, 20]
    with pytest.raises(MissingError, match="no file none"):
        load(path, "validation=none.csv")


@pytest.mark.parametrize(
    ("change", "overrides", "message"),
    [
        ({"label": ""}, [], "line 4: the label column 'label' is empty; fill it in, or remove the row"),
        ({"sentence2": " "}, [], "line 4: sentence2 is empty; fill it in or remove the row"),
        ({}, ["label=lable"], "no column 'lable'; did you mean 'label'"),
        ({}, ["inputs=[sentence1, text]"], "no column 'text'"),
        ({}, ["label=sentence1"], "has 60 different values in 60 rows; give another label=COLUMN"),
        (
            {},
            ["kind=clasification"],
            "kind: Input should be 'classification', 'multi-label', 'regression' or 'token-classification'",
        ),
        ({}, ["kind=multiple-choice"], "'regression' or 'token-classification', not 'multiple-choice'"),
        ({}, ["kind=span"], "'regression' or 'token-classification', not 'span'"),
        ({}, ["labels=[1,2]"], "unknown label '3'; the labels are 1, 2"),
        ({}, ["validation=0.001"], "60 rows with different texts are too few to cut off a validation split"),
        ({}, ["validation=2"], "cut.validation"),
    ],
)
def test_bad_data_names_row_column_and_fix(tmp_path, change, overrides, message):
    rows = reviews()
    rows[2] |= change
    with pytest.raises(UsageError) as error:
        load(write(tmp_path / "reviews.csv", rows), *overrides)
    assert message in str(error.value)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("overrides", [[], ["kind=classification"], ["kind=regression"], ["label=price"]])
def test_a_label_that_is_nan_is_empty_and_no_class(tmp_path, suffix, overrides):
    column = "price" if "label=price" in overrides else "label"
    rows = [row | {"label": float(row["label"])} for row in reviews()]
    rows[2][column] = float("nan")
    where = {"parquet": "row 2", "jsonl": "line 3"}.get(suffix, "line 4")
    with pytest.raises(UsageError, match=f"{where}: the label column '{column}' is empty; fill it in, or remove the row"):
        spec_of(write(tmp_path / f"reviews.{suffix}", rows), *overrides)


def test_labels_that_are_one_number_are_not_two_classes(tmp_path):
    rows = reviews()
    rows[3]["label"] = "1.0"
    for suffix in ("csv", "jsonl"):
        path = write(tmp_path / f"reviews.{suffix}", rows)
        with pytest.raises(UsageError, match=r"'label' has the labels '1' and '1.0', which are one number; write them alike"):
            spec_of(path)
        assert spec_of(path, "labels=[1,'1.0',2,3]")[1]["labels"] == ["1", "1.0", "2", "3"]
        assert spec_of(path, "kind=regression")[1]["labels"] == ["label"]
    path = write(
        tmp_path / "many.csv", [{"text": SENTENCES[at % 4], "labels": ["0|1", "1.0", "0"][at % 3]} for at in range(12)]
    )
    with pytest.raises(UsageError, match=r"'labels' has the labels '1' and '1.0', which are one number"):
        spec_of(path, "kind=multi-label")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_spaces_around_a_label_are_no_part_of_it(tmp_path, suffix, caplog):
    rows = [row | {"label": "abc"[row["label"] - 1]} for row in reviews()]
    expected = load(write(tmp_path / f"before.{suffix}", rows))[1].rows("train")
    rows[1]["label"] += " "
    rows[3]["label"] = f"\u00a0{rows[3]['label']}"
    spec, data = load(write(tmp_path / f"reviews.{suffix}", rows))
    assert spec.labels == ["a", "b", "c"] and data.rows("train") == expected
    where = {"parquet": "row 1", "jsonl": "line 2"}.get(suffix, "line 3")
    notes = [record.message for record in caplog.records if "spaces around" in record.message]
    assert notes == [f"note: {tmp_path}/reviews.{suffix}, {where}: spaces around the label are left out, as in 2 rows"]


@pytest.mark.parametrize("overrides", [[], ["kind=classification"], ["labels=[1,2,3,true]"]])
@pytest.mark.parametrize(("suffix", "truth"), [("csv", "True"), ("csv", "false"), ("jsonl", True)])
def test_truth_values_beside_numbers_are_refused_with_their_row(tmp_path, suffix, truth, overrides):
    rows = reviews()
    rows[3]["label"] = truth
    line = {"csv": 5, "jsonl": 4}[suffix]
    with pytest.raises(UsageError) as error:
        spec_of(write(tmp_path / f"reviews.{suffix}", rows), *overrides)
    message = (
        f"line {line}: the label column 'label' has truth values and numbers, 2 and {str(truth).lower()}; write them alike"
    )
    assert message in str(error.value).replace("True", "true")


@pytest.mark.parametrize("overrides", [[], ["kind=regression"], ["kind=classification"]])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_label_of_400_digits_is_refused_with_its_row(tmp_path, suffix, overrides, hifi):
    rows = reviews()
    rows[3]["label"] = 9 * 10**399
    path = write(tmp_path / f"reviews.{suffix}", rows)
    answer = hifi("train", "--task", path, "--method", "bitfit", "--backbone", "minilm", "--dry-run", *overrides)
    line = {"csv": 5, "jsonl": 4}[suffix]
    assert answer.code == 2 and "unexpected" not in answer.err
    assert f"line {line}: the label column 'label' has the number 90000000000000000000... of 400 digits" in answer.err


def test_rows_with_the_same_texts_stand_on_one_side_of_the_cut(tmp_path):
    rows = reviews(200)
    for at in range(0, 200, 2):  # some of the copies have another label
        rows[at] |= {column: rows[at + 1][column] for column in ("sentence1", "sentence2")}
    for seed in range(5):
        _, data = load(write(tmp_path / "reviews.csv", rows), "validation=0.2", f"split_seed={seed}")
        train, validation = ({row.sequences for row in data.rows(split)} for split in ("train", "validation"))
        assert len(train) == 80 and len(validation) == 20 and not train & validation
        assert len(data.rows("train")) == 160 and len(data.rows("validation")) == 40


def test_unclear_columns_are_asked_for(tmp_path):
    rows = [{"a": text, "b": text, "c": text, "label": row % 2} for row, text in enumerate(SENTENCES * 5)]
    with pytest.raises(
        UsageError, match=r"which columns are the texts\? Give inputs=COLUMN or inputs=\[COLUMN,COLUMN\], of a, b, c, label"
    ):
        spec_of(write(tmp_path / "three.csv", rows))
    with pytest.raises(UsageError, match=r"which column is the label\? Give label=COLUMN, of n, m"):
        spec_of(write(tmp_path / "two.csv", [{"text": text, "n": 1, "m": 2} for text in SENTENCES]))
    semicolons = tmp_path / "excel.csv"
    semicolons.write_text("text;label\na dog;1\n")
    with pytest.raises(UsageError, match=r"excel.csv has semicolons between its columns, not commas \(text;label\)"):
        spec_of(semicolons)
    for suffix, separator in ((".csv", ","), (".tsv", "\t")):
        twice = tmp_path / f"twice{suffix}"
        twice.write_text("\n".join(separator.join(cells) for cells in (["text", "label", "text"], ["a dog", "1", "a cat"])))
        with pytest.raises(UsageError, match=f"twice{suffix}, line 1: two columns are named 'text'; rename or remove one"):
            spec_of(twice)


def test_a_hub_dataset(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"]), "lang": Value("string")})
    repository = tmp_path / "owner" / "reviews"
    for split in ("train", "test"):
        table = [{"text": f"{SENTENCES[row % 4]} {row}", "label": row % 2, "lang": "en"} for row in range(20)]
        (repository / "data").mkdir(parents=True, exist_ok=True)
        Dataset.from_list(table, features=features).to_parquet(str(repository / "data" / f"{split}-00000-of-00001.parquet"))
    source = f"hub:{repository}"
    name, content = spec_of(source)
    assert (name, content["inputs"], content["labels"]) == ("reviews", ["text"], ["neg", "pos"])
    spec = task_spec.load(task_from_data.register(source, ["validation=0.2"]))
    data = data_sources.load(spec, data_dir=None)
    assert [len(data.rows(split)) for split in ("train", "validation", "test")] == [16, 4, 20]
    assert Counter(row.label for row in data.rows("validation")) == {0: 2, 1: 2}
    with pytest.raises(UsageError, match=r"has no split 'dev'; the splits are train, test"):
        spec_of(source, "validation=dev")


def test_a_label_of_validation_rows_only_is_refused_with_its_line(tmp_path):
    path, rows = write(tmp_path / "reviews.csv", reviews()), reviews(9)
    rows[4]["label"] = 7
    other = write(tmp_path / "val.csv", rows)
    with pytest.raises(UsageError, match=r"val.csv, line 6: unknown label '7'; the labels are 1, 2, 3"):
        load(path, f"validation={other}")


def test_a_file_that_is_gone_is_the_users_own_and_no_download(tmp_path):
    path = write(tmp_path / "reviews.csv", reviews())
    spec, _ = load(path)
    path.unlink()
    with pytest.raises(MissingError, match=r"no file .*reviews.csv; the train split that the task names is required"):
        data_sources.load(spec, data_dir=None)


def test_the_suffix_decides_in_any_case(tmp_path):
    assert spec_of(write(tmp_path / "Reviews.CSV", reviews()))[1]["local"]["reader"] == "csv"


def test_from_a_file_to_a_table_and_a_prediction(hifi, encoders, tmp_path):
    rows = reviews(40)
    path, new = write(tmp_path / "reviews.csv", rows), tmp_path / "new.csv"
    write(new, [{"sentence1": 'a "dog", he', "sentence2": "not now"}])
    train = ["train", "--task", path, "--method", "linear-probing", "--backbone", encoders["bert"], "epochs=1"]
    planned = hifi(*train, "--dry-run")
    assert planned.code == 0, planned.err
    assert "task reviews" in planned.out or "reviews" in planned.out
    trained = hifi(*train, "inputs=[sentence1,sentence2]")
    assert trained.code == 0, trained.err
    run = tmp_path / "results/runs/hifi/tiny-bert/reviews/linear-probing/seed1"
    result = json.loads((run / "results.json").read_text())
    assert set(result["data"]) == {"train", "validation"}
    assert "finished before" in hifi(*train).err
    again = hifi("eval", run)
    assert again.code == 0, again.err
    predicted = hifi("predict", run, new)
    lines = list(csv.reader(predicted.out.splitlines()))
    assert lines[0] == ["id", "prediction", "1", "2", "3"]
    assert lines[1][1] in ("1", "2", "3")
    changed = hifi(*train, "inputs=sentence2")
    assert changed.code == 4
    assert "another task reviews.yaml ('" in changed.err
    assert "of sentence1 and sentence2 by label' there" in changed.err and "of sentence2 by label' here" in changed.err
    write(path, rows[:-1])
    assert hifi(*train).code == 4
    copy_yaml(hifi, path, tmp_path / "my.yaml", "validation=0.3")
    assert hifi("train", "--task", tmp_path / "my.yaml", *train[3:]).code == 0


def test_two_possible_labels_are_asked_for_and_csv_line_ends_need_no_note(tmp_path, caplog):
    rows = [{"text": text, "topic": "ab"[row % 2], "opinion": "xy"[row % 2]} for row, text in enumerate(SENTENCES * 5)]
    path = write(tmp_path / "reviews.csv", rows)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(UsageError, match=r"which column is the label\? Give label=COLUMN, of topic, opinion"):
        spec_of(path)
    assert spec_of(path, "label=opinion")[1]["labels"] == ["x", "y"]
    assert not [message for message in caplog.messages if "CRLF" in message]


def test_empty_lines_of_a_csv_are_no_rows(tmp_path):
    path = write(
        tmp_path / "reviews.csv", [{key: row[key] for key in ("sentence1", "sentence2", "label")} for row in reviews()]
    )
    lines = path.read_text().splitlines()
    _, expected = load(path)
    with_gaps = tmp_path / "gaps.csv"
    with_gaps.write_text("\n".join(["", lines[0], "", *lines[1:30], "", "", *lines[30:], "", ""]) + "\n")
    _, data = load(with_gaps)
    assert data.fingerprint == expected.fingerprint
    assert data.rows("train") == expected.rows("train")  # with their ids
    with_gaps.write_text("\n".join(["", *lines, "a,b"]))
    with pytest.raises(UsageError, match="line 63: 2 columns, 3 are expected"):
        load(with_gaps)
    with_gaps.write_text("sentence1,label\n\n\n")
    with pytest.raises(UsageError, match="has a header and no rows"):
        load(with_gaps)


def test_a_csv_cell_may_be_as_long_as_any_text(tmp_path):
    rows = [row | {"sentence2": f"{'word ' * 40_000}{row['id']}"} for row in reviews()]
    _, data = load(write(tmp_path / "reviews.csv", rows), "inputs=sentence2")
    assert len(data.rows("train")[0].sequences[0][0]) == 200_003


def test_scores_of_heads_are_those_of_the_columns_that_are_read(hifi, encoders, tmp_path):
    source = write(tmp_path / "reviews.csv", reviews())
    validation = write(tmp_path / "validation.csv", reviews())

    def scores(inputs, results):
        words = ["--task", source, f"validation={validation}", f"inputs={inputs}", "--backbone", encoders["bert"]]
        answer = hifi("score", *words, "--results-dir", results, "scoring.samples=8", "--format", "json")
        assert answer.code == 0, answer.err
        return [
            (path.name, json.loads(path.read_text())["sha256"])
            for path in sorted((tmp_path / results).rglob("scores/*/*/*.json"))
        ]

    title, both = scores("sentence1", "one"), scores("sentence2", "one")
    assert len(title) == 1 and len(both) == 2 and both != title
    assert scores("sentence2", "other")[0] in both


def test_a_task_from_the_hub_is_not_searched_in_a_directory(monkeypatch, tmp_path):
    """Its YAML names no files; HIFI_DATA_DIR may be set for other tasks."""
    hub = {"id": "owner/name"}
    spec = task_spec.load("rte").model_copy(update={"local": task_spec.LocalFiles(folder="", files={}), "hub": hub})
    monkeypatch.setattr("hifi_cli.tasks.hub_dataset.load", lambda *_: "from the hub")
    data = {"data_dir": tmp_path}
    assert data_sources.load(spec.model_copy(update={"cut": None}), **data) == "from the hub"
