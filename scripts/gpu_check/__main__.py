"""Checks and times `hifi` on a GPU; writes results/bench/gpu-NAME.json and prints the tables.

python scripts/gpu_check            the GPU; a random BERT-large, no network, no weights, no data
python scripts/gpu_check --small    a tiny BERT and few steps, also on a CPU: shows that the check itself works
"""

import argparse
import datetime
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import correctness
import steps
import transformers
from rates import machine_rates
from report import tables
from setting import LARGE, SMALL

from hifi_cli.errors import HifiError
from hifi_cli.grids.executor import visible_gpus
from hifi_cli.training import machine
from hifi_cli.training.machine import device_name, select_device

PARTS = ("rates", "correctness", "steps")


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
        default=",".join(PARTS),
        help="default: %(default)s; a part not named stays as it was",
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    arguments = parser.parse_args()
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
    path = arguments.out / f"gpu-{name}{'-small' if arguments.small else ''}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    measures = {
        "rates": lambda: machine_rates(setting, device),
        "correctness": lambda: correctness.check(setting, device),
        "steps": lambda: steps.measure(
            setting, device, results.get("rates") or machine_rates(setting, device)
        ),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    broken = []
    for part in PARTS:
        if part in arguments.parts.split(","):
            print(f"{part} ...", file=sys.stderr, flush=True)
            try:
                results[part] = measures[part]()
            except Exception:  # the other parts are measured all the same
                traceback.print_exc()
                broken.append(part)
                continue
            described = machine.describe_provenance(device)
            del described["command"]
            results["measured"] = {
                "date": datetime.date.today().isoformat(),
                "small": arguments.small,
                **described,
            }
            path.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results), f"\nwritten to {path}", sep="\n")
    failed = [row["method"] for row in results.get("correctness", []) if not row["ok"]]
    if failed:
        print(f"gpu_check: wrong results of {', '.join(failed)}", file=sys.stderr)
    if broken:
        print(f"gpu_check: not measured because of an error: {', '.join(broken)}", file=sys.stderr)
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
