"""The log of a run: lines in a pipe, two live lines on a terminal, trackers on request, and nothing logged twice."""

import io
import json
import logging
import os
import re
import sys
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from synthetic_grids import cells, write_cell

from hifi_cli.grids import grid_display
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import GridProgress, JobOutcome, Scheduler
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import EpochMetrics, StepMetrics
from hifi_cli.training import metric_logger as metric_loggers
from hifi_cli.training import run as runs
from hifi_cli.training import trackers
from hifi_cli.training.metric_logger import MetricLogger, Throughput
from hifi_cli.wording import format_duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        time = 100.0

    monkeypatch.setattr(metric_loggers.time, "monotonic", lambda: Clock.time)
    return Clock


def test_throughput_counts_training_alone_and_what_this_process_did(now):
    throughput = Throughput(total_steps=40, tokens_per_step=50.0)
    assert throughput.tokens_per_second is None and throughput.seconds_left is None
    throughput.start(20)
    now.time += 5
    throughput.add_training(30)
    assert throughput.tokens_per_second == 10 * 50 / 5 and throughput.seconds_left == 5
    now.time += 100  # four more steps, and a long evaluation
    throughput.add_evaluation(34)
    assert throughput.tokens_per_second == 100  # not slower: evaluation is no training
    now.time += 1
    throughput.add_training(36)
    assert throughput.tokens_per_second == pytest.approx(12 * 50 / 6)
    assert throughput.seconds_left == pytest.approx(106 / 16 * 4)  # but what is left has evaluations in it
    assert (format_duration(59.6), format_duration(3725), format_duration(None)) == ("1:00", "1:02:05", "?")


@pytest.fixture
def start_logger(make, resources):
    """Makes the metric logger of a run of 2 epochs of 3 steps."""
    config = make("full-ft", "epochs=2", "batch_size=8")
    directory = RunDirectory.of(config, resources.results_dir)
    directory.path.mkdir(parents=True)
    return lambda *report_to: MetricLogger("rte/full-ft/seed1", config, "accuracy", [10] * 24, directory, report_to)


LINES = [
    StepMetrics(step=2, loss=0.75, learning_rate=1e-4),
    EpochMetrics(epoch=1, accuracy=0.5, f1=0.25),
    StepMetrics(step=5, loss=0.5, learning_rate=5e-5),
    EpochMetrics(epoch=2, accuracy=0.75, f1=0.5),
]


def test_a_pipe_gets_a_plain_line_an_epoch_and_the_file_every_line(start_logger, now, caplog):
    with start_logger() as metric_logger:
        for line in LINES:
            now.time += 2
            metric_logger.on_log(line)
    assert metric_logger.directory.read_metrics() == LINES
    stored = [json.loads(line) for line in metric_logger.directory.metrics.read_text().splitlines()]
    assert stored[:2] == [{"step": 2, "loss": 0.75, "learning_rate": 1e-4}, {"epoch": 1, "accuracy": 0.5, "f1": 0.25}]
    messages = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert len(messages) == 2
    assert re.fullmatch(
        r"rte/full-ft/seed1: epoch 1 of 2, accuracy 50\.00, loss 0\.7500, 80 tokens/s, [\d.]+ GB, 0:04 left", messages[0]
    )
    assert re.fullmatch(r"rte/full-ft/seed1: epoch 2 of 2, accuracy 75\.00, loss 0\.5000, 80 tokens/s, [\d.]+ GB", messages[1])


def test_a_resumption_writes_the_earlier_lines_and_does_not_show_them(start_logger, now, caplog, monkeypatch):
    class Tracker:
        def __init__(self):
            self.logged = []

        def log(self, values, step):
            self.logged.append((step, values))

        def finish(self):
            self.logged.append("finished")

    tracker = Tracker()
    monkeypatch.setattr(trackers, "start", lambda *_: [tracker])
    with start_logger("tensorboard") as metric_logger:
        metric_logger.on_resume(LINES[:2])
        now.time += 4
        metric_logger.on_log(LINES[2])
        assert metric_logger.throughput.seconds_left == 2  # 2 steps in 4 s, those before the resumption not counted; 1 is left
        metric_logger.on_log(LINES[3])
    assert len(metric_logger.directory.metrics.read_text().splitlines()) == 4
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "rte/full-ft/seed1: resuming at epoch 2 of 2",
        "rte/full-ft/seed1: epoch 2 of 2",
    ]
    assert tracker.logged == [
        (5, {"loss": 0.5, "learning_rate": 5e-5}), (6, {"epoch": 2, "accuracy": 0.75, "f1": 0.5}), "finished"
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 160])
def test_two_lines_on_a_terminal_however_wide(start_logger, monkeypatch, width):
    from rich.console import Console

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    with start_logger() as metric_logger:
        for line in LINES[:3]:
            metric_logger.on_log(line)
        page = Console(width=width, file=io.StringIO(), force_terminal=False)
        page.print(metric_logger.display.draw())
    lines = page.file.getvalue().splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= width
    assert "rte/full-ft/seed1  epoch 2 of 2" in lines[0]
    assert "accuracy 50.00" in lines[1]
    assert width < 80 or "GB" in lines[1]
    said = sys.stderr.getvalue()
    assert "\x1b[?25l" in said and said.rstrip().endswith(
        ("\x1b[2K", "\x1b[?25h")
    )  # the cursor hidden, and all wiped in the end
    assert "\x1b[2m" in said


def test_no_live_display_on_a_dumb_terminal_or_when_quiet(start_logger, monkeypatch, caplog):
    for term, level in [("dumb", logging.INFO), ("xterm", logging.ERROR)]:
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setenv("TERM", term)
        with caplog.at_level(level, "hifi"), start_logger() as metric_logger:
            metric_logger.on_log(LINES[1])
        assert "\x1b" not in sys.stderr.getvalue()


def test_no_color_is_obeyed(start_logger, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    with start_logger() as metric_logger:
        metric_logger.on_log(LINES[1])
    assert "epoch 2 of 2" in sys.stderr.getvalue()
    assert not re.search(r"\x1b\[(3|9)\d", sys.stderr.getvalue())  # no color; dimness and cursor moves are none


def test_trackers_are_checked_before_anything_runs(hifi):
    answer = hifi("train", "--protocol", "demo", "--report-to", "tensorbord")
    assert answer.code == 2 and "did you mean 'tensorboard'?" in answer.err
    answer = hifi("train", "--protocol", "demo", "--report-to", "wandb")
    assert answer.code == 3 and "pip install wandb" in answer.err
    assert trackers.flat({"a": {"b": None, "c": [1]}, "d": True}) == {"a.b": "None", "a.c": "[1]", "d": True}


@pytest.mark.filterwarnings("default")  # what TensorBoard's own imports say
def test_tensorboard_gets_what_metrics_jsonl_has(make, resources):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make("bitfit", "epochs=2", "log_every=3")
    runs.run(config, resources, report_to=["tensorboard"])
    directory = RunDirectory.of(config, resources.results_dir)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    events = EventAccumulator(str(directory.path / "tensorboard")).Reload()
    losses = [(line["step"], line["loss"]) for line in lines if "step" in line]
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("loss")] == losses and len(losses) == 4
    scores = [(6 * line["epoch"], line["accuracy"]) for line in lines if "epoch" in line]
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("accuracy")] == scores and len(scores) == 2
    (hparams,) = (directory.path / "tensorboard").rglob("hparams.yml")
    assert yaml.safe_load(hparams.read_text())["learning_rate"] == config.learning_rate
    directory.clear()
    assert not (directory.path / "tensorboard").exists()  # a run made anew does not go on in the old one's curves


def test_train_counts_runs_and_says_what_is_left_for_all(tiny, finish_run):
    finish_run("full-ft")
    said = tiny("train", "--method", "full-ft,linear-probing", "--seeds", "1,2").err
    starts = re.findall(r"^run (\d) of 4: (\S+?)(, about [\d:]+ left for all)?$", said, re.MULTILINE)
    assert [(number, bool(left)) for number, _, left in starts] == [("1", False), ("2", False), ("3", True), ("4", True)]
    assert starts[3][1] == "rte/linear-probing/seed2"


def test_a_grid_shows_a_row_for_each_running_cell(finish_run, tmp_path, make):
    from rich.console import Console

    finish_run("full-ft")
    both = [
        GridCell("rte", "full-ft", "tiny-bert", "hifi", (), (), make("full-ft", "epochs=3", seed=seed), 1.0, False)
        for seed in (1, 2)
    ]
    progress = GridProgress(both, running={Future(): (Job("train", (cell,)), tmp_path / "log") for cell in both})
    page = Console(width=120, file=io.StringIO())
    page.print(grid_display.GridDisplay(object(), tmp_path / "results").draw(progress))
    totals, first, second = page.file.getvalue().splitlines()
    assert "0/2 done, 2 running" in totals
    assert re.search(r"rte/full-ft/seed1\s+epoch 3 of 3\s+accuracy \d+\.\d\d\s+\d+:\d\d left", first)
    assert re.search(r"seed2\s+starting", second)


def test_the_line_of_a_finished_run_counts_the_next_one_as_running(tmp_path):
    all_cells = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1, 2, 3])
    scheduler = Scheduler(all_cells, JobOptions(tmp_path), tmp_path / "logs")

    def submit(job, _log):
        (cell,) = job.cells
        write_cell(cell, tmp_path)
        future = Future()
        future.set_result(JobOutcome(exit_code=0))
        return future

    lines = []
    scheduler.run(
        SimpleNamespace(processes=2, submit=submit), lambda progress: lines.append(grid_display.status_line(progress))
    )
    assert [line.split(", 0 failed")[0] for line in lines] == [
        "2/3 done, 1 running",
        "3/3 done, 0 running",
    ]


@contextmanager
def closed_pipe():
    """A pipe whose reader has gone, as `head` does."""
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "w", buffering=1)
    yield pipe
    with suppress(BrokenPipeError):
        pipe.close()


def test_a_training_goes_on_without_a_reader_of_its_messages(tiny, monkeypatch):
    with closed_pipe() as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        assert tiny("train", "--method", "bitfit").code == 0
    assert list(Path("results").rglob("results.json"))


def test_a_reader_that_leaves_early_is_no_failure(hifi, monkeypatch):
    with closed_pipe() as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert hifi("ls", "tasks").code == 0
