"""hifi predict: texts in, labels and probabilities out, in either layout and every kind of task."""

import io
import json
import sys

import numpy as np
import pytest

from hifi_cli.config.sources import resolve
from hifi_cli.errors import UsageError
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.predict import predict, read
from hifi_cli.tasks import readers, task_spec
from hifi_cli.training import run as runs
from hifi_cli.training.data import ResourceCache

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(encoders, data, tmp_path_factory):
    """A finished run of RTE: its directory, and the pairs of texts and logits it stored. The tests only read it."""
    settings = ["epochs=8", "batch_size=8", "learning_rate=0.005"]
    config = resolve(task="rte", method="full-ft", backbone=str(encoders["bert"]), protocol="hifi", overrides=settings)
    resources = ResourceCache(tmp_path_factory.mktemp("trained"), data)
    runs.run(config, resources)
    directory = RunDirectory.of(config, resources.results_dir)
    pairs = [row.sequences[0] for row in resources.rows("rte").rows("validation")]
    return directory.path, pairs, directory.read_predictions()


def pipe(monkeypatch, text):
    """Put a text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def softmax(logits):
    shares = np.exp(logits)
    return shares / shares.sum()


def test_tsv_in_tsv_out_with_the_run_s_own_predictions(trained, hifi, tmp_path):
    run, pairs, stored = trained
    lines = ["idx\tsentence2\tsentence1", *(f"row{at}\t{second}\t{first}" for at, (first, second) in enumerate(pairs))]
    (tmp_path / "new.tsv").write_text("\n".join(lines) + "\n")
    answer = hifi("predict", run, tmp_path / "new.tsv")
    assert answer.code == 0, answer.err
    header, *rows = (line.split("\t") for line in answer.out.splitlines())
    assert header == ["id", "prediction", "entailment", "not_entailment"]
    assert [row[1] for row in rows] == [prediction.prediction for prediction in stored] and len({row[1] for row in rows}) == 2
    for row, prediction in zip(rows, stored, strict=True):
        np.testing.assert_allclose([float(cell) for cell in row[2:]], softmax(prediction.logits), atol=1e-4)
    assert "warning" not in answer.err  # no data are read, and none are missed


def test_json_lines_and_a_pipe(trained, hifi, tmp_path, monkeypatch):
    run, pairs, stored = trained
    lines = "".join(json.dumps({"sentence1": first, "sentence2": second}) + "\n" for first, second in pairs[:4])

    pipe(monkeypatch, lines)
    answer = hifi("predict", run, "-", "--input-format", "jsonl")
    said = [json.loads(line) for line in answer.out.splitlines()]
    assert [row["id"] for row in said] == ["0", "1", "2", "3"]
    assert [row["prediction"] for row in said] == [row.prediction for row in stored[:4]]
    assert sum(said[0]["probabilities"].values()) == pytest.approx(1)
    (tmp_path / "new.tsv").write_text("sentence1\tsentence2\n" + "".join("\t".join(pair) + "\n" for pair in pairs[:4]))
    answer = hifi("predict", run, tmp_path / "new.tsv", "--format", "jsonl", "--out", tmp_path / "said.jsonl")
    assert answer.code == 0, answer.err
    assert (tmp_path / "said.jsonl").read_text() == "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in said)


def test_csv_in_csv_out(trained, hifi, tmp_path):
    run, pairs, stored = trained
    (tmp_path / "new.CSV").write_text(
        "sentence1,sentence2,note\n" + "".join(f'"{first}",{second},"x, y"\n' for first, second in pairs)
    )
    answer = hifi("predict", run, tmp_path / "new.CSV")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0] == "id,prediction,entailment,not_entailment"
    assert [line.split(",")[1] for line in answer.out.splitlines()[1:]] == [prediction.prediction for prediction in stored]
    assert hifi("predict", run, tmp_path / "new.CSV", "--out", tmp_path / "out.jsonl").code == 0
    assert (tmp_path / "out.jsonl").read_text().startswith('{"id": "0", "prediction"')  # as the output's name says


def test_an_output_that_would_mislead_or_replace_the_input_is_refused(trained, hifi, tmp_path):
    run, pairs, _ = trained
    content = "sentence1,sentence2\n" + "".join(f"{first},{second}\n" for first, second in pairs[:4])
    path = tmp_path / "new.csv"
    path.write_text(content)
    (tmp_path / "link.csv").symlink_to(path)
    for out in ("new.csv", "link.csv"):
        answer = hifi("predict", run, path, "--out", out)
        assert answer.code == 2 and f"--out {out} is the input, which would be lost: name another file" in answer.err
    for suffix in (".parquet", ".xlsx"):
        answer = hifi("predict", run, path, "--out", f"p{suffix}")
        assert answer.code == 2 and f"'{suffix}' is not written; the name must end in .tsv, .csv, .jsonl, .json" in answer.err
    assert path.read_text() == content and not list(tmp_path.glob("p.*"))
    assert hifi("predict", run, path, "--format", "csv", "--out", "p.txt").code == 0


def test_a_format_that_nothing_says_is_asked_for(trained, hifi, tmp_path, monkeypatch):
    run, pairs, _ = trained
    content = "sentence1,sentence2\n" + "".join(f'"{first}",{second}\n' for first, second in pairs[:4])
    (tmp_path / "new.csv").write_text(content)
    (tmp_path / "new.txt").write_text(content)
    pipe(monkeypatch, content)
    answer = hifi("predict", run, "-", "--input-format", "csv")
    assert answer.code == 0 and answer.out == hifi("predict", run, tmp_path / "new.csv").out
    for file in ("-", "new.txt", "none.txt"):
        pipe(monkeypatch, content)
        answer = hifi("predict", run, file)
        assert answer.code == 2 and "give --input-format" in answer.err
    pipe(monkeypatch, content)
    answer = hifi("predict", run, "-", "--input-format", "tsv")
    assert answer.code == 2 and "standard input has commas between its columns" in answer.err
    pipe(monkeypatch, "sentence1,sentence2\na,b\nc\n")
    answer = hifi("predict", run, "-", "--input-format", "csv")
    assert answer.code == 2 and "standard input, line 3: 1 columns" in answer.err
    assert hifi("predict", run, "new.txt", "--input-format", "csv").code == 0
    assert hifi("predict", run, "none.jsonl").code == 3
    assert hifi("predict", run, "none.txt", "--input-format", "csv").code == 3


def test_an_endless_standard_input_is_refused(trained, hifi, monkeypatch):
    monkeypatch.setattr(readers, "MAX_BYTES", 1000)
    pipe(monkeypatch, "x" * 2000)
    answer = hifi("predict", trained[0], "-", "--input-format", "jsonl")
    assert answer.code == 2 and "is larger than 1,000 bytes" in answer.err


def test_what_is_wrong_is_named(trained, hifi, tmp_path):
    run, _, _ = trained

    def refused(content, code=2, name="new.tsv"):
        (tmp_path / name).write_bytes(content)
        answer = hifi("predict", run, tmp_path / name)
        assert answer.code == code and answer.out == "" and len(answer.err.splitlines()) == 1
        return answer.err

    assert "no column 'sentence2'" in refused(b"sentence1\tother\na\tb\n")
    assert "line 3: 1 columns" in refused(b"sentence1\tsentence2\na\tb\nc\n")
    assert "sentence2 is empty" in refused(b"sentence1\tsentence2\na\t \n")
    for name, separator in (("new.tsv", b"\t"), ("new.csv", b",")):  # never a row, although it has as many columns
        error = refused(separator.join([b"premise", b"hypothesis\na", b"b\n"]), name=name)
        assert "no column 'sentence1'; the columns are premise, hypothesis" in error
    assert "invalid JSON" in refused(b'{"sentence1": \n', name="new.jsonl")
    assert "line 3: 1 columns" in refused(b"sentence1,sentence2\na,b\nc\n", name="new.csv")
    assert "UTF-8" in refused(b"\xff\xfe\ta\n")
    assert "empty" in refused(b"", name="new.tsv")
    assert hifi("predict", run, tmp_path / "none.tsv").code == 3
    assert hifi("predict", tmp_path / "norun", tmp_path / "new.tsv").code == 3
    assert hifi("predict", run, tmp_path / "new.tsv", "--format", "xml").code == 2


def test_numbers_choices_and_answers(resources, make, tmp_path, task_kinds_data):
    config = make("full-ft", "epochs=1", task="stsb")
    runs.run(config, resources)
    file = tmp_path / "new.jsonl"
    file.write_text('{"sentence1": "the dog", "sentence2": "a cat"}\n')
    (said,) = predict(RunDirectory.of(config, resources.results_dir).path, file, resources, "jsonl")
    assert isinstance(said["prediction"], float) and "probabilities" not in said
    resources.data_dir = task_kinds_data
    for task, content in [
        ("copa", {"premise": "The dog sees.", "choice1": "The cat likes.", "choice2": "A bird hears.", "question": "cause"}),
        ("multirc", {"paragraph": "the dog sees a cat", "question": "the man", "answer": "not now"}),
        ("squad", {"question": "the dog", "context": "a cat sees the bird here"}),
    ]:
        config = make("full-ft", "epochs=1", "max_length=32", task=task)
        runs.run(config, resources)
        file.write_text(json.dumps(content) + "\n")
        (said,) = predict(RunDirectory.of(config, resources.results_dir).path, file, resources, "jsonl")
        if task == "squad":
            assert said["prediction"] in content["context"]
        else:
            assert said["prediction"] in said["probabilities"]
            assert sum(said["probabilities"].values()) == pytest.approx(1)


def test_one_logit_is_that_of_the_second_class(make, resources, tmp_path):
    config = make("full-ft", "epochs=1", "task_head.kind=mlp", "task_head.width=16", "task_head.one_logit=true")
    runs.run(config, resources)
    directory, file = RunDirectory.of(config, resources.results_dir), tmp_path / "new.jsonl"
    rows = [row.sequences[0] for row in resources.rows("rte").rows("validation")]
    file.write_text("".join(json.dumps({"sentence1": first, "sentence2": second}) + "\n" for first, second in rows))
    for said, stored in zip(predict(directory.path, file, resources, "jsonl"), directory.read_predictions(), strict=True):
        (logit,) = stored.logits
        assert [*said["probabilities"].values()] == pytest.approx([1 / (1 + np.exp(logit)), 1 / (1 + np.exp(-logit))], abs=1e-4)
        assert said["prediction"] == stored.prediction


def test_empty_lines_of_a_csv_are_no_rows_and_change_no_id(tmp_path):
    task, path = task_spec.load("qqp").model_copy(update={"id": None}), tmp_path / "new.csv"
    path.write_text("\nquestion1,question2\na,b\n\n\nc,d\n\n")
    assert [(row.id, row.sequences[0][0]) for row in read(task, path, "csv", "new.csv")] == [("0", "a"), ("1", "c")]


def test_no_row_is_left_out_of_the_predictions(tmp_path):
    """Not even of a task that skips rows with an empty text in training: the others would get wrong numbers."""
    task, path = task_spec.load("qqp").model_copy(update={"id": None}), tmp_path / "new.csv"
    path.write_text("question1,question2\na,b\nc,\nd,e\n")
    with pytest.raises(UsageError, match="line 3: question2 is empty"):
        read(task, path, "csv", "new.csv")
