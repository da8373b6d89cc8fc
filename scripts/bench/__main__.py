"""Speed and memory of `hifi` beside what a user would run otherwise; writes results/bench/NAME.json and prints the tables.

python scripts/bench                     a MiniLM; real data where HIFI_DATA_DIR names them, generated texts otherwise
python scripts/bench --shape bert-base   an encoder of that shape with random weights
"""

import argparse
import datetime
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import epochs
import more
import torch
import transformers
from report import tables
from work import BATCH_SIZE, SHAPES, Work, encoder_of, resources, tasks

from hifi_cli.models.pretrained import locate
from hifi_cli.training import machine
from hifi_cli.training.machine import select_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape, in the place of MiniLM")
    parser.add_argument("--tasks", default=",".join(tasks()), help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=512, help="training examples of an epoch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all, %(default)s")
    parser.add_argument("--parts", default="epochs,more", help="default: %(default)s; a part not named stays as it was")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.logging.set_verbosity_error()
    logging.getLogger("hifi").setLevel(logging.WARNING)

    with tempfile.TemporaryDirectory() as directory:
        at = resources(Path(directory))
        works = [Work(at, task, "minilm", arguments.rows) for task in arguments.tasks.split(",")]
        if arguments.shape:
            tokenizer_of, _ = locate(works[0].config("full-ft").backbone)
            backbone = encoder_of(arguments.shape, tokenizer_of, f"{directory}/{arguments.shape}")
            works = [Work(at, work.task, backbone, arguments.rows) for work in works]
        path = arguments.out / f"{arguments.shape or 'minilm'}.json"
        results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        results |= {"encoder": f"{arguments.shape} (random weights)" if arguments.shape else "minilm", "batch_size": BATCH_SIZE}
        arguments.out.mkdir(parents=True, exist_ok=True)

        def keep() -> None:
            path.write_text(json.dumps(results, indent=1) + "\n")

        if "epochs" in arguments.parts:
            results["epochs"] = {work.task: epochs.measure(work, arguments.rounds, print) for work in works}
            results["epochs_measured"] = {"rows": arguments.rows, "rounds": arguments.rounds, **circumstances()}
            keep()
        if "more" in arguments.parts and not arguments.shape:
            results["more"] = more.measure(works, Path(directory), print)
            results["more_measured"] = circumstances()
            keep()
    print(tables(results), f"\nwritten to {path}", sep="\n")


def circumstances() -> dict[str, Any]:
    """When, on what and with which code something was measured."""
    described = machine.describe_provenance(select_device("auto")).model_dump(exclude={"command"})
    return {"date": datetime.date.today().isoformat(), "processor": processor(), **described}


def processor() -> str:
    """The processor's name, where the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
