"""Signals that stop a command: a checkpoint, exit code 128 + the signal, and nothing that goes on alone."""

import signal
import subprocess
import sys

import pytest
from finished_runs import fingerprint, run_paths
from hifi_processes import (
    DEMO_GRID,
    children_of,
    environment,
    finish,
    forked_runs_of,
    is_alive,
    printed_by_runs,
    run_hifi,
    start,
    training_runs,
    wait_for,
    write_grid_file,
)

from hifi_cli import stopping
from hifi_cli.errors import Terminated

STOPPING = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
DEMO = ["--protocol", "demo", "--task", "demo-entailment", "--method", "bitfit"]
LONG = ["epochs=400", "limit=64", "eval_batch_size=64"]


@pytest.fixture
def handlers():
    """The handlers of all signals are as before after the test, which hears also what nohup ignores."""
    numbers = [signal.SIGINT, *STOPPING]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_signal_has_its_exit_code(handlers):
    stopping.listen()
    codes = []
    for number in STOPPING:
        with pytest.raises(Terminated, match=f"stopped by {number.name}") as stopped:
            signal.raise_signal(number)
        codes.append(stopped.value.exit_code)
    assert codes == [128 + number for number in STOPPING] and codes[:2] == [143, 129]


def test_what_was_ignored_at_the_start_stays_ignored(handlers):
    """As nohup starts a command, and a shell one in the background."""
    for number in handlers:
        signal.signal(number, signal.SIG_IGN)
    stopping.listen()
    with stopping.deferred_signals() as received:
        for number in handlers:
            signal.raise_signal(number)
    assert received == []


def test_a_second_urgent_signal_ends_at_once_and_others_wait(handlers):
    """A closed terminal sends SIGHUP more than once, and a scheduler SIGTERM after its warning."""
    stopping.listen()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), stopping.deferred_signals() as received:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert len(received) == 5
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGHUP)  # the command is ending already
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_second_signal_while_the_interpreter_ends_prints_no_traceback(number):
    """Two quick presses of Ctrl-C do this."""
    program = (
        "import atexit, signal; from hifi_cli.cli import app\n"
        f"number = {int(number)}\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "app.app = lambda **_: signal.raise_signal(number)\n"
        "atexit.register(lambda: signal.raise_signal(number))\n"
        "app.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode == 128 + number
    assert ended.stderr.startswith("hifi: ") and ended.stderr.count("\n") == 1, ended.stderr


def test_signals_that_the_users_own_program_handles_stay_its_own(handlers):
    """As submitit handles SIGUSR2."""
    told = []
    signal.signal(signal.SIGUSR2, lambda *_: told.append("user"))
    with stopping.deferred_signals() as received:
        signal.raise_signal(signal.SIGUSR2)
    assert (told, received) == (["user"], [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_a_stopped_training_keeps_its_checkpoint_and_goes_on(tmp_path, number):
    words = ["train", *DEMO, "epochs=40", "limit=64"]
    process = start(*words, cwd=tmp_path)
    wait_for(lambda: training_runs(tmp_path) == 1)
    process.send_signal(number)
    code, said = finish(process)
    assert code == 128 + number, said
    assert f"hifi: stopped by {number.name}" in said
    assert len(list(tmp_path.rglob("last.pt"))) == 1
    code, said = run_hifi(*words, cwd=tmp_path)
    assert code == 0 and "resuming at epoch" in said, said
    (tmp_path / "undisturbed").mkdir()
    assert run_hifi(*words, cwd=tmp_path / "undisturbed")[0] == 0
    (run,), (undisturbed,) = run_paths(tmp_path), run_paths(tmp_path / "undisturbed")
    assert fingerprint(run) == fingerprint(undisturbed)


@pytest.mark.exhaustive
def test_nohup_lets_a_training_end(tmp_path):
    command = [sys.executable, "-m", "hifi_cli", "train", *DEMO, "epochs=40", "limit=64"]
    process = subprocess.Popen(
        ["nohup", *command], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )  # fmt: skip
    wait_for(lambda: training_runs(tmp_path) == 1)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(run_paths(tmp_path)) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "number"),
    [
        *[([], number) for number in (*STOPPING, signal.SIGINT, signal.SIGKILL)],
        (["--fork"], signal.SIGUSR1),
        (["--fork"], signal.SIGKILL),
    ],
)
def test_the_runs_of_a_grid_end_with_it_and_the_same_command_goes_on(
    tmp_path, encoders, options, number
):
    words = (*options, "epochs=60", "limit=64")
    name = write_grid_file(tmp_path, encoders, **DEMO_GRID, methods=["bitfit", "full-ft"])
    command = ("grid", name, "--jobs", "2", *words)
    process = start(*command, cwd=tmp_path)
    wait_for(lambda: training_runs(tmp_path) == 2)
    below = children_of(process.pid)
    assert len(below) == 2
    if options:
        runs = forked_runs_of(process.pid)
        assert len(runs) == 2
        below += runs
    process.send_signal(number)
    code, said = finish(process)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert code == expected, said
    # The same command at once, while the former runs may still write their checkpoints
    code, said = run_hifi(*command, cwd=tmp_path)
    assert (code, "2 of 2 done" in said) == (0, True), said
    assert "failed:" not in said and "--force" not in said
    assert not any(is_alive(child) for child in below)
    logs = printed_by_runs(tmp_path)
    passed_on = signal.SIGTERM if number in (signal.SIGINT, signal.SIGKILL) else number
    assert logs.count(f"hifi: stopped by {passed_on.name}") == 2
    assert logs.count("resuming at epoch") == 2


@pytest.mark.exhaustive
def test_two_grids_on_one_directory_share_the_work(tmp_path, encoders):
    name = write_grid_file(
        tmp_path, encoders, **DEMO_GRID, methods=["bitfit", "linear-probing"], seeds=[1, 2]
    )
    command = ("grid", name, "epochs=2", "limit=64")
    first, second = (start(*command, cwd=tmp_path) for _ in range(2))
    for process in (first, second):
        code, said = finish(process)
        assert (code, "4 of 4 done" in said, "failed:" in said) == (0, True, False), said
    assert len(run_paths(tmp_path)) == 4
    logs = printed_by_runs(tmp_path)
    # Each run was trained once: a second command for it found it finished, or was refused
    assert logs.count("epoch 2 of 2, accuracy") == 4
