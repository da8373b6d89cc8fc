"""Submission files: what the servers take, and what is refused."""

import json
import zipfile

import numpy as np
import pytest
from run_folders import run_folder

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import submission, task_spec
from hifi_cli.tasks.task_spec import Row

PREDICTIONS = 4  # rows of every test split here


@pytest.fixture
def small(monkeypatch):
    """Every task's test splits have four rows."""
    load = task_spec.load

    def shrunk(name):
        task = load(name)
        return task.model_copy(update={"rows": dict.fromkeys(task.rows, PREDICTIONS)})

    monkeypatch.setattr(task_spec, "load", shrunk)
    return shrunk


def rows(task):
    if task.format == "multirc":
        ids = [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3)]
        return [
            Row(
                "-".join(map(str, numbers)), (("p", "q"),), None, group=f"{numbers[0]}-{numbers[1]}"
            )
            for numbers in ids
        ]
    if task.format == "record":
        return [
            Row(f"{at}-{name}{at}", (("p", "q"),), None, group=str(at), candidate=f"{name}{at}")
            for at in (1, 0, 3, 2)
            for name in "xy"
        ]
    return [Row(str(at), (("x",),), None) for at in range(PREDICTIONS)]


def write_all(benchmark, load, directory):
    for name, _, split in submission.tasks_by_file(benchmark).values():
        task = load(name)
        values = (
            np.array([-0.5, 1.25, 5.5, 3.0])
            if task.kind == "regression"
            else np.array([0.0, 1, 1, 0])
        )
        # The first of a query's two candidates is chosen.
        values = np.array([1.0, 0.0] * PREDICTIONS) if task.format == "record" else values
        submission.write(task, split, rows(task), values, directory)


def test_glues_zip_holds_its_eleven_files_in_its_words(small, tmp_path):
    write_all("glue", small, tmp_path)
    with zipfile.ZipFile(submission.pack("glue", tmp_path)) as archive:
        names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
        assert sorted(archive.namelist()) == [f"{name}.tsv" for name in names.split()]
        text = {name: archive.read(name).decode() for name in archive.namelist()}
    assert (
        text["RTE.tsv"]
        == "index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tnot_entailment\n3\tentailment\n"
    )
    assert text["CoLA.tsv"] == "index\tprediction\n0\t0\n1\t1\n2\t1\n3\t0\n"
    assert (
        text["AX.tsv"]
        == text["MNLI-mm.tsv"]
        == "index\tprediction\n0\tentailment\n1\tneutral\n2\tneutral\n3\tentailment\n"
    )
    assert (
        text["STS-B.tsv"] == "index\tprediction\n0\t0.000\n1\t1.250\n2\t5.000\n3\t3.000\n"
    )  # kept in the scale's range


def test_a_number_of_a_submission_is_never_minus_zero(small, tmp_path):
    task = small("stsb")
    values = np.array([-0.0, -1e-9, 1e-9, 5.0001])
    path = submission.write(task, "test", rows(task), values, tmp_path)
    numbers = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    assert numbers == ["0.000", "0.000", "0.000", "5.000"]


def test_superglues_files_are_json_lines_in_its_words(small, tmp_path):
    write_all("superglue", small, tmp_path)
    submitted = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in tmp_path.glob("*.jsonl")
    }
    assert submitted["BoolQ"] == [
        {"idx": at, "label": label} for at, label in enumerate(["false", "true", "true", "false"])
    ]
    assert submitted["WSC"][:2] == [{"idx": 0, "label": "False"}, {"idx": 1, "label": "True"}]
    assert submitted["COPA"][:2] == [{"idx": 0, "label": 0}, {"idx": 1, "label": 1}]
    assert [line["idx"] for line in submitted["ReCoRD"]] == [0, 1, 2, 3]
    assert submitted["CB"][1] == {"idx": 1, "label": "contradiction"}
    assert submitted["MultiRC"] == [
        {"idx": 0, "passage": {"questions": [
            {"idx": 0, "answers": [{"idx": 0, "label": 0}, {"idx": 1, "label": 1}]},
            {"idx": 1, "answers": [{"idx": 2, "label": 1}]},
        ]}},
        {"idx": 1, "passage": {"questions": [{"idx": 2, "answers": [{"idx": 3, "label": 0}]}]}},
    ]  # fmt: skip
    assert submitted["ReCoRD"] == [
        {"idx": at, "label": f"x{at}"} for at in range(PREDICTIONS)
    ]  # sorted
    (tmp_path / "ReCoRD.jsonl").unlink()
    with pytest.raises(
        MissingError,
        match=r"superglue\.zip is not written: .* lacks ReCoRD.jsonl, and the server requires all",
    ):
        submission.pack("superglue", tmp_path)


def test_rows_that_are_not_the_official_ones_are_refused(small, tmp_path):
    task = small("rte")
    for others in (rows(task)[:3], rows(task)[1:] + rows(task)[:1]):
        with pytest.raises(
            UsageError, match=r"RTE\.tsv is refused: . rows; the server expects the 4"
        ):
            submission.write(task, "test", others, np.zeros(4), tmp_path)
    with pytest.raises(UsageError, match="task SQuAD has no submission"):
        submission.spec_of(task_spec.load("squad"))
    assert not list(tmp_path.iterdir())


def test_eval_writes_the_files_of_a_run(tiny, hifi, data, small, tmp_path):
    test = "index\tsentence1\tsentence2\n" + "".join(
        f"{at}\tthe dog {'sees ' * at}\tthe cat\n" for at in range(4)
    )
    assert tiny("train --method full-ft").code == 0
    run = run_folder()
    words = ["eval", run, "--data-dir", data]
    try:
        (data / "RTE" / "test.tsv").write_text(test)
        both = ["eval", "nowhere", *words[1:]]
        answer = hifi(*both, "--split", "test", "--submission", tmp_path / "out")
        assert "nowhere is left out: " in answer.err
        assert (
            answer.code == 3
            and "lacks AX.tsv, CoLA.tsv, MNLI-m.tsv, MNLI-mm.tsv, MRPC.tsv, QNLI.tsv, QQP.tsv"
            in answer.err
        )
        text = (run / "predictions-test.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        written = [f"{line['id']}\t{line['prediction']}" for line in lines]
        assert (tmp_path / "out" / "RTE.tsv").read_text().splitlines()[1:] == written
        assert all(line["label"] is None for line in lines) and len(lines) == 4
        wrong = hifi(*words, "--submission", tmp_path / "out")
        assert wrong.code == 2 and "--split test" in wrong.err
    finally:  # the data are the session's
        (data / "RTE" / "test.tsv").unlink()
