"""`--task data.csv`: what is recognized, how it is changed, the cut, bad rows, and the way from a file to a prediction."""

import json
from collections import Counter

import pandas
import pytest
import yaml
from project_files import copy_yaml
from run_folders import run_folder

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import own_data, task_spec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.own_data import from_data

SENTENCES = [
    "the dog sees a cat",
    "a bird never likes the fish",
    "the old man hears a boy",
    "a small girl knows the woman",
]


def reviews(count=60):
    """Rows of id, sentence1, sentence2, label and price: labels 1 to 3, the third one rare."""
    return [
        {
            "id": 100 + row,
            "sentence1": f"{SENTENCES[row % 4]} now {row}",
            "sentence2": SENTENCES[(row + 1) % 4],
            "label": 1 if row % 3 == 0 else 2 if row % 10 else 3,
            "price": row / 8,
        }
        for row in range(count)
    ]


def write(path, rows):
    """Write rows in the format of the file's suffix."""
    frame = pandas.DataFrame(rows, dtype=object)
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    return path


def spec_of(source, *overrides):
    task = from_data(str(source), overrides)
    return task.name, yaml.safe_load(task.with_summary())


def load(source, *overrides):
    spec = task_spec.load(own_data.register(str(source), overrides))
    return spec, task_sources.load(spec, data_dir=None)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_gives_the_same_task_and_rows(tmp_path, suffix):
    name, content = spec_of(write(tmp_path / f"reviews.{suffix}", reviews()))
    assert name == "reviews"
    assert (content["kind"], content["inputs"]) == ("classification", ["sentence1", "sentence2"])
    assert content["local"]["columns"] == {"label": "label"}
    assert content["labels"] == ["1", "2", "3"]
    assert content["metrics"] == ["accuracy", "f1_macro"]
    _, data = load(tmp_path / f"reviews.{suffix}", "id=id")
    reference = write(tmp_path / "reference.CSV", reviews())
    assert data.fingerprint == load(reference, "id=id")[1].fingerprint
    row = next(row for row in data.rows("train") if row.id == "101")
    assert row.sequences == ((reviews()[1]["sentence1"], reviews()[1]["sentence2"]),)
    assert row.label == 1  # label 2


def test_what_is_read_is_said_and_changed(tmp_path, caplog):
    path = write(tmp_path / "reviews.csv", reviews())
    options = ["inputs=sentence2", "label=price", "validation=0.25", "split_seed=3"]
    content = spec_of(path, *options)[1]
    assert (content["kind"], content["inputs"], content["labels"]) == (
        "regression",
        ["sentence2"],
        ["price"],
    )
    assert (content["metrics"], content["primary"]) == (["spearman", "pearson"], "spearman")
    assert content["cut"] == {"validation": 0.25, "seed": 3}
    load(path, *options)
    assert (
        "regression (labels are numbers with fractions), inputs=[sentence2] label=price, 60 rows;"
        " change it with key=value" in caplog.messages[0]
    )
    assert "numbers from 0 to 7.375, 60 different" in caplog.messages[1]
    assert spec_of(path, "kind=regression")[1]["labels"] == ["label"]
    assert spec_of(path, "labels=[3, 2, 1]")[1]["labels"] == ["3", "2", "1"]
    two = write(tmp_path / "two.csv", [row for row in reviews() if row["label"] < 3])
    assert spec_of(two)[1]["metrics"] == ["accuracy", "f1", "matthews"]
    few = write(tmp_path / "few.csv", [*reviews(10), reviews()[1] | {"label": 3}])
    assert "labels of only one row: 3" in from_data(str(few), []).summary


def test_names_do_not_hide_shipped_tasks(tmp_path, monkeypatch):
    assert spec_of(write(tmp_path / "rte.csv", reviews()))[0] == "rte-data"
    assert spec_of(write(tmp_path / "rte.yaml.csv", reviews()))[0] == "rte-yaml"
    (tmp_path / "shop").mkdir()
    write(tmp_path / "shop" / "train.csv", reviews())
    monkeypatch.chdir(tmp_path / "shop")
    assert spec_of("train.csv")[0] == "shop"


def test_the_cut_is_stratified_and_repeats(tmp_path):
    path = write(tmp_path / "reviews.csv", reviews(200))
    data = load(path, "validation=0.2")[1]
    total = Counter(row["label"] - 1 for row in reviews(200))
    for seed in range(5):
        cut_off = Counter(
            row.label
            for row in load(path, "validation=0.2", f"split_seed={seed}")[1].rows("validation")
        )
        assert sum(cut_off.values()) == 40
        for label, count in total.items():
            assert abs(cut_off[label] - count / 5) <= 1
    ids = [row.id for split in ("train", "validation") for row in data.rows(split)]
    assert sorted(ids, key=int) == [str(number) for number in range(200)]
    # Other rows would make every finished run on own data another run.
    drawn = [row.id for row in data.rows("validation")]
    assert drawn[:8] == ["16", "18", "33", "40", "49", "52", "53", "54"]
    assert data.fingerprint["train"] == task_spec.rows_digest(data.rows("train"))
    assert load(path, "validation=0.2")[1].fingerprint == data.fingerprint
    assert load(path, "validation=0.2", "split_seed=1")[1].fingerprint != data.fingerprint


def test_given_splits_are_read(tmp_path):
    rows = reviews()
    path, dev = write(tmp_path / "reviews.csv", rows[:40]), write(tmp_path / "dev.csv", rows[40:])
    _, data = load(path, f"validation={dev}")
    assert [len(data.rows(split)) for split in ("train", "validation")] == [40, 20]
    with pytest.raises(MissingError, match="there is no file none"):
        load(path, "validation=none.csv")


@pytest.mark.parametrize(
    ("change", "overrides", "message"),
    [
        ({"label": ""}, [], "line 4: label is empty; fill it in or remove the row"),
        (
            {"label": "nan"},
            [],
            "line 4: label is 'nan', no number, where 59 of 60 rows have numbers",
        ),
        ({"price": float("nan")}, ["label=price"], "line 4: label is empty"),
        ({"price": 9 * 10**399}, ["label=price"], "is not a number in [-inf, inf]"),
        ({"sentence2": " "}, [], "line 4: sentence2 is empty; fill it in or remove the row"),
        (
            {},
            ["inputs=[sentence1, text]"],
            "no column 'text'. Give inputs=COLUMN or inputs=[COLUMN,COLUMN], and label=COLUMN;"
            " the columns are id, sentence1, sentence2, label, price",
        ),
        (
            {},
            ["inputs=[sentence1, sentence2, price]"],
            "inputs: one or two text columns are required",
        ),
        ({}, ["kind=span"], "'regression' or 'token-classification', not 'span'"),
        ({}, ["labels=[1,2]"], "unknown label '3'; the labels are 1, 2"),
        (
            {},
            ["validation=0.001"],
            "reviews.csv: too few different texts (60) to cut off 0.001 of the rows as a validation split; give a file with validation=FILE, or a fraction",
        ),
        ({}, ["validation=2"], "cut.validation"),
        ({}, ["id=uid"], "no column 'uid'; did you mean 'id'? Give"),
        (
            {},
            ["inputs=label", "label=price"],
            "rename the column 'label', which is hifi's own name for 'price'",
        ),
    ],
)
def test_bad_data_names_row_column_and_fix(tmp_path, change, overrides, message):
    rows = reviews()
    rows[2] |= change
    with pytest.raises(UsageError) as error:
        load(write(tmp_path / "reviews.csv", rows), *overrides)
    assert message in str(error.value)


@pytest.mark.parametrize("first", [{"label": "O"}, {"text": "a b", "label": ["O", "O"]}])
def test_the_kind_does_not_hang_on_the_first_row(tmp_path, first):
    rows = [first, {"text": ["c", "d"], "label": ["O", "B-X"]}]
    path = tmp_path / "words.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert spec_of(path)[1]["kind"] == "token-classification"


@pytest.mark.parametrize("overrides", [[], ["labels=[rude,threat]"]])
def test_lists_that_are_all_empty_are_no_labels(tmp_path, overrides):
    path = tmp_path / "topics.jsonl"
    path.write_text('{"text": "a", "labels": []}\n' * 3)
    with pytest.raises(UsageError, match=r"topics.jsonl: every cell of labels is empty"):
        from_data(str(path), overrides)


def test_words_as_numbers_are_not_said_to_be_left_out_all(tmp_path):
    rows = [row | {"label": "abc"[row["label"] - 1]} for row in reviews()]
    with pytest.raises(UsageError) as error:
        load(write(tmp_path / "reviews.csv", rows), "kind=regression")
    assert "no number, where 0 of 60 rows have numbers" in str(error.value)
    assert str(error.value).endswith("; kind=regression takes numbers alone")
    assert "missing=" not in str(error.value)


def test_spaces_around_a_label_are_no_part_of_it(tmp_path):
    rows = [row | {"label": "abc"[row["label"] - 1]} for row in reviews()]
    expected = load(write(tmp_path / "before.csv", rows))[1].rows("train")
    rows[1]["label"] += " "
    spec, data = load(write(tmp_path / "reviews.csv", rows))
    assert spec.labels == ["a", "b", "c"] and data.rows("train") == expected


def test_columns_without_usual_names_are_asked_for(tmp_path):
    with pytest.raises(
        UsageError,
        match=r"which columns are the texts and the label\? .* the columns are a, b, label$",
    ):
        spec_of(
            write(
                tmp_path / "inputs.csv", [{"a": text, "b": text, "label": 1} for text in SENTENCES]
            )
        )
    with pytest.raises(UsageError, match=r"the columns are text, topic, opinion$"):
        spec_of(
            write(
                tmp_path / "label.csv",
                [{"text": text, "topic": 1, "opinion": 2} for text in SENTENCES],
            )
        )


def test_rows_with_the_same_texts_stand_on_one_side_of_the_cut(tmp_path):
    rows = reviews(200)
    for at in range(0, 200, 2):  # some of the copies have another label
        rows[at] |= {column: rows[at + 1][column] for column in ("sentence1", "sentence2")}
    for seed in range(5):
        _, data = load(
            write(tmp_path / "reviews.csv", rows), "validation=0.2", f"split_seed={seed}"
        )
        train, validation = (
            {row.sequences for row in data.rows(split)} for split in ("train", "validation")
        )
        assert len(train) == 80 and len(validation) == 20 and not train & validation
        assert len(data.rows("train")) == 160 and len(data.rows("validation")) == 40


def test_a_class_without_rows_in_a_split_is_named(tmp_path, caplog):
    rows = [row | {"label": "neg" if at % 2 else "pos"} for at, row in enumerate(reviews())]
    rows[3]["label"] = "rare"
    # The only row of the class is on one of the two sides of the cut.
    load(write(tmp_path / "reviews.csv", rows), "validation=0.2")
    assert caplog.text.count("row has the label rare: no ") == 1
    caplog.clear()
    dev = write(tmp_path / "dev.csv", [row for row in rows if row["label"] != "pos"])
    train = write(tmp_path / "train.csv", [row for row in rows if row["label"] != "rare"])
    load(train, f"validation={dev}", "labels=[neg,pos,rare]")
    assert "no train row has the label rare: no model learns it" in caplog.text
    assert "no validation row has the label pos: no score is about it" in caplog.text
    caplog.clear()
    load(train, f"validation={train}")
    assert "row has the label" not in caplog.text


def test_a_hub_dataset(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features(
        {
            "text": Value("string"),
            "opinion": ClassLabel(names=["pos", "neg"]),
            "lang": Value("string"),
        }
    )
    table = [
        {"text": f"{SENTENCES[row % 4]} {row}", "opinion": row % 2, "lang": "en"}
        for row in range(20)
    ]
    repository = tmp_path / "owner" / "reviews"
    (repository / "data").mkdir(parents=True)
    for split in ("train", "test"):
        Dataset.from_list(table, features=features).to_parquet(
            str(repository / "data" / f"{split}-00000-of-00001.parquet")
        )
    source = f"hub:{repository}"
    name, content = spec_of(source, "label=opinion")
    assert (name, content["inputs"], content["labels"]) == ("reviews", ["text"], ["pos", "neg"])
    spec = task_spec.load(own_data.register(source, ["label=opinion", "validation=0.2"]))
    data = task_sources.load(spec, data_dir=None)
    assert [len(data.rows(split)) for split in ("train", "validation", "test")] == [16, 4, 20]
    assert Counter(row.label for row in data.rows("validation")) == {0: 2, 1: 2}
    assert spec_of(f"{source}:default", "label=opinion")[0] == "reviews-default"
    splits = spec_of(source, "label=opinion", "test=train")[1]["hub"]["splits"]
    assert splits == {"train": "train", "test": "train"}
    _, data = load(source, "label=opinion", "validation=test", "held_out=test")
    assert [len(data.rows(f"validation{suffix}")) for suffix in ("", "_held_out")] == [20, 20]
    with pytest.raises(UsageError, match=r"has no split 'dev'; the splits are train, test"):
        load(source, "label=opinion", "validation=dev")
    with pytest.raises(UsageError, match=r"has no split 'tset'; the splits are train, test"):
        spec_of(source, "label=opinion", "test=tset")


def test_from_a_file_to_a_table_and_a_prediction(hifi, encoders, tmp_path):
    rows = reviews(40)
    path, new = write(tmp_path / "reviews.csv", rows), tmp_path / "new.csv"
    write(new, [{"sentence1": 'a "dog", he', "sentence2": "not now"}])
    train = f"train --task {path} --method linear-probing --backbone {encoders['bert']} epochs=1".split()
    trained = hifi(*train, "inputs=[sentence1,sentence2]")
    assert trained.code == 0, trained.err
    run = run_folder(tmp_path / "results", task="reviews", method="linear-probing")
    result = json.loads((run / "results.json").read_text())
    assert set(result["data"]) == {"train", "validation"}
    assert "finished before" in hifi(*train).err
    again = hifi(f"eval {run}")
    assert again.code == 0, again.err
    predicted = json.loads(hifi(f"predict {run}", new).out)
    assert predicted["prediction"] in predicted["probabilities"].keys() == {"1", "2", "3"}
    changed = hifi(*train, "inputs=sentence2")
    assert changed.code == 4 and "another task as it is read (task_digest)" in changed.err
    write(path, reviews(44))
    assert hifi(*train, "inputs=[sentence1,sentence2]").code == 4, "other rows"
    copy_yaml(hifi, path, tmp_path / "my.yaml", "validation=0.3")
    assert hifi(f"train --task {tmp_path}/my.yaml", *train[3:]).code == 0


def test_held_out_rows_are_scored_and_nothing_is_chosen_on_them(hifi, tmp_path):
    """Half of the held-out labels are wrong, so that an epoch chosen there would be another one."""
    write(tmp_path / "reviews.csv", reviews())
    write(
        tmp_path / "later.csv", [{**row, "label": 1 + at % 3} for at, row in enumerate(reviews(30))]
    )
    data = "--task reviews.csv --method bitfit --protocol demo --backbone demo --seeds 1"
    how = ["label=label", "inputs=[sentence1,sentence2]", "primary_metric=accuracy", "epochs=2"]
    without = hifi(f"train {data} --results-dir without", *how)
    assert without.code == 0, without.err
    assert hifi("train", *data.split(), *how, "held_out=later.csv").code == 0
    records = []
    for root in ("results", "without"):
        [path] = (tmp_path / root).glob("runs/**/results.json")
        records.append(json.loads(path.read_text()))
    held_out, plain = records
    assert held_out["scores"] == plain["scores"] and held_out["epochs"] == plain["epochs"]
    assert held_out["delta_sha256"] == plain["delta_sha256"]
    assert set(held_out["metrics"]) - set(plain["metrics"]) == {
        "accuracy_held_out",
        "f1_macro_held_out",
    }
    table = hifi("table --format json").out
    shown = json.loads(table)
    assert [key for key in shown["headings"] if "held_out" in key] == ["reviews.accuracy_held_out"]
    assert shown["rows"][0]["reviews.accuracy_held_out"] == pytest.approx(
        100 * held_out["metrics"]["accuracy_held_out"]
    )
    assert "held_out: other rows, on which no epoch and no setting was chosen" in shown["notes"]
    assert any("chosen on the same rows" in note for note in shown["notes"])
    alone = json.loads(hifi("table --metrics accuracy_held_out --format json").out)
    assert not any("chosen on the same rows" in note for note in alone["notes"])
    assert "held_out" not in hifi("table --results-dir without").out
    assert hifi("train", *data.split(), *how, "held_out=none.csv").code == 3
