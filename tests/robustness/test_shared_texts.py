"""Rows to validate on that are rows to train on: said, for the user's own data and for a holdout."""

import logging

import pytest

from hifi_cli.runs import run as runs
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.own_data import register


def write_rows(path, numbers):
    lines = [f"text {number},{'yes' if number % 2 else 'no'}" for number in numbers]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


@pytest.fixture
def warnings_of(tmp_path, caplog):
    """The warnings about the data of a train and a validation file."""

    def load(train, validation):
        files = [
            write_rows(tmp_path / f"{at}.csv", rows) for at, rows in enumerate((train, validation))
        ]
        spec = task_spec.load(register(str(files[0]), [f"validation={files[1]}"]))
        caplog.clear()
        task_sources.load(spec, data_dir=None)
        return [record.message for record in caplog.records if record.levelno == logging.WARNING]

    return load


def test_a_validation_file_that_is_the_training_file_is_said(warnings_of):
    (line,) = warnings_of(range(20), range(20))
    assert line.startswith("warning: ")
    assert "every validation row has the texts of a train row" in line


def test_the_training_files_rows_in_another_order_are_said_too(warnings_of):
    (line,) = warnings_of(range(20), reversed(range(5, 15)))
    assert "every validation row has the texts of a train row" in line


def test_some_equal_texts_are_counted(warnings_of):
    (line,) = warnings_of(range(20), range(18, 30))
    assert line.endswith("2 of 12 validation rows have the texts of a train row")


def test_other_rows_are_no_reason_for_a_warning(warnings_of):
    assert warnings_of(range(20), range(20, 30)) == []


def test_equal_files_of_a_benchmark_are_said(tmp_path, caplog):
    folder = tmp_path / "RTE"
    folder.mkdir()
    rows = ["index\tsentence1\tsentence2\tlabel"]
    rows += [f"{at}\tone {at}\ttwo {at}\t{'not_' * (at % 2)}entailment" for at in range(20)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(rows) + "\n")
    task_sources.load(task_spec.load("rte"), data_dir=tmp_path)
    assert "every validation row has the texts of a train row" in caplog.text


def test_equal_texts_on_both_sides_of_a_holdout_are_counted(make, tmp_path, caplog):
    from hifi_cli.runs.workspace import Workspace

    folder = tmp_path / "data/RTE"
    folder.mkdir(parents=True)
    head = "index\tsentence1\tsentence2\tlabel"
    same = [f"{at}\tdog\tcat\t{'not_' * (at % 2)}entailment" for at in range(40)]
    other = [f"{at}\tdog {at}\tcat\t{'not_' * (at % 2)}entailment" for at in range(10)]
    (folder / "train.tsv").write_text("\n".join([head, *same]) + "\n")
    (folder / "dev.tsv").write_text("\n".join([head, *other]) + "\n")
    config = make("linear-probing", "epochs=1", "selection=holdout", "holdout=0.25")
    runs.run(config, Workspace(tmp_path / "results", tmp_path / "data"))
    said = "10 of the 10 rows that select the epoch have the texts of a train row"
    assert caplog.text.count(said) == 1
