"""`hifi` in processes of their own, which can be stopped and killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
import yaml

ROOT = Path(__file__).parent.parent


def environment(**changes):
    """The environment of a `hifi` process: this source tree, offline, one thread."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **changes}


CHECKPOINT_AT_EVERY_STEP = """
from hifi_cli.cli.app import main
from hifi_cli.training.loop import Checkpoint
Checkpoint.is_due = lambda _: True
main()
"""


def start(*words, cwd, **options):
    """A `hifi` process; its group is its own, so that a signal can reach all of it. Training saves after every step."""
    entry = ["-c", CHECKPOINT_AT_EVERY_STEP] if words[0] == "train" else ["-m", "hifi_cli"]
    command = [sys.executable, *entry, *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(), start_new_session=True, text=True, preexec_fn=_hear_interrupts,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def _hear_interrupts():
    """What a shell starts in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def train_command(encoders, data, *more, method="hifi-layerwise"):
    """The command of a run on a tiny encoder."""
    return ["train", "--task", "rte", "--method", method, "--backbone", encoders["bert"], "--data-dir", data, *more]


def finish(process, timeout=120):
    """Wait for a process: its exit code and all it printed."""
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def run_hifi(*words, cwd, **options):
    """Run a command to its end: its exit code and all it printed."""
    return finish(start(*words, cwd=cwd, **options))


# A fork has everything imported. On a machine with a GPU, autograd has threads, which a fork would lack.
COPY_METHOD = "forkserver" if torch.cuda.is_available() else "fork"


class ProcessCopy:
    """A copy of this process that calls a function: it starts at once, can be killed and has its own memory and signals.

    Args:
        function: a function of a module; `sys.exit` in it gives the exit code.
        cwd: the working directory.
        variables: environment variables beside those of this process.
    """

    def __init__(self, function, *arguments, cwd, **variables):
        self._folder = tempfile.TemporaryDirectory()
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
        context = multiprocessing.get_context(COPY_METHOD)
        self._process = context.Process(target=_call, args=(function, arguments, self._folder.name, str(cwd), variables))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
            self._process.start()

    def finish(self, timeout=120):
        """Wait for its end: exit code, negative for a signal, and what it printed."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        printed = [Path(self._folder.name, stream).read_text() for stream in ("out", "err")]
        self._folder.cleanup()
        return subprocess.CompletedProcess("copy", self._process.exitcode, *printed)


def _call(function, arguments, folder, cwd, variables):
    os.environ.update(variables)
    os.chdir(cwd)
    warnings.simplefilter("ignore")  # those of libraries, as they are for a user
    with Path(folder, "out").open("w") as sys.stdout, Path(folder, "err").open("w") as sys.stderr:
        try:
            function(*arguments)
        except Exception:
            traceback.print_exc()
            sys.exit(1)


def run_copy(function, *arguments, cwd, **variables):
    """Call a function in a copy of this process and wait for its end."""
    return ProcessCopy(function, *arguments, cwd=cwd, **variables).finish()


def call_hifi(words):
    """Run a command in this process, which ends with it."""
    from hifi_cli.cli.app import main

    sys.argv = ["hifi", *map(str, words)]
    main()


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
