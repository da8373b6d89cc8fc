"""hifi predict: texts in, labels and probabilities out, in either layout and every kind of task."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from prepared_models import data_of

from hifi_cli.config.sources import resolve
from hifi_cli.errors import UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import predict, read
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import task_spec
from hifi_cli.training.runner import ModelRunner

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(encoders, data, tmp_path_factory):
    """A finished run of RTE: its directory, and the pairs of texts and logits it stored. The tests only read it."""
    settings = ["epochs=8", "batch_size=8", "learning_rate=0.005"]
    config = resolve(
        task="rte",
        method="full-ft",
        backbone=str(encoders["bert"]),
        protocol="hifi",
        overrides=settings,
    )
    workspace = Workspace(tmp_path_factory.mktemp("trained"), data)
    runs.run(config, workspace)
    directory = RunDirectory.of(config, workspace.results_dir)
    pairs = [row.sequences[0] for row in data_of("rte", workspace).rows("validation")]
    return directory.path, pairs, directory.read_predictions()


def softmax(logits):
    shares = np.exp(logits)
    return shares / shares.sum()


@pytest.mark.parametrize(("suffix", "separator"), [(".tsv", "\t"), (".CSV", ",")])
def test_each_row_of_a_table_has_the_runs_own_prediction(
    trained, hifi, tmp_path, suffix, separator
):
    run, pairs, stored = trained
    path = tmp_path / f"new{suffix}"
    table = pd.DataFrame(pairs, columns=["sentence1", "sentence2"]).assign(note="x, y")
    table.rename_axis("idx").to_csv(path, sep=separator)
    answer = hifi(f"predict {run}", path)
    assert (answer.code, answer.err) == (0, "")  # no data are read, and none are missed
    said = pd.read_json(io.StringIO(answer.out), lines=True)
    assert [*said.prediction] == [row.prediction for row in stored]
    assert said.prediction.nunique() == 2
    for row, shares in zip(stored, said.probabilities, strict=True):
        assert [*shares] == ["entailment", "not_entailment"]
        np.testing.assert_allclose([*shares.values()], softmax(row.logits), atol=1e-4)


def test_json_lines_in_and_out(trained, hifi, tmp_path):
    run, pairs, stored = trained
    lines = [json.dumps({"sentence1": first, "sentence2": second}) for first, second in pairs[:4]]
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    assert hifi(f"predict {run} new.jsonl --out said.jsonl").code == 0
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [row["id"] for row in said] == ["0", "1", "2", "3"]
    assert [row["prediction"] for row in said] == [row.prediction for row in stored[:4]]
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "new.jsonl")
    answer = hifi(f"predict {run} new.jsonl --out link.jsonl")
    assert answer.code == 2 and "--out link.jsonl is the input, which would be lost" in answer.err
    (tmp_path / "new.jsonl").rename(tmp_path / "new.txt")
    answer = hifi(f"predict {run} new.txt")
    assert answer.code == 2 and "rename it so that it ends in .csv, .tsv, .jsonl" in answer.err


def test_what_is_wrong_is_named(trained, hifi, tmp_path):
    run, _, _ = trained

    def refused(content, code=2, name="new.tsv"):
        (tmp_path / name).write_bytes(content)
        answer = hifi(f"predict {run}", tmp_path / name)
        assert answer.code == code and answer.out == "" and len(answer.err.splitlines()) == 1
        return answer.err

    assert "no column 'sentence2'" in refused(b"sentence1\tother\na\tb\n")
    assert "line 3: sentence2 is empty" in refused(b"sentence1\tsentence2\na\tb\nc\n")
    assert "sentence2 is empty" in refused(b"sentence1\tsentence2\na\t \n")
    error = refused(
        b"premise,hypothesis\na,b\n", name="new.csv"
    )  # never a row, although it has as many columns
    assert "no column 'sentence1'; the columns are premise, hypothesis" in error
    assert "new.jsonl, line 1: not JSON (" in refused(b'{"sentence1": \n', name="new.jsonl")
    assert "new.tsv, line 1: not UTF-8 (byte 0xff)" in refused(b"\xff\ta\n")
    assert "the mark of UTF-16, and its text is not in it" in refused(b"\xff\xfe\ta\n")
    assert hifi(f"predict {run} {tmp_path}/none.tsv").code == 3
    assert hifi(f"predict {tmp_path}/norun {tmp_path}/new.tsv").code == 3


def test_numbers_choices_and_answers(workspace, make, tmp_path, task_kinds_data):
    config = make("full-ft", "epochs=1", task="stsb")
    runs.run(config, workspace)
    file = tmp_path / "new.jsonl"
    file.write_text('{"sentence1": "the dog", "sentence2": "a cat"}\n')
    (said,) = predict(RunDirectory.of(config, workspace.results_dir).path, file, workspace)
    assert isinstance(said["prediction"], float) and "probabilities" not in said
    workspace.data_dir = task_kinds_data
    for task, content in [
        (
            "copa",
            {
                "premise": "The dog sees.",
                "choice1": "The cat likes.",
                "choice2": "A bird hears.",
                "question": "cause",
            },
        ),
        (
            "multirc",
            {"paragraph": "the dog sees a cat", "question": "the man", "answer": "not now"},
        ),
        ("squad", {"question": "the dog", "context": "a cat sees the bird here"}),
    ]:
        config = make("full-ft", "epochs=1", "max_length=32", task=task)
        runs.run(config, workspace)
        file.write_text(json.dumps(content) + "\n")
        run = RunDirectory.of(config, workspace.results_dir).path
        (said,) = predict(run, file, workspace)
        if task == "multirc":
            (tmp_path / "typo.jsonl").write_text(json.dumps(content).replace("answer", "anwser"))
            with pytest.raises(UsageError, match=r"line 1: .*'answer' is missing"):
                [*predict(run, tmp_path / "typo.jsonl", workspace)]
        if task == "squad":
            assert said["prediction"] in content["context"]
        else:
            assert said["prediction"] in said["probabilities"]
            assert sum(said["probabilities"].values()) == pytest.approx(1)


def test_one_logit_is_that_of_the_second_class(make, workspace, tmp_path):
    config = make(
        "full-ft",
        "epochs=1",
        "task_head.kind=mlp",
        "task_head.width=16",
        "task_head.one_logit=true",
    )
    runs.run(config, workspace)
    directory, file = RunDirectory.of(config, workspace.results_dir), tmp_path / "new.jsonl"
    rows = [row.sequences[0] for row in data_of("rte", workspace).rows("validation")]
    file.write_text(
        "".join(
            json.dumps({"sentence1": first, "sentence2": second}) + "\n" for first, second in rows
        )
    )
    for said, stored in zip(
        predict(directory.path, file, workspace), directory.read_predictions(), strict=True
    ):
        (logit,) = stored.logits
        assert [*said["probabilities"].values()] == pytest.approx(
            [1 / (1 + np.exp(logit)), 1 / (1 + np.exp(-logit))], abs=1e-4
        )
        assert said["prediction"] == stored.prediction


def test_every_row_is_predicted_under_its_own_number(tmp_path):
    """Also of a task that skips rows with an empty text in training: the others would get wrong numbers."""
    task, path = task_spec.load("qqp").model_copy(update={"id": None}), tmp_path / "new.csv"
    path.write_text("\nquestion1,question2\na,b\n\n\nc,d\n\n")
    assert [(row.id, row.sequences[0][0]) for row in read(task, path)] == [("0", "a"), ("1", "c")]
    path.write_text("question1,question2\na,b\nc,\nd,e\n")
    with pytest.raises(UsageError, match="line 3: question2 is empty"):
        read(task, path)


@pytest.mark.parametrize(
    ("name", "header", "row", "empty"),
    [
        ("new.csv", "question1,question2\n", "{},b\n", ",\n"),
        ("new.tsv", "question1\tquestion2\n", "{}\tb\n", " \t\n"),
        ("new.jsonl", "", '{{"question1": "{}", "question2": "b"}}\n', '{"question1": null}\n'),
    ],
)
def test_an_empty_row_is_left_out_at_the_end_and_refused_before(tmp_path, name, header, row, empty):
    """Behind one that is left out, every row would get another number than its place in the file."""
    task, path = task_spec.load("qqp").model_copy(update={"id": None}), tmp_path / name
    lines = [header, row.format("a"), row.format("c"), empty, empty]
    path.write_text("".join(lines))
    assert [(row.id, row.sequences[0][0]) for row in read(task, path)] == [("0", "a"), ("1", "c")]
    path.write_text("".join([*lines, row.format("e")]))
    line = 4 if header else 3
    with pytest.raises(UsageError, match=f"line {line}, line {line + 1}: the row is empty"):
        read(task, path)


@pytest.mark.parametrize(
    ("of_training", "text"), [(None, 'a "b"'), (True, 'a "b"'), (False, '"a ""b"""')]
)
def test_quotes_of_a_tsv_are_as_in_training_or_else_as_its_own_file_shows(
    tmp_path, of_training, text
):
    task, path = task_spec.load("qqp").model_copy(update={"id": None}), tmp_path / "new.tsv"
    local = task.local.model_copy(update={"quotes": of_training})
    path.write_text('question1\tquestion2\n"a ""b"""\tc\n')
    rows = read(task.model_copy(update={"local": local}), path)
    assert [row.sequences[0] for row in rows] == [(text, "c")]


def test_an_empty_row_at_the_end_is_in_no_csv_of_predictions(trained, hifi, tmp_path):
    run, pairs, _ = trained
    table = pd.DataFrame(pairs[:3], columns=["sentence1", "sentence2"])
    table.to_csv(tmp_path / "new.csv", index=False)
    with (tmp_path / "new.csv").open("a") as file:
        file.write(",\n")
    answer = hifi(f"predict {run} new.csv --out said.csv")
    assert answer.code == 0, answer.err
    said = pd.read_csv(tmp_path / "said.csv")
    assert said[[*table]].equals(table) and said["prediction"].notna().all()


def test_a_csv_has_the_predictions_beside_the_users_columns(trained, hifi, tmp_path):
    run, pairs, stored = trained
    table = pd.DataFrame(pairs, columns=["sentence1", "sentence2"]).assign(note="x, y")
    table.to_csv(tmp_path / "new.csv", index=False)
    assert hifi(f"predict {run} new.csv --out said.csv").code == 0
    said = pd.read_csv(tmp_path / "said.csv", keep_default_na=False)
    assert said[[*table]].equals(table)
    assert [*said["prediction"]] == [row.prediction for row in stored]
    lines = [json.loads(line) for line in hifi(f"predict {run} new.csv").out.splitlines()]
    for label in ("entailment", "not_entailment"):
        expected = [line["probabilities"][label] for line in lines]
        np.testing.assert_allclose(said[f"probability.{label}"], expected)
    table.assign(prediction=1).to_csv(tmp_path / "new.csv", index=False)
    refused = hifi(f"predict {run} new.csv --out said.csv")
    assert refused.code == 2 and "new.csv has a column 'prediction'" in refused.err
    rows = [{"sentence1": "a", "sentence2": "b", **more} for more in ({}, {"prediction": 1})]
    (tmp_path / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    refused = hifi("predict", run, "new.jsonl", "--out", "said.csv")
    assert refused.code == 2 and "new.jsonl has a column 'prediction'" in refused.err
    (tmp_path / "new.csv").write_text("sentence1,sentence2\na,b,c\n")
    refused = hifi(f"predict {run} new.csv --out said.csv")
    assert refused.code == 2 and "line 2: more cells than column names" in refused.err


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_text_without_a_finite_logit_gets_no_prediction(
    trained, hifi, tmp_path, monkeypatch, value
):
    run, pairs, _ = trained
    path = tmp_path / "new.tsv"
    pd.DataFrame(pairs, columns=["sentence1", "sentence2"]).to_csv(path, sep="\t", index=False)
    predict_logits = ModelRunner.predict

    def with_a_bad_row(runner, examples):
        logits = predict_logits(runner, examples)
        logits[1, 0] = value
        return logits

    monkeypatch.setattr(ModelRunner, "predict", with_a_bad_row)
    answer = hifi(f"predict {run}", path)
    assert (answer.code, answer.out) == (1, "")
    assert "the logits of 1 text are not finite" in answer.err
