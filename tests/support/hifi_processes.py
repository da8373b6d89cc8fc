"""`hifi` in processes of their own, which can be stopped and killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
# What a grid on the demo's encoder and data says of them.
DEMO_GRID = {"backbone": "demo", "protocol": "demo", "tasks": ["demo-entailment"]}


def environment(**changes):
    """The environment of a `hifi` process: this source tree, offline, one thread."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **changes,
    }


def start(*words, cwd, variables=None, **options):
    """A `hifi` process; its group is its own, so that a signal can reach all of it."""
    command = [sys.executable, "-m", "hifi_cli", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(**(variables or {})), start_new_session=True, text=True, preexec_fn=_hear_interrupts,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def _hear_interrupts():
    """What a shell starts in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process, timeout=120):
    """Wait for a process: its exit code and all it printed."""
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def run_hifi(*words, cwd, **options):
    """Run a command to its end: its exit code and all it printed."""
    return finish(start(*words, cwd=cwd, **options))


def children_of(pid):
    """The processes that a process has started and that have not ended."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(child) for child, state in rows if not state.startswith("Z")]


def forked_runs_of(grid):
    """The runs below the process of a grid: children of the processes that they were forked from."""
    return [run for process in children_of(grid) for run in children_of(process)]


def is_alive(pid):
    """Whether a process has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.is_file() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition, timeout=60.0):
    """Wait until a condition holds; fail after so many seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def write_grid_file(root, encoders, **content):
    """A grid on the tiny BERT; returns the file's name."""
    base = {"protocol": "hifi", "backbone": str(encoders["bert"]), "tasks": ["rte", "cola"]}
    path = root / "mine.yaml"
    path.write_text(yaml.safe_dump({**base, **content}))
    return path.name


def training_runs(root):
    """How many runs below a directory have begun to train."""
    return len(list(root.rglob("metrics.jsonl")))


def printed_by_runs(root):
    """What the runs of the grids in a directory's results have printed, one after the other."""
    logs = sorted((root / "results/grids").rglob("*.log"))
    return "".join(path.read_text() for path in logs)
