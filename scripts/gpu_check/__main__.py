"""Checks and times `hifi` on a GPU; writes each row to results/bench/gpu-NAME.json as it is measured, and prints the tables.

python scripts/gpu_check            the GPU; a random BERT-large, no network, no weights, no data
python scripts/gpu_check --small    a tiny BERT and few steps, also on a CPU: shows that the check itself works
"""

from hifi_cli import environment

# How a GPU's memory grows is read when torch starts.
environment.apply()

import argparse
import datetime
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import correctness
import rates
import steps
import transformers
from report import tables
from setting import LARGE, SMALL, Job

from hifi_cli.errors import HifiError
from hifi_cli.grids.machine import visible_gpus
from hifi_cli.runs.provenance import describe_provenance
from hifi_cli.training.device import device_name, select_device

# A recording that fails spoils its process, so that graphs come after what does without them.
PARTS = "rates,kernels,steps,profile,deterministic,correctness,graphs,graph-steps,levers,more-steps"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)"
    )
    parser.add_argument("--small", action="store_true", help="a tiny encoder and few steps")
    parser.add_argument(
        "--parts",
        default=PARTS,
        help="default: %(default)s; a part not named stays as it was",
    )
    parser.add_argument(
        "--seconds", type=float, default=540, help="begin no row after these (default: %(default)s)"
    )
    parser.add_argument(
        "--slice",
        default="0/1",
        help="I/N: every Nth row, from row I; its file has the slice in its name",
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    if arguments.device != "cpu" and (
        gpus := visible_gpus()
    ):  # one card: the Trainer would take all that it sees
        index = int(arguments.device.partition(":")[2] or 0)
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[index] if index < len(gpus) else ""
    try:
        device = select_device(arguments.device.partition(":")[0])
    except HifiError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return error.exit_code
    if device.type == "cpu" and not arguments.small:
        print("gpu_check: there is no GPU; --small runs the check on a CPU", file=sys.stderr)
        return 3
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.logging.set_verbosity_error()
    logging.getLogger("hifi").setLevel(logging.ERROR)
    setting = SMALL if arguments.small else LARGE
    name = (
        device_name(device).replace(" ", "-").replace("/", "-") if device.type == "cuda" else "cpu"
    )
    first, every = map(int, arguments.slice.split("/"))
    part_of = f"-{first}" if every > 1 else ""
    path = arguments.out / f"gpu-{name}{'-small' if arguments.small else ''}{part_of}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    jobs: dict[str, Callable[[], list[Job]]] = {
        "rates": lambda: rates.jobs(setting, device),
        "kernels": lambda: correctness.kernel_jobs(setting, device),
        "steps": lambda: steps.jobs(setting, device, ["bf16"], results),
        "profile": lambda: steps.profile_jobs(setting, device, arguments.out),
        "deterministic": lambda: correctness.deterministic_jobs(device),
        "correctness": lambda: correctness.method_jobs(setting, device),
        "graphs": lambda: correctness.graph_jobs(device),
        "graph-steps": lambda: steps.graph_jobs(setting, device, results),
        "levers": lambda: steps.lever_jobs(setting, device),
        "more-steps": lambda: steps.jobs(setting, device, ["tf32", "fp32"], results),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    described = describe_provenance(device)
    del described["command"]
    results["measured"] = {"date": datetime.date.today().isoformat(), **described}
    chosen = [part for part in jobs if part in arguments.parts.split(",")]
    rows = [(part, job) for part in chosen for job in jobs[part]()[first::every]]
    results |= {part: [] for part, _ in rows}
    for part, (about, measure) in rows:
        if time.monotonic() > end:
            print(f"gpu_check: --seconds are over before {part}: {about}", file=sys.stderr)
            break
        try:
            start = time.monotonic()
            row = about | measure()
            row["s"] = round(time.monotonic() - start, 1)
        except Exception as error:  # the other rows are measured all the same
            traceback.print_exc()
            row = about | {"ok": False, "error": f"{type(error).__name__}: {error}"[:200]}
        print(row, file=sys.stderr, flush=True)
        results[part].append(row)
        path.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results), f"\nwritten to {path}", sep="\n")
    failed = [str(row) for part, _ in rows for row in results[part] if not row.get("ok", True)]
    for line in dict.fromkeys(failed):
        print(f"gpu_check: failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
