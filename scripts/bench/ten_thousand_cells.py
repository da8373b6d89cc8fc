"""CPU seconds of the commands that read a grid of about ten thousand cells, half of them finished, from synthetic results.

python scripts/bench/ten_thousand_cells.py [DIRECTORY]   the directory keeps the synthetic results for the next time
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import yaml
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import GridProgress, JobOutcome, Scheduler

from hifi_cli.files import digest
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_display, grid_spec
from hifi_cli.grids.cells import GridCell
from hifi_cli.results.directory import config_text

TASKS = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
METHODS = ["full-ft", "bitfit", "lora", "adapter", "hifi-layerwise", "hifi-midtop", "linear-probing", "mixout", "diff-pruning"]
RATES = [1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 5e-4]
COMMON = {"protocol": "hifi", "backbone": "bert-large", "tasks": TASKS, "methods": METHODS}
GRIDS = {
    "seeds": {**COMMON, "seeds": list(range(1, 141))},
    "search": {**COMMON, "seeds": [1, 2, 3, 4, 5], "vary": {"learning_rate": RATES, "batch_size": [8, 16, 32, 64]}},
}  # 10,080 cells each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="default: a temporary one")
    parser.add_argument("--grids", default="seeds,search", help="default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        for name in arguments.grids.split(","):
            measure(name, directory / name)


def measure(name: str, directory: Path) -> None:
    """Print the CPU seconds of each command on one of `GRIDS`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "grid.yaml").write_text(yaml.safe_dump(GRIDS[name]))
    spec = grid_spec.resolve(grid_spec.load(str(directory / "grid.yaml")), "grid")
    cells = grid_cells.cells(spec)
    finished = cells[::2]
    if not (directory / "results").is_dir():
        for cell in finished:
            write_run(cell, directory / "results")
    print(f"{name}: {len(cells)} cells, {len(finished)} finished")
    where = ["--results-dir", str(directory / "results")]
    for words in (["grid", str(directory / "grid.yaml"), "--print"], ["ls", "runs"], ["table"]):
        if name == "search" and words == ["table"]:
            continue  # tables show no variants
        print(f"  hifi {' '.join(words[:2] if words[0] == 'ls' else words[:1])}: {command(*words, *where):.2f} s")
    print(f"  a status line: {1000 * status_line(cells, directory / 'results'):.1f} ms")


def write_run(cell: GridCell, results_dir: Path) -> None:
    """Write what `hifi train` leaves of a finished run, with a small delta."""
    config, directory = cell.config, cell.run_directory(results_dir)
    directory.path.mkdir(parents=True)
    directory.config_file.write_text(config_text(config))
    directory.metrics.write_text('{"epoch": 1, "accuracy": 0.5}\n' * 10)
    directory.delta.write_bytes(bytes(4096))
    score, rows = 0.5 + (cell.seed % 50) / 100, {"train": 8551, "selection": 1043, "reported": 1043}
    result: dict[str, Any] = {
        "status": "done", "reason": "", "task": config.task, "method": config.method,
        "backbone": config.backbone.name, "protocol": config.protocol, "seed": config.seed, "split": "validation",
        "selection": "validation", "report": config.report, "primary_metric": "accuracy", "n_examples": rows, "shots": None,
        "fewshot": None, "limit": None, "variant": config.variant, "config_hash": config.hash,
        "config": config.model_dump(mode="json"), "setting_hash": config.setting_hash, "heads_sha256": None,
        "data": {split: digest(split, 64) for split in ("train", "validation", "test")},
        "params": {"trainable": 40, "trainable_backbone": 20, "stored": 40, "stored_bytes": 160, "total": 1000},
        "scores": dict.fromkeys(("last", "best", "max"), score), "epochs": {"total": 10, "last": 10, "best": 7, "max": 7},
        "metrics": {"accuracy": score}, "extra_validation": {}, "collapsed": False, "time_s": 60.0, "wall_s": 70.0,
        "peak_memory_bytes": 1 << 30, "gradient_accumulation_steps": 1,
        "delta_sha256": "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7",  # of 4,096 zero bytes
        "delta_bytes": 4096, "heads": None, "data_origin": {}, "backbone_weights": "w", "precision": "fp32",
        "epoch_metrics": [], "truncated": None, "method_code": None, "started_from": [],
        "provenance": {"command": ["hifi"], "hifi": "0", "git": None, "python": "3", "libraries": {}, "device": "CPU",
                       "threads": 1, "platform": "Linux", "processes": 1},
    }  # fmt: skip
    directory.results.write_text(json.dumps(result, indent=1) + "\n")


def command(*words: str) -> float:
    """User and system CPU seconds of a `hifi` command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "hifi_cli", *words], check=True, stdout=subprocess.DEVNULL, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class NothingEnds:
    """An engine with 64 processes, none of which ends while it is measured."""

    processes = 64

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":  # noqa: ARG002
        return Future()

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Measured(Exception):
    """Ends the grid after some status lines."""


def status_line(cells: list[GridCell], results_dir: Path, lines: int = 8) -> float:
    """CPU seconds of one round of a running grid: its scan for finished cells and its status line."""
    times: list[float] = []

    def show(progress: GridProgress) -> None:
        grid_display.status_line(progress)
        times.append(time.process_time())
        if len(times) > lines:
            raise Measured

    scheduler = Scheduler(cells, JobOptions(results_dir), results_dir.parent / "logs")
    try:
        scheduler.run(NothingEnds(), show)
    except Measured:
        return (times[-1] - times[0]) / lines
    raise AssertionError("the grid ended")


if __name__ == "__main__":
    main()
