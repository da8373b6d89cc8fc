"""Runs of two processes, started by tests/training/test_processes.py; the main process writes what it saw as JSON."""

import json
import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path
from unittest import mock

import torch
from accelerate.state import AcceleratorState
from finished_runs import fingerprint

from hifi_cli.config.sources import resolve
from hifi_cli.errors import Terminated
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training import processes
from hifi_cli.training.loop import Trainer

# 21 rows in batches of 5: the processes have batches of different sizes, of which stock dropout draws different amounts
SETTINGS = ["epochs=2", "batch_size=5", "eval_batch_size=4", "limit=21", "kernels=torch"]


def config_of(backbone, *overrides, seed=1):
    """The configuration of a run."""
    settings = [*SETTINGS, *overrides]
    return resolve(
        task="rte",
        method="bitfit",
        backbone=str(backbone),
        protocol="hifi",
        seed=seed,
        overrides=settings,
    )


def main(rank: int, port: str, backbone: str, data: str, root: Path) -> None:
    """Make the runs in one of the two processes, with the environment that torchrun gives it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port, TOKENIZERS_PARALLELISM="false")
    os.chdir(root)
    warnings.simplefilter("ignore")  # those of libraries, as they are for a user
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)  # a copy of a process has its

    def train(name, *overrides, **options):
        """Train; returns the run's directory."""
        config = config_of(backbone, *overrides, **options)
        runs.run(config, Workspace(root / name, Path(data)))
        return RunDirectory.of(config, root / name).path

    def stopped(name, **options):
        """Train, and stop after the 8th step, in the middle of the second epoch: one of the processes gets a signal."""
        train_step = Trainer.train_step

        def signalled_step(trainer, batch):
            train_step(trainer, batch)
            if trainer.progress.step == 8 and processes.is_main():
                signal.raise_signal(signal.SIGTERM)

        with suppress(Terminated), mock.patch.object(Trainer, "train_step", signalled_step):
            train(name, **options)

    noise, predicted = [], []
    train_step, gather = Trainer.train_step, processes.gather

    def watched_step(trainer, batch):
        train_step(trainer, batch)
        noise.append(torch.initial_seed())

    def watched_gather(outputs):
        predicted.append(sum(map(len, outputs)))
        return gather(outputs)

    Trainer.train_step, processes.gather = watched_step, watched_gather
    uninterrupted = train("whole")
    Trainer.train_step, processes.gather = train_step, gather
    facts = {"noise": gather(noise), "predicted": gather(predicted)}
    stopped("resumed")
    resumed = train("resumed")
    stopped("one process resumes", seed=2)
    train("without dropout", "dropout=0.0")
    if processes.is_main():
        facts["fingerprints"] = [fingerprint(path) for path in (uninterrupted, resumed)]
        (root / "facts.json").write_text(json.dumps(facts, default=str))
    processes.destroy_process_group()
    if Path("/proc/self/task").is_dir():
        threads = [
            (path / "comm").read_text().strip() for path in Path("/proc/self/task").iterdir()
        ]
        (root / f"threads-{os.environ['RANK']}.json").write_text(json.dumps(threads))
