"""Odd surroundings of a command: streams, launchers, notebooks, names, read-only disks."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from filelock import FileLock
from hifi_processes import environment

from hifi_cli.training.loop import Trainer

pytestmark = pytest.mark.slow
TRAIN = ["train", "--protocol", "demo", "--method", "linear-probing", "epochs=1", "limit=64"]
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def in_shell(line, cwd, **changes):
    """Run a line of a shell in which `hifi` is this project's: exit code, stdout and stderr as bytes."""
    for name in LAUNCHER:
        changes.setdefault(name, None)
    variables = environment(HIFI=f"{sys.executable} -P -m hifi_cli", **changes)
    variables = {name: value for name, value in variables.items() if value is not None}
    script = f'hifi() {{ $HIFI "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=variables, capture_output=True, check=False
    )
    return done.returncode, done.stdout, done.stderr.decode()


def train_line(*more):
    """A short run as a line of a shell."""
    return " ".join(["hifi", *TRAIN, *more])


def finished_runs(folder):
    """The records below a directory."""
    return list(folder.rglob("results.json"))


# --- streams


@pytest.mark.parametrize(
    "streams", ["2>/dev/full", "2>&-", ">&-", "<&- >&- 2>&-", "2> >(exec true)"]
)
def test_a_training_needs_no_stream(tmp_path, streams):
    code, out, _ = in_shell(f"{train_line()} {streams}", tmp_path)
    assert (code, out) == (0, b"")
    assert len(finished_runs(tmp_path)) == 1


def test_a_terminal_that_vanishes_ends_no_training(tmp_path):
    """As one whose window is closed, where SIGHUP is ignored; a progress bar is on it."""
    terminal, its_other_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hifi_cli", *TRAIN[:-2], "epochs=12", "limit=64"],
        cwd=tmp_path,
        env=environment(TERM="xterm"),
        stdin=its_other_end,
        stdout=its_other_end,
        stderr=its_other_end,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    os.close(its_other_end)
    said = b""
    while b"epoch 2 of 12" not in said:
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert process.wait(timeout=120) == 0
    assert len(finished_runs(tmp_path)) == 1


def test_messages_that_cannot_be_written_do_not_hide_the_exit_code(tmp_path):
    assert in_shell("hifi train --task rtee 2>/dev/full", tmp_path)[0] == 2
    assert in_shell("hifi ls tables >/dev/full", tmp_path)[0] == 1  # data are no message


def test_a_closed_stdout_is_no_error_of_reading_commands(tmp_path):
    assert in_shell(train_line(), tmp_path)[0] == 0
    for line in (
        "hifi table --include limited >&-",
        "hifi ls runs >&-",
        f"{train_line('--dry-run')} >&-",
    ):
        code, _, err = in_shell(line, tmp_path)
        assert (code, err) == (0, ""), line


def test_a_terminal_without_unicode_is_shown_replaced_characters(tmp_path):
    line = f"{train_line()} && hifi table --include limited"
    code, out, err = in_shell(line, tmp_path, PYTHONIOENCODING="ascii")
    assert code == 0, err
    assert out.isascii() and b"Linear probing" in out


def test_a_notebooks_backend_is_not_used(tmp_path):
    line = f"{train_line()} && hifi report && hifi figure ranking --protocol demo --tasks demo-entailment"
    code, _, err = in_shell(
        line, tmp_path, MPLBACKEND="module://matplotlib_inline.backend_inline_of_nobody"
    )
    assert code == 0, err
    assert (tmp_path / "results/report.html").is_file()
    assert list((tmp_path / "results/figures").glob("*.png"))


# --- where a command starts


def test_a_working_directory_that_is_gone_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    line = f"cd gone && rmdir ../gone && {train_line('--results-dir', str(tmp_path / 'results'))}"
    code, _, err = in_shell(line, tmp_path)
    assert (code, err.splitlines()[-1]) == (
        2,
        "hifi: the working directory does not exist any more: change to another one, and repeat",
    )


def test_missing_docstrings_are_named(tmp_path):
    code, _, err = in_shell(train_line(), tmp_path, PYTHONOPTIMIZE="2")
    assert code == 2 and err.startswith("hifi: PYTHONOPTIMIZE=2") and err.count("\n") == 1
    assert in_shell(train_line(), tmp_path, PYTHONOPTIMIZE="1")[0] == 0


# --- what a launcher left in the environment


@pytest.mark.parametrize(
    ("left", "missing"),
    [
        ({"LOCAL_RANK": "0"}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "0"}, "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"LOCAL_RANK": "-1"}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
    ],
)
def test_leftovers_that_mean_one_process_are_ignored_with_a_line(tmp_path, left, missing):
    code, _, err = in_shell(train_line(), tmp_path, **left)
    assert code == 0, err
    said = " ".join(f"{name}={left[name]}" for name in LAUNCHER if name in left)
    line = f"{said} in the environment is ignored: {missing} of a launcher are not set"
    assert err.splitlines().count(line) == 1
    assert len(finished_runs(tmp_path)) == 1


@pytest.mark.parametrize(
    "left",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "2", "RANK": "1"},
        {"LOCAL_RANK": "1"},
        {"LOCAL_WORLD_SIZE": "4"},
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
        {"RANK": "first"},
    ],
)
def test_leftovers_that_mean_several_processes_are_refused_by_name(tmp_path, left):
    code, out, err = in_shell(train_line(), tmp_path, **left)
    assert (code, out, err.count("\n")) == (2, b"", 1), err
    assert all(f"{name}={value}" in err for name, value in left.items())
    assert "unset" in err
    assert not finished_runs(tmp_path)


def test_every_rank_says_errors_where_no_launcher_is(tmp_path):
    code, _, err = in_shell("hifi train --task rtee --protocol demo", tmp_path, RANK="1")
    assert code == 2 and "unknown task 'rtee'" in err
    assert in_shell("hifi ls tables", tmp_path, RANK="1", WORLD_SIZE="2")[0] == 0


def test_one_process_of_a_launcher_trains_as_usual(tmp_path):
    whole = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    code, _, err = in_shell(
        train_line(), tmp_path, **whole, MASTER_ADDR="localhost", MASTER_PORT="1"
    )
    assert code == 0 and "ignored" not in err, err


def test_a_rendezvous_where_nobody_answers_is_named(monkeypatch):
    from hifi_cli import launcher

    whole = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**whole, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher, "_PATIENCE_SECONDS", 0.1)
    with (
        pytest.raises(launcher.LauncherError, match=r"RANK=1 .* no process answers at localhost:1"),
        launcher.waiting_for_the_others(),
    ):
        pass


@pytest.mark.parametrize(
    "said",
    [
        "[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:41163: Connection reset by peer",
        "NCCL error, ncclRemoteError: A call failed possibly due to a remote process exiting",
    ],
)
def test_a_process_whose_run_has_lost_another_one_is_no_bug_to_report(tiny, monkeypatch, said):
    def fail(_):
        raise RuntimeError(said)

    monkeypatch.setattr(Trainer, "train", fail)
    answer = tiny("train --method bitfit")
    assert answer.code == 1 and "report it" not in answer.err
    assert "hifi: another process of the run has ended, whose own lines say why" in answer.err
    assert "the same command goes on from the checkpoint" in answer.err


# --- names that are not UTF-8


def test_a_results_directory_whose_name_is_not_utf8_can_be_read_again(tmp_path):
    assert in_shell(train_line("--results-dir", r"$'u\xffb'"), tmp_path)[0] == 0
    (record,) = finished_runs(tmp_path)
    command = json.loads(record.read_text(encoding="utf-8"))["provenance"]["command"]
    assert "u\ufffdb" in command
    for line in (
        r"hifi table --include limited --results-dir $'u\xffb'",
        r"hifi ls runs --results-dir $'u\xffb'",
        r"hifi results check $'u\xffb'",
        r"hifi results pack $'u\xffb' --out packed",
        r"hifi results export $'u\xffb'",
        r"hifi results merge $'u\xffb' --results-dir merged",
        r"hifi score --protocol demo --results-dir $'u\xffb'",
        r"hifi score --protocol demo --results-dir $'u\xffb'",
        train_line("--results-dir", r"$'u\xffb'"),
    ):
        code, _, err = in_shell(line, tmp_path)
        assert code == 0, (line, err)
        assert "damaged" not in err
    # What is printed is the name itself, for the next command of a shell
    printed = in_shell(r"hifi results pack $'u\xffb' --out $'u\xffp'", tmp_path)[1]
    assert printed == b"u\xffp\n"


def test_a_run_in_a_folder_whose_name_is_not_utf8_can_be_opened_again(tmp_path):
    assert in_shell(train_line("--results-dir", r"$'u\xffb'"), tmp_path)[0] == 0
    (record,) = finished_runs(tmp_path)
    run = record.parent.relative_to(tmp_path)
    inside = rf"$'u\xffb/{run.relative_to(run.parts[0])}'"
    again = ["variant=again", f"start_from={run.relative_to(run.parts[0])}"]
    for line in (
        f"hifi eval {inside}",
        f"hifi export {inside} --to exported",
        train_line("--results-dir", r"$'u\xffb'", *again),
        r"hifi results pack $'u\xffb' --out $'u\xffb/packed'",
        r"hifi table --include limited --results-dir $'u\xffb/packed'",
        r"hifi results check $'u\xffb/packed'",
    ):
        code, _, err = in_shell(line, tmp_path)
        assert code == 0, (line, err)
    code, _, err = in_shell(rf"hifi export {inside} --to $'\xff'", tmp_path)
    assert code == 2 and "is not UTF-8" in err and err.count("\n") == 1


def test_a_data_directory_whose_name_is_not_utf8_stands_in_the_record(tmp_path):
    train = train_line("--data-dir", r"$'d\xff'")
    command = rf"mkdir $'d\xff' && {train} && hifi table --include limited"
    code, _, err = in_shell(command, tmp_path)
    assert code == 0, err


@pytest.mark.parametrize("option", ["--task", "--method", "--backbone", "--protocol"])
def test_a_name_that_a_record_would_need_must_be_utf8(tmp_path, option):
    code, _, err = in_shell(train_line(option, r"$'\xff.tsv'"), tmp_path)
    assert code == 2 and "is not UTF-8" in err and err.count("\n") == 1


# --- read-only disks


def test_a_finished_run_on_a_read_only_disk_is_skipped(finish_run, tiny, monkeypatch):
    finish_run("bitfit")

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(FileLock, "acquire", refuse)
    answer = tiny("train --method bitfit")
    assert answer.code == 0, answer.err
    assert "finished before" in answer.err
    unfinished = tiny("train --method full-ft")
    remedy = "Read-only file system: name another place, such as another --results-dir\n"
    assert unfinished.code == 1 and unfinished.err.endswith(remedy)


def test_too_many_open_files_are_told_with_their_own_remedy(tiny, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(FileLock, "acquire", refuse)
    answer = tiny("train --method full-ft")
    assert answer.code == 1
    assert answer.err.endswith(
        "hifi: Too many open files: allow more with ulimit -n, or take fewer --jobs\n"
    )


def test_a_finished_grid_writes_nothing(hifi, tmp_path):
    from pathlib import Path

    from synthetic_grids import cells, write_cell

    words = ("--tasks", "demo-entailment", "--methods", "full-ft", "--seeds", "1")
    (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    write_cell(cell, Path("results"))
    before = sorted(tmp_path.rglob("*"))
    answer = hifi("grid demo", *words)
    assert (answer.code, "1 of 1 done" in answer.err) == (0, True), answer.err
    assert sorted(tmp_path.rglob("*")) == before
