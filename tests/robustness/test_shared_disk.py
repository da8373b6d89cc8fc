"""Results that others share: read-only directories, permissions, locks, and --out where nothing can be written."""

import errno
import fcntl
import os

import pytest

from hifi_cli.files import atomic_path
from hifi_cli.locks import is_locked, locked


@pytest.fixture
def run(finish_run, tmp_path):
    """A finished run of full-ft."""
    return finish_run().relative_to(tmp_path)


def test_files_are_readable_as_the_umask_says(run, hifi, data, tmp_path):
    before = os.umask(0o027)
    try:
        answer = hifi("export", run, "--to", "out", "--data-dir", data)
        hifi(
            "train --protocol demo --task demo-entailment --method full-ft limit=8 epochs=1 "
            "--results-dir demo"
        )
    finally:
        os.umask(before)
    assert answer.code == 0, answer.err
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*"), *(tmp_path / "demo").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_a_group_that_may_write_files_may_lock_them(tmp_path):
    """A lock stays after its run: it would shut the other members of the group out for ever."""
    before = os.umask(0o002)
    try:
        with locked(tmp_path / "runs/.seed1.lock", wait=False):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "runs/.seed1.lock").stat().st_mode & 0o777 == 0o664


def test_without_flock_the_lock_is_that_a_file_exists_and_a_message_names_it(
    tmp_path, monkeypatch, caplog
):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / ".lock"
    with locked(path, wait=False) as is_acquired:
        assert is_acquired and is_locked(path)
        with locked(path, wait=False) as is_acquired_again:
            assert not is_acquired_again
        assert (
            f"{path} is in the way: if the process that it names has ended, delete this file"
            in caplog.text
        )
    assert not path.exists() and not is_locked(path)


def test_a_directory_is_whole_or_absent(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "out") as folder:
        folder.mkdir()
        (folder / "part").write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with atomic_path(tmp_path / "out") as folder:
        folder.mkdir()
        (folder / "part").write_text("whole")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "out",
        "out/part",
    ]


def test_a_finished_run_keeps_no_checkpoint_that_a_kill_left(run, tiny, tmp_path):
    checkpoint = tmp_path / run / "checkpoints" / "last.pt"
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_text("of the moment before results.json was there")
    answer = tiny("train --method full-ft")
    assert "finished before" in answer.err
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    "words", ["table", "report", "compare full-ft bitfit", "figure hifi-4", "score --task rte"]
)
def test_an_out_where_nothing_can_be_written_is_refused_before_anything_is_done(
    hifi, tmp_path, words
):
    answer = hifi(*words.split(), "--out", ".")
    assert answer.code == 2 and "--out" in answer.err and answer.err.count("\n") == 1, answer.err
    assert not (tmp_path / "results").exists()
