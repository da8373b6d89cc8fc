"""The log of a run: lines in a pipe, two live lines on a terminal, trackers on request, and nothing logged twice."""

import io
import json
import logging
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import yaml

from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import EpochMetrics, StepMetrics, metrics_line
from hifi_cli.runs import log as run_log
from hifi_cli.runs import run as runs
from hifi_cli.runs.log import MetricLogger
from hifi_cli.tasks import task_spec
from hifi_cli.training.processes import process_state


class Terminal(io.StringIO):
    def isatty(self):
        return True


LINES = [
    StepMetrics(step=2, loss=0.75, learning_rate=1e-4),
    EpochMetrics(epoch=1, accuracy=0.5, f1=0.25),
    StepMetrics(step=5, loss=0.5, learning_rate=5e-5),
    EpochMetrics(epoch=2, accuracy=0.75, f1=0.5),
]


@pytest.fixture
def start_logger(make, workspace):
    """Makes the metric logger of a run of 2 epochs of 3 steps that goes on after some lines."""
    config = make("full-ft", "epochs=2", "batch_size=8")
    directory = RunDirectory.of(config, workspace.results_dir)
    directory.path.mkdir(parents=True)

    @contextmanager
    def start(*report_to, earlier=()):
        progress = SimpleNamespace(
            step=3 * bool(earlier), epoch=int(bool(earlier)), log_history=list(earlier)
        )
        runner = SimpleNamespace(device=torch.device("cpu"), task=task_spec.load("rte"))
        trainer = SimpleNamespace(
            config=config,
            runner=runner,
            plan=SimpleNamespace(total=6),
            progress=progress,
            seconds=0.0,
            has_trained=lambda: True,
        )
        metric_logger = MetricLogger(config, directory, report_to)
        metric_logger.on_train_begin(trainer)
        try:
            yield metric_logger, trainer
        finally:
            metric_logger.on_train_end(trainer)

    return start


def log_lines(metric_logger, trainer, lines):
    for line in lines:
        trainer.progress.step = line.step if isinstance(line, StepMetrics) else 3 * line.epoch
        metric_logger.on_log(trainer, line)


def test_a_pipe_gets_a_plain_line_an_epoch_and_the_file_every_line(start_logger, caplog):
    with start_logger() as (metric_logger, trainer):
        log_lines(metric_logger, trainer, LINES)
    stored = [json.loads(line) for line in metric_logger.directory.metrics.read_text().splitlines()]
    assert stored[:2] == [
        {"step": 2, "loss": 0.75, "learning_rate": 1e-4},
        {"epoch": 1, "accuracy": 0.5, "f1": 0.25},
    ]
    first, second = (record.message for record in caplog.records if record.levelno == logging.INFO)
    expected = (r"1 of 2, accuracy 50\.00, loss 0\.7500", r"2 of 2, accuracy 75\.00, loss 0\.5000")
    for line, said in zip((first, second), expected, strict=True):
        assert re.fullmatch(
            rf"rte/full-ft/seed1: epoch {said}, peak memory [\d.]+ GB, \d:\d\d:\d\d left", line
        )


def test_an_epoch_without_a_logged_step_says_no_loss(start_logger, caplog):
    """Before, the loss of the epoch before stood in its line."""
    step, first, *_ = LINES
    with start_logger() as (metric_logger, trainer):
        log_lines(metric_logger, trainer, [step, first, first.model_copy(update={"epoch": 2})])
    said = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert "loss 0.7500" in said[0] and "epoch 2" in said[1] and "loss" not in said[1]


def test_a_resumption_writes_the_earlier_lines_and_does_not_show_them(
    start_logger, caplog, monkeypatch
):
    logged = []
    tracker = SimpleNamespace(
        log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append("end")
    )
    monkeypatch.setattr(run_log, "start_trackers", lambda *_: [tracker])
    with start_logger("tensorboard", earlier=LINES[:2]) as (metric_logger, trainer):
        log_lines(metric_logger, trainer, LINES[2:])
    stored = metric_logger.directory.metrics.read_text().splitlines()
    assert [metrics_line(json.loads(line)) for line in stored] == LINES
    said = [
        record.message.split(",")[0] for record in caplog.records if record.levelno == logging.INFO
    ]
    assert said == [
        "rte/full-ft/seed1: resuming at epoch 2 of 2",
        "rte/full-ft/seed1: epoch 2 of 2",
    ]
    assert logged == [
        (5, {"loss": 0.5, "learning_rate": 5e-5}),
        (6, {"epoch": 2, "accuracy": 0.75, "f1": 0.5}),
        "end",
    ]


@pytest.mark.parametrize(
    ("term", "level", "is_shown"),
    [
        ("xterm-256color", logging.INFO, True),
        ("dumb", logging.INFO, False),
        ("xterm", logging.ERROR, False),
    ],
)
def test_a_progress_bar_on_a_terminal_and_none_on_a_dumb_one_or_when_quiet(
    start_logger, monkeypatch, caplog, term, level, is_shown
):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", term)
    with caplog.at_level(level, "hifi"), start_logger() as (metric_logger, trainer):
        log_lines(metric_logger, trainer, LINES[1:2])
    assert (
        "\x1b[?25l" in sys.stderr.getvalue()
    ) == is_shown  # the cursor is hidden while the bar is there


def test_trackers_are_checked_before_anything_runs(hifi):
    answer = hifi("train --protocol demo --report-to tensorbord")
    assert answer.code == 2 and "is not one of aim, comet_ml" in answer.err
    answer = hifi("train --protocol demo --report-to wandb")
    assert answer.code == 3 and "pip install wandb" in answer.err


@pytest.mark.parametrize(
    ("name", "start"),
    [("wandb", "init"), ("trackio", "init"), ("mlflow", "start_run"), ("swanlab", "init")],
)
def test_seeds_stand_together_in_a_tracker(make, tmp_path, monkeypatch, name, start):
    library = MagicMock()
    library.utils.validation = SimpleNamespace(
        MAX_PARAM_VAL_LENGTH=500, MAX_PARAMS_TAGS_PER_BATCH=100
    )  # of mlflow
    monkeypatch.setitem(sys.modules, name, library)
    process_state()  # as every run has it: the tracker of swanlab logs through accelerate
    run_log.start_trackers([name], make("bitfit"), RunDirectory(tmp_path))
    said = getattr(library, start).call_args.kwargs
    assert "hifi/tiny-bert/rte/bitfit" in str(said.get("group") or said["tags"])
    assert "rte/bitfit/seed1" in (
        said.get("name"),
        said.get("run_name"),
        said.get("experiment_name"),
    )


@pytest.mark.filterwarnings("default")  # what TensorBoard's own imports say
def test_tensorboard_gets_what_metrics_jsonl_has(make, workspace):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make("bitfit", "epochs=2", "log_every=3")
    runs.run(config, workspace, report_to=["tensorboard"])
    directory = RunDirectory.of(config, workspace.results_dir)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    events = EventAccumulator(str(directory.path / "tensorboard")).Reload()
    losses = [(line["step"], line["loss"]) for line in lines if "step" in line]
    assert [
        (event.step, pytest.approx(event.value)) for event in events.Scalars("loss")
    ] == losses and len(losses) == 4
    scores = [(6 * line["epoch"], line["accuracy"]) for line in lines if "epoch" in line]
    assert [
        (event.step, pytest.approx(event.value)) for event in events.Scalars("accuracy")
    ] == scores and len(scores) == 2
    (hparams,) = (directory.path / "tensorboard").rglob("hparams.yml")
    assert yaml.safe_load(hparams.read_text())["learning_rate"] == config.learning_rate
    directory.clear()
    assert not (
        directory.path / "tensorboard"
    ).exists()  # a run made anew does not go on in the old one's curves
