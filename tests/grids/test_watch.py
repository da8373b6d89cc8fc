"""What `hifi grid` shows while it trains: lines of running runs, warnings of their commands, one line a minute."""

import io
import logging
import re
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from rich.console import Console
from synthetic_grids import cells, write_cell

from hifi_cli.cli.app import StderrHandler
from hifi_cli.grids import queue
from hifi_cli.grids import state as grid_state
from hifi_cli.grids.display import GridDisplay
from hifi_cli.grids.state import GridState
from hifi_cli.grids.watch import RunWatch
from hifi_cli.locks import locked
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.signs import CHOSEN_ON_REPORTED

STEPS = '{{"step": {0}, "loss": 0.5, "learning_rate": 1e-4}}\n'
NAME = "demo-entailment/full-ft/seed1"
WHERE = ["--results-dir", "results"]


@pytest.fixture
def run(tmp_path):
    """A run of the demo that trains, as its files show it."""
    (cell,) = cells("epochs=4", tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    directory = RunDirectory.of(cell.config, tmp_path)
    directory.path.mkdir(parents=True)
    return RunWatch(cell, directory, tmp_path / "log")


def write(run, *lines):
    with run.directory.metrics.open("a") as file:
        file.writelines(lines)


def test_a_line_has_epoch_score_loss_and_the_time_that_its_own_steps_took(run):
    assert run.describe(0.0) == f"{NAME}: no step yet"
    write(run, STEPS.format(10))
    run.look(100.0)
    assert run.describe(100.0) == f"{NAME}: epoch 0 of 4, loss 0.5000", "one line is no rate"
    write(run, STEPS.format(20), '{"epoch": 1, "accuracy": 0.75}\n')
    run.look(120.0)
    # Twenty steps are an epoch, and ten of them took 20 s: sixty are left.
    assert run.steps == 80
    line = f"{NAME}: epoch 1 of 4, accuracy 75.00, loss 0.5000, about 0:02:00 left"
    assert run.describe(120.0) == line
    assert run.describe(150.0).endswith("about 0:01:30 left"), "the clock goes on between lines"


def test_before_the_first_epoch_the_rows_of_the_task_say_how_many_steps_there_are(run):
    rows, size = run.cell.rows, run.cell.config.batch_size
    assert rows and run.steps == 4 * -(-rows // size)


def test_a_process_that_goes_on_from_a_checkpoint_is_timed_by_its_own_steps(run):
    write(run, STEPS.format(40), '{"epoch": 1, "accuracy": 0.75}\n')
    run.look(0.0)
    lines = run.directory.metrics.read_text()
    (run.directory.path / "new").write_text(lines)
    (run.directory.path / "new").replace(run.directory.metrics)
    run.look(1000.0)  # the process has started, which took long
    write(run, STEPS.format(50))
    run.look(1005.0)
    assert run.seconds_left(1005.0) == pytest.approx(0.5 * (160 - 50))


def test_a_terminal_has_a_line_for_each_run_that_trains_redrawn_in_place(run):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    write(run, STEPS.format(10))
    run.look(0.0)
    with GridDisplay(3, console) as display:
        assert display.is_due
        display.show("1/3 done", 1, [run], 0.0)
        display.progress.refresh()
        write(run, STEPS.format(20), '{"epoch": 1, "accuracy": 0.75}\n')
        run.look(1.0)
        display.show("1/3 done", 1, [run], 1.0)
        display.progress.refresh()
        shown = screen.getvalue()
        display.show("2/3 done", 2, [], 2.0)
        display.progress.refresh()
    assert f"{NAME}: epoch 0 of 4, loss 0.5000" in shown
    assert f"{NAME}: epoch 1 of 4, accuracy 75.00, loss 0.5000" in shown
    assert "\x1b[1A" in shown, "the cursor goes up to the line before"
    last = screen.getvalue()[len(shown) :]
    assert "2/3 done" in last and NAME not in last, "a run that has ended has no line"


@pytest.mark.parametrize(
    ("width", "bar", "text"),
    [
        (120, 16, f"{NAME}: epoch 1 of 4, accuracy 75.00, loss 0.5000, about 0:02:00 left"),
        (100, 7, f"{NAME}: epoch 1 of 4, accuracy 75.00, loss 0.5000, about 0:02:00 left"),
        (94, 0, f"{NAME}: epoch 1 of 4, accuracy 75.00, loss 0.5000, about 0:02:00 left"),
        (60, 0, "…och 1 of 4, accuracy 75.00, loss 0.5000, about 0:02:00 left"),
    ],
)
def test_on_a_narrow_terminal_the_bar_gives_way_and_the_end_of_the_text_stays(
    run, width, bar, text
):
    screen = io.StringIO()
    write(run, STEPS.format(10))
    run.look(100.0)
    write(run, STEPS.format(20), '{"epoch": 1, "accuracy": 0.75}\n')
    run.look(120.0)
    with GridDisplay(3, Console(file=screen, force_terminal=True, width=width)) as display:
        display.show("1/3 done, 0 failed, about 0:00:09 to go", 1, [run], 120.0)
        display.progress.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", shown) if "left" in line]
    assert lines and {line.rstrip() for line in lines} == {lines[0].rstrip()}
    assert lines[0].rstrip().endswith(text)
    assert len(re.findall("[━╸╺]", lines[0])) == bar
    assert "1/3 done, 0 failed, about 0:00:09 to go" in shown


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 1), (logging.ERROR, 0)])
def test_elsewhere_a_line_a_minute_says_it_and_quiet_stays_quiet(
    run, caplog, monkeypatch, level, lines
):
    clock = [0.0]
    monkeypatch.setattr("hifi_cli.grids.display.time", SimpleNamespace(monotonic=lambda: clock[0]))
    write(run, STEPS.format(10))
    run.look(0.0)
    screen = io.StringIO()
    with caplog.at_level(level, "hifi"), GridDisplay(3, Console(file=screen)) as display:
        due = []
        for second in (1, 59, 60, 61, 119):
            clock[0] = second
            due.append(display.is_due)
            if display.is_due:
                display.show("1/3 done, 0 failed", 1, [run], clock[0])
    assert due == [False, False, True, False, False]
    said = [f"grid: 1/3 done, 0 failed; {NAME}: epoch 0 of 4, loss 0.5000"]
    assert caplog.messages == said[:lines] and screen.getvalue() == ""


def test_what_running_runs_have_trained_counts_for_the_time_of_the_grid(run, tmp_path, monkeypatch):
    """Of two equal runs, the first is half done after 30 s: three halves are left."""
    state = GridState(cells("epochs=4", tasks=["demo-entailment"], methods=["full-ft"]), tmp_path)
    monkeypatch.setattr(grid_state.time, "monotonic", lambda: state.started + 30)
    assert state.summary() == "0/2 done, 0 failed", "nothing is known yet"
    assert run.cost_done == 0
    write(run, STEPS.format(10), '{"epoch": 1, "accuracy": 0.75}\n', STEPS.format(20))
    run.look(30.0)
    assert run.cost_done == run.cell.cost / 2
    assert state.summary(run.cost_done) == "0/2 done, 0 failed, about 0:01:30 to go"
    # Until the run says more, the clock goes on.
    monkeypatch.setattr(grid_state.time, "monotonic", lambda: state.started + 40)
    assert state.summary(run.cost_done) == "0/2 done, 0 failed, about 0:01:20 to go"
    monkeypatch.setattr(grid_state.time, "monotonic", lambda: state.started + 400)
    assert state.summary(run.cost_done) == "0/2 done, 0 failed, about 0:00:00 to go"
    # Three quarters of the first run in 60 s: five quarters are left.
    monkeypatch.setattr(grid_state.time, "monotonic", lambda: state.started + 60)
    write(run, STEPS.format(30))
    run.look(60.0)
    assert state.summary(run.cost_done) == "0/2 done, 0 failed, about 0:01:40 to go"


def test_files_that_cannot_be_read_end_no_grid(run):
    run.log.mkdir()
    assert run.new_warnings() == []
    run.directory.metrics.mkdir()
    run.look(1.0)
    run.directory.metrics.rmdir()
    write(run, '{"epoch": 1, "another_metric": 0.75}\n')
    run.look(2.0)
    assert run.describe(2.0) == f"{NAME}: epoch 1 of 4"


def test_a_command_of_a_grid_marks_its_warnings_alone(capsys):
    for marks, expected in [(False, "said\nwarned\n"), (True, "said\nwarning: warned\n")]:
        handler = StderrHandler(marks_warnings=marks)
        for level, text in [(logging.INFO, "said"), (logging.WARNING, "warned")]:
            handler.emit(logging.LogRecord("hifi", level, "", 0, text, (), None))
        assert capsys.readouterr().err == expected


def test_warnings_of_commands_appear_once_and_signs_wait_for_the_end(tmp_path, caplog):
    """The first command warns before it ends; a sign against a score is said about all runs together."""
    all_cells = cells(tasks=["demo-entailment"], methods=["full-ft", "bitfit"], seeds=[1])
    logs = tmp_path / "logs"
    logs.mkdir()
    for cell in all_cells:
        name = cell.config.run_label.replace("/", "-")
        (logs / f"{name}.log").write_text("warning: of yesterday\n")
    pending = []

    def submit(command, log):
        ended: Future[int] = Future()
        pending.append((command, log, ended))
        if len(pending) == len(all_cells):
            for (_, log, ended), cell in zip(pending, all_cells, strict=True):
                own = f"warning: {cell.config.run_label}: no checkpoint is saved\n"
                sign = f"warning: note: {CHOSEN_ON_REPORTED}\n"
                with log.open("a") as file:
                    file.write(f"usual\nwarning: 2 rows left out\n{own}{sign}")
                write_cell(cell, tmp_path)
                ended.set_result(0)
        return ended

    queue.run(GridState(all_cells, tmp_path), submit, logs, WHERE)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    first, second = [cell.config.run_label for cell in all_cells]
    rows = [text for text in warned if text.endswith("2 rows left out")]
    assert len(rows) == 1 and rows[0] in (
        f"{first}: 2 rows left out",
        f"{second}: 2 rows left out",
    )
    own = [f"{label}: no checkpoint is saved" for label in (first, second)]
    assert sorted(set(warned) - set(rows)) == sorted(own) and len(warned) == 3


def test_only_cells_that_a_process_has_begun_are_shown(tmp_path):
    all_cells = cells(tasks=["demo-entailment"], methods=["full-ft", "bitfit"], seeds=[1])
    state = GridState(all_cells, tmp_path)
    waiting = queue.Queue(
        state, lambda *_: Future(), tmp_path / "logs", WHERE, force=False, retries=0
    )
    waiting.start_ready()
    assert len(waiting.running) == 2 and waiting.training() == []
    lock = RunDirectory.of(all_cells[1].config, tmp_path).lock
    with locked(lock, wait=False):
        (shown,) = waiting.training()
    assert shown.label == all_cells[1].config.run_label


def test_a_failed_cell_is_told_when_it_fails(tmp_path, caplog):
    (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])

    def submit(command, log):
        log.write_text("hifi: no memory\n")
        ended: Future[int] = Future()
        ended.set_result(1)
        return ended

    queue.run(GridState([cell], tmp_path), submit, tmp_path / "logs", WHERE)
    assert f"{NAME}: failed: hifi: no memory" in caplog.messages


def test_trackers_are_passed_to_each_command_and_must_be_installed(hifi):
    words = "grid demo --tasks demo-entailment --methods full-ft,bitfit --seeds 1 --print"
    lines = hifi(words, "--report-to", "tensorboard").out.splitlines()
    assert len(lines) == 2 and all("--report-to tensorboard" in line for line in lines)
    answer = hifi(words, "--report-to", "wandb")
    assert answer.code == 3 and "pip install wandb" in answer.err
    assert "--report-to" not in hifi(words).out
