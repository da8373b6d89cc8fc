"""Wall seconds of whole runs as a user starts them, in turn: start of the process, data, one epoch, evaluation, saving.

python scripts/bench/whole_runs.py --tasks mrpc,cola     needs HIFI_DATA_DIR; writes results/bench/whole_runs.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS = ["--protocol", "laptop", "epochs=1", "batch_size=32", "max_length=128", "learning_rate=5e-5"]
OURS = {  # method, settings
    "Full-FT, fp32": ["full-ft", "precision=fp32"],
    "HiFi (layer-wise), bf16": ["hifi-layerwise", "precision=bf16"],
}
GROUPED = "train_sampling_strategy=group_by_length"
RIVALS = {"dynamic": [], "grouped": [GROUPED]}  # a function of rivals.py, and our settings of the same batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="mrpc,cola", help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=3072, help="training examples (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all, %(default)s")
    parser.add_argument("--rival", choices=sorted(RIVALS), help="train this rival in this process, and measure nothing")
    arguments = parser.parse_args()
    if arguments.rival:
        train_rival(arguments.rival, arguments.tasks, arguments.rows)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "TOKENIZERS_PARALLELISM": "false"}
    rows = ["--rows", str(arguments.rows)]
    measured: dict[str, Any] = {}
    for task in arguments.tasks.split(","):
        for rival, batches in RIVALS.items():
            theirs = seconds([__file__, "--rival", rival, "--tasks", task, *rows], environment)
            print(f"{task}: Trainer, {rival} {theirs:.1f} s", flush=True)
            programs = measured.setdefault(task, {}).setdefault(rival, {"Trainer": round(theirs, 1)})
            for name, (method, *settings) in OURS.items():
                with tempfile.TemporaryDirectory() as directory:
                    command = ["-m", "hifi_cli", "train", "--task", task, "--method", method, "--results-dir", directory]
                    own = seconds([*command, *SETTINGS, *settings, *batches, f"limit={arguments.rows}"], environment)
                print(f"{task}: {name}, {rival} {own:.1f} s, ratio {own / theirs:.3f}", flush=True)
                programs[name] = round(own, 1)
    content = {"rows": arguments.rows, "epochs": 1, "threads": arguments.threads, "seconds": measured}
    Path("results/bench/whole_runs.json").write_text(json.dumps(content, indent=1) + "\n")


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Wall time of a Python process.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def train_rival(rival: str, task: str, rows: int) -> None:
    """One epoch of transformers' Trainer, and its evaluation on the whole validation split, as `hifi train` evaluates."""
    import rivals
    from work import MAX_LENGTH, Work, resources

    with tempfile.TemporaryDirectory() as directory:
        cache = resources(Path(directory))
        work = Work(cache, task, "minilm", rows)
        work.validation = cache.examples(work.config("full-ft"), "validation", MAX_LENGTH)
        getattr(rivals, rival)(work)


if __name__ == "__main__":
    main()
