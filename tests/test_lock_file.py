"""Locks where flock is missing: one holder at a time, and a dead holder's lock is found out."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hifi_processes import environment, wait_for

from hifi_cli import lock_file
from hifi_cli.files import is_locked, locked
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_status import RunState, status

WITHOUT_FLOCK = """
import fcntl, os, sys, time
from pathlib import Path
def flock(*_):
    raise OSError({number}, os.strerror({number}))
fcntl.flock = flock
from hifi_cli.files import locked
path = Path(sys.argv[1])
"""
HOLD = """
with locked(path, wait=False) as is_held:
    print(is_held, flush=True)
    time.sleep(120)
"""
TAKE_TURNS = """
for _ in range(6):
    with locked(path, wait=True):
        os.close(os.open(path.with_name("inside"), os.O_CREAT | os.O_EXCL))  # fails if another process is inside
        time.sleep(0.01)
        path.with_name("inside").unlink()
print("done")
"""


@pytest.fixture
def number(request, monkeypatch):
    """The number of an error that flock answers with; in this process it does."""
    number = getattr(errno, getattr(request, "param", "ENOLCK"))

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    return number


@pytest.fixture
def start(number):
    """Starts a process without flock that executes some code."""
    started = []

    def run(code, path):
        command = [sys.executable, "-c", WITHOUT_FLOCK.format(number=number) + code, path]
        started.append(subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def change_holder(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def set_age(path, seconds):
    os.utime(path, times=(time.time() - seconds,) * 2)


def test_a_run_of_a_killed_process_is_unfinished_and_its_lock_is_free(start, tmp_path):
    directory = RunDirectory(tmp_path)
    directory.config_file.write_text("")
    holder = start(HOLD, directory.lock)
    assert holder.stdout.readline() == "True\n"
    assert status(directory).state is RunState.RUNNING
    with locked(directory.lock, wait=False) as is_held:
        assert not is_held
    holder.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_locked(directory.lock))  # a zombie is dead too
    assert status(directory).state is RunState.UNFINISHED
    with locked(directory.lock, wait=False) as is_held:
        assert is_held
        assert status(directory).state is RunState.RUNNING
    assert status(directory).state is RunState.UNFINISHED
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml"}


@pytest.mark.slow
def test_processes_that_contend_for_a_dead_holders_lock_take_turns(start, tmp_path):
    path = tmp_path / ".lock"
    holder = start(HOLD, path)
    assert holder.stdout.readline() == "True\n"
    holder.kill()
    holder.wait()
    contenders = [start(TAKE_TURNS, path) for _ in range(4)]
    assert [process.communicate(timeout=100)[0] for process in contenders] == ["done\n"] * 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_second_faster", [True, False])
def test_only_one_of_two_processes_takes_a_dead_holders_lock_over(tmp_path, monkeypatch, is_second_faster):
    """The second one acts while the first has seen that the holder is dead: before it has its marker, or after."""
    path = tmp_path / ".lock"
    path.write_text("")
    first, second = lock_file.LockFile(path), lock_file.LockFile(path)
    create_marker, of_second = os.open, []

    def open_later(name, flags):
        monkeypatch.setattr(os, "open", create_marker)
        if is_second_faster:
            of_second.append(second.acquire())
            return create_marker(name, flags)
        marker = create_marker(name, flags)
        of_second.append(second.acquire())
        return marker

    monkeypatch.setattr(os, "open", open_later)
    of_first = first.acquire()
    assert (of_first, of_second) == (not is_second_faster, [is_second_faster])
    (second if is_second_faster else first).release()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"], indirect=True)
def test_a_process_that_has_the_id_of_a_dead_holder_does_not_hold_its_lock(number, tmp_path):
    path = tmp_path / ".lock"
    with locked(path, wait=False):
        assert is_locked(path)
        change_holder(path, started="1")
        assert not is_locked(path)


def test_a_lock_of_another_host_expires_without_refreshes(number, tmp_path):
    path = tmp_path / ".lock"
    with locked(path, wait=False):
        change_holder(path, host="another", pid=1)
        set_age(path, lock_file.EXPIRY_SECONDS - 30)
        assert is_locked(path)
        with locked(path, wait=False) as is_held:
            assert not is_held
        set_age(path, lock_file.EXPIRY_SECONDS + 1)
        assert not is_locked(path)
        with locked(path, wait=False) as is_held:
            assert is_held


def test_a_holder_refreshes_its_lock_and_notices_when_it_is_taken_over(number, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lock_file, "REFRESH_SECONDS", 0.01)
    path = tmp_path / ".lock"
    with locked(path, wait=False):
        set_age(path, 10_000)
        wait_for(lambda: time.time() - path.stat().st_mtime < 5000)
        change_holder(path, id="another")
        wait_for(lambda: "taken this lock over" in caplog.text)
    assert path.exists()  # it is not this process's any more


def test_another_error_of_flock_is_no_lock(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), locked(tmp_path / ".lock", wait=False):
        pass
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        is_locked(tmp_path / ".lock")
