"""Results that others share: read-only directories, permissions, locks, and --out where nothing can be written."""

import errno
import fcntl
import os
import subprocess

import pytest
import yaml
from tiny_inputs import QUICK

from hifi_cli.files import atomic_directory, atomic_path, is_locked, locked, write_text
from hifi_cli.results import model_card


@pytest.fixture
def run(finish_run, tmp_path):
    """A finished run of full-ft."""
    return finish_run().relative_to(tmp_path)


@pytest.fixture
def read_only(tmp_path):
    """Makes a directory read-only; root needs a mount for that."""
    frozen = []

    def freeze(path):
        if os.geteuid():
            for part in (path, *path.rglob("*")):
                part.chmod(part.stat().st_mode & ~0o222)
        elif subprocess.run(["mount", "--bind", path, path], capture_output=True).returncode:
            pytest.skip("root without the right to mount")
        else:
            subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
        frozen.append(path)

    yield freeze
    for path in frozen:
        if os.geteuid():
            for part in (path, *path.rglob("*")):
                part.chmod(part.stat().st_mode | 0o200)
        else:
            subprocess.run(["umount", "-l", path], check=True)


def test_read_only_results_are_listed_and_a_grid_prints_what_is_left(run, hifi, encoders, data, read_only, tmp_path):
    content = {"protocol": "hifi", "backbone": str(encoders["bert"]), "tasks": ["rte"], "methods": ["full-ft", "bitfit"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    read_only(tmp_path / "results")
    with pytest.raises(OSError, match=r"Read-only|Permission denied"):
        (tmp_path / "results" / "x").write_text("")
    answer = hifi("ls", "runs")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[1].split()[0] == "done"
    answer = hifi("grid", "mine.yaml", "--print", *QUICK)
    assert answer.code == 0, answer.err
    assert "--method bitfit" in answer.out


def test_a_run_under_way_is_seen_where_its_lock_can_only_be_read(read_only, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    with locked(folder / ".lock", wait=False) as is_acquired:
        assert is_acquired
        assert is_locked(folder / ".lock")
    assert not is_locked(folder / ".lock")
    read_only(folder)
    assert not is_locked(folder / ".lock")
    assert not is_locked(folder / "none")


def test_files_are_readable_as_the_umask_says(run, hifi, data, tmp_path):
    before = os.umask(0o027)
    try:
        answer = hifi("export", run, "--to", "out", "--data-dir", data)
        hifi(
            "train",
            "--protocol",
            "demo",
            "--task",
            "demo-entailment",
            "--method",
            "full-ft",
            "limit=8",
            "epochs=1",
            "--results-dir",
            "demo",
        )
    finally:
        os.umask(before)
    assert answer.code == 0, answer.err
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*"), *(tmp_path / "demo").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_two_writers_of_a_file_do_not_mix(tmp_path):
    path = tmp_path / "out"
    with atomic_path(path) as living:
        living.write_text("mine")
        write_text(path, "the other's")  # as another process would, at the same time
        assert path.read_text() == "the other's"
    assert path.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_without_flock_the_lock_is_that_a_file_exists_and_a_message_names_it(tmp_path, monkeypatch, caplog, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / ".lock"
    with locked(path, wait=False) as is_acquired:
        assert is_acquired and is_locked(path)
        with locked(path, wait=False) as is_acquired_again:
            assert not is_acquired_again
        assert f"{path} is in the way: if the process that it names has ended, delete this file" in caplog.text
    assert not path.exists() and not is_locked(path)


def test_a_directory_is_whole_or_absent(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic_directory(tmp_path / "out") as folder:
        (folder / "part").write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with atomic_directory(tmp_path / "out") as folder:
        (folder / "part").write_text("whole")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["out", "out/part"]


def test_a_finished_run_keeps_no_checkpoint_that_a_kill_left(run, tiny, tmp_path):
    checkpoint = tmp_path / run / "checkpoints" / "last.pt"
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_text("of the moment before results.json was there")
    answer = tiny("train", "--method", "full-ft")
    assert "finished before" in answer.err
    assert not checkpoint.exists()


def test_an_export_has_its_name_when_it_is_whole(run, hifi, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write, out_exists = model_card.write, []

    def write_card(*arguments, **options):
        out_exists.append(out.exists())
        write(*arguments, **options)

    monkeypatch.setattr(model_card, "write", write_card)
    answer = hifi("export", run, "--to", "out", "--data-dir", data)
    assert answer.code == 0, answer.err
    assert out_exists == [False]
    assert {"config.json", "model.safetensors", "README.md"} <= {path.name for path in out.iterdir()}
    assert not list(tmp_path.glob(".out.*"))


def test_an_out_where_nothing_can_be_written_is_told_by_its_option_before_anything_is_done(run, hifi, encoders, data, tmp_path):
    (tmp_path / "file").write_text("")
    commands = [
        ("table",),
        ("report",),
        ("compare", "full-ft", "bitfit"),
        ("predict", run, "file"),
        ("figure", "hifi-4"),
        ("score", "--task", "rte"),
    ]
    for command in commands:
        for out in ("file/below.png", "."):
            answer = hifi(*command, "--out", out)
            assert answer.code == 2, (command, answer.err)
            assert answer.err.startswith(f"hifi: --out {out}: "), answer.err
            assert "--results-dir" not in answer.err
    answer = hifi("export", run, "--to", "file/out", "--data-dir", data)
    assert (answer.code, answer.err.startswith("hifi: --to file/out: ")) == (2, True), answer.err
    answer = hifi("export", run, "--to", ".", "--data-dir", data)
    assert (answer.code, "--to . exists" in answer.err) == (2, True)


def test_a_lock_of_another_kind_than_flock_would_not_be_seen(tmp_path):
    """`is_locked` reads the lock that `locked` takes: both are the kernel's flock."""
    path = tmp_path / ".lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(path)
        with locked(path, wait=False) as is_acquired:
            assert not is_acquired
