"""`hifi` in processes of its own, which can be killed, and what must be equal between two runs."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).parent.parent
MEASURED = {"time_s", "wall_s", "peak_memory_bytes", "checksum"}  # of the machine, not of the run


def environment(**changes):
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **changes}


def start(*words, cwd, **options):
    """A `hifi` process; its group is its own, so that a signal can reach all of it."""
    command = [sys.executable, "-m", "hifi_cli", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(), start_new_session=True, text=True, preexec_fn=_hear_interrupts,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def _hear_interrupts():
    """What a shell starts in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def words(encoders, data, *more, method="hifi-layerwise"):
    """The command of a run on a tiny encoder."""
    return ["train", "--task", "rte", "--method", method, "--backbone", encoders["bert"], "--data-dir", data, *more]


def place(root, method="hifi-layerwise"):
    """Where it leaves its files."""
    return Path(root) / "results/runs/hifi/tiny-bert/rte" / method / "seed1"


def finish(process, timeout=120):
    said, _ = process.communicate(timeout=timeout)
    return process.returncode, said


def hifi(*words, cwd, **options):
    return finish(start(*words, cwd=cwd, **options))


def kill_group(process, number=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(timeout=60)
    process.stdout.close()


def wait_for(condition, timeout=60.0):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def whole(path):
    """A JSON file that is there is whole."""
    return json.loads(path.read_text()) if path.is_file() else None


def fingerprint(directory):
    """Everything of a run that must not depend on how often it was interrupted."""
    results = {key: value for key, value in whole(directory / "results.json").items() if key not in MEASURED}
    files = {name: (directory / name).read_bytes() for name in ("delta.safetensors", "metrics.jsonl", "predictions.jsonl")}
    return results, files


def flip(path, at=0.5):
    """One bit of a file, somewhere in its middle."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 4
    path.write_bytes(bytes(content))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def kill_until_done(words, directory, *, cwd, kills, seed, longest):
    """Start a command again and again, killing it with SIGKILL at random moments; returns the number of kills.

    Half of the moments are counted from the start of the process, half from the first sign of training.
    """
    rng, killed = random.Random(seed), 0
    while killed < kills:
        process = start(*words, cwd=cwd)
        if killed % 2:
            wait_for(lambda process=process: (directory / "metrics.jsonl").is_file() or process.poll() is not None)
        time.sleep(rng.uniform(0, longest))
        if process.poll() is not None:
            process.stdout.close()
            break
        kill_group(process)
        killed += 1
        for path in directory.rglob("*.json"):
            assert whole(path) is not None
    return killed


def arrays(path):
    from safetensors.numpy import load_file

    return {name: np.array(value) for name, value in load_file(path).items()}


def grid_file(root, encoders, **content):
    base = {"protocol": "hifi", "backbone": str(encoders["bert"]), "tasks": ["rte", "cola"]}
    path = root / "mine.yaml"
    path.write_text(yaml.safe_dump({**base, **content}))
    return path.name


def runs_of(root):
    return sorted(path.parent for path in (root / "results/runs").rglob("results.json"))
