"""Measure the wall seconds of whole runs as a user starts them, beside transformers' Trainer and beside a floor.

    HIFI_DATA_DIR=glue_data python scripts/bench.py --tasks mrpc,cola    writes results/bench/whole_runs.json

Each round starts every program once, in turn: start of the process, data, one epoch, evaluation on the whole validation
split, saving. The table has the median over the rounds. The last program is two runs of HiFi at once, each with all
threads. Run it on an idle machine.

The floor is the sum of the times that no program avoids: the products of the real tokens (no padding) at the rate that a large
product reaches here, the bytes that AdamW moves at the bandwidth that a large addition reaches, and a process that imports
torch and transformers and reads the weights.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH_SIZE, MAX_LENGTH, LEARNING_RATE = 32, 128, 5e-5
SETTINGS = [
    "epochs=1",
    f"batch_size={BATCH_SIZE}",
    f"max_length={MAX_LENGTH}",
    f"learning_rate={LEARNING_RATE}",
]
# Method and precision of each program.
OURS = {
    "Full-FT, fp32": ("full-ft", "fp32"),
    "Full-FT, bf16": ("full-ft", "bf16"),
    "HiFi (layer-wise), bf16": ("hifi-layerwise", "bf16"),
}
TRAINER = "Trainer"
TWICE, ONE_OF_THEM = "two runs of HiFi, bf16, at once", "HiFi (layer-wise), bf16"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default="mrpc,cola", help="default: %(default)s")
    parser.add_argument(
        "--rows", type=int, default=3072, help="training examples (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="default: all, %(default)s"
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench/whole_runs.json"))
    parser.add_argument(
        "--trainer",
        metavar="TASK",
        help="train TASK with the Trainer in this process, and measure nothing",
    )
    arguments = parser.parse_args()
    if arguments.trainer:
        train_with_trainer(arguments.trainer, arguments.rows)
        return
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(arguments.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    measured: dict[str, Any] = {}
    for task in arguments.tasks.split(","):
        seconds: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name in (TRAINER, *OURS, TWICE):
                with tempfile.TemporaryDirectory() as directory:
                    programs = [
                        command(name, task, arguments.rows, f"{directory}/{each}")
                        for each in range(2 if name == TWICE else 1)
                    ]
                    seconds.setdefault(name, []).append(wall_seconds(programs, environment))
                print(f"{task}: {name} {seconds[name][-1]:.1f} s", flush=True)
        measured[task] = {
            name: round(statistics.median(values), 1) for name, values in seconds.items()
        }
        measured[task] |= {
            f"floor of {name}": value
            for name, value in floors(task, arguments, environment).items()
        }
    content = {
        "processor": processor(),
        "threads": arguments.threads,
        "rows": arguments.rows,
        "rounds": arguments.rounds,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**content, "seconds": measured}, indent=1) + "\n")
    print(table(measured))


def command(name: str, task: str, rows: int, directory: str) -> list[str]:
    """The words of a program's Python process."""
    if name == TRAINER:
        return [__file__, "--trainer", task, "--rows", str(rows)]
    method, precision = OURS[ONE_OF_THEM if name == TWICE else name]
    words = [
        "train",
        "--task",
        task,
        "--method",
        method,
        "--protocol",
        "laptop",
        "--results-dir",
        directory,
        "--quiet",
    ]
    return ["-m", "hifi_cli", *words, *SETTINGS, f"precision={precision}", f"limit={rows}"]


def wall_seconds(programs: list[list[str]], environment: dict[str, str]) -> float:
    """Wall time until the last of the Python processes, started at once, has ended."""
    start = time.perf_counter()
    running = [
        subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL)
        for words in programs
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"exit codes {codes} of {programs}")
    return time.perf_counter() - start


def table(measured: dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    from hifi_cli.config.registry import label_of

    lines = [
        ["a run of", *(label_of("tasks", task) for task in measured)],
        ["---", *["---:"] * len(measured)],
    ]
    for name in OURS:
        lines.append(
            [name, *(f"{of_task[name] / of_task[TRAINER]:.2f}" for of_task in measured.values())]
        )
    for name in OURS:
        ratios = (
            f"{of_task[name] / of_task[f'floor of {name}']:.2f}" for of_task in measured.values()
        )
        lines.append([f"{name}, divided by its floor", *ratios])
    lines.append(
        [
            f"{TWICE}, divided by one",
            *(f"{of_task[TWICE] / of_task[ONE_OF_THEM]:.2f}" for of_task in measured.values()),
        ]
    )
    lines.append(
        [
            "seconds of the Trainer's run",
            *(f"{of_task[TRAINER]:.0f}" for of_task in measured.values()),
        ]
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def processor() -> str:
    """The processor's name, where the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def examples_of(task: str, rows: int) -> tuple[list[Any], list[Any], Any]:
    """The tokenized training and validation examples that every program gets, and the pretrained encoder."""
    from hifi_cli.config.sources import resolve
    from hifi_cli.runs.inputs import load_task
    from hifi_cli.runs.workspace import Workspace

    words = [*SETTINGS, f"limit={rows}", "precision=fp32", "kernels=torch"]
    config = resolve(
        task=task, method="full-ft", backbone="minilm", protocol="laptop", overrides=words
    )
    data = os.environ.get("HIFI_DATA_DIR")
    workspace = Workspace(Path("unused"), Path(data) if data else None)
    inputs = workspace.inputs(config, load_task(config))
    train = inputs.examples("train", MAX_LENGTH)
    validation = inputs.examples("validation", MAX_LENGTH)
    return train[:rows], validation, inputs.pretrained


def train_with_trainer(task: str, rows: int) -> None:
    """One epoch of transformers' Trainer as its GLUE example sets it, with dynamic padding, and its evaluation."""
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from hifi_cli.config.sources import resolve
    from hifi_cli.models.encoder_files import resolve_source

    train, validation, pretrained = examples_of(task, rows)
    source, _ = resolve_source(
        resolve(task=task, method="full-ft", backbone="minilm", protocol="laptop").backbone
    )
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    rows_of = (
        [{**each.sequences[0], "labels": each.row.label} for each in examples]
        for examples in (train, validation)
    )
    with tempfile.TemporaryDirectory() as directory:
        settings = TrainingArguments(
            output_dir=directory,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH_SIZE,
            per_device_eval_batch_size=64,
            eval_strategy="epoch",
            learning_rate=LEARNING_RATE,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        collator = DataCollatorWithPadding(pretrained.tokenizer)
        trained, evaluated = rows_of
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=trained,
            eval_dataset=evaluated,
            data_collator=collator,
        )
        trainer.train()
        trainer.save_model(directory)


def floors(
    task: str, arguments: argparse.Namespace, environment: dict[str, str]
) -> dict[str, float]:
    """The floor of each of our programs on a task, in seconds."""
    import torch

    torch.set_num_threads(arguments.threads)
    train, validation, pretrained = examples_of(task, arguments.rows)
    config = pretrained.model.config
    layers, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    weights = layers * (4 * hidden**2 + 2 * hidden * inner)
    # HiFi trains the rows of three heads in W_Q, W_K and W_V.
    head_size = hidden // config.num_attention_heads
    tuned = layers * 3 * 3 * head_size * hidden
    parameters = sum(parameter.numel() for parameter in pretrained.model.parameters())

    def operations(examples: list[Any], passes: float) -> float:
        """Multiplications and additions; `passes`: 1 forward, 3 with all gradients."""
        lengths = [len(example) for example in examples]
        return passes * sum(
            2 * weights * length + 4 * layers * hidden * length**2 for length in lengths
        )

    start = wall_seconds([["-c", STARTED, pretrained.model.config._name_or_path]], environment)
    rates = {
        "fp32": product_rate(torch.float32, hidden, inner),
        "bf16": product_rate(torch.bfloat16, hidden, inner),
    }
    bandwidth = copy_bandwidth()
    steps = math.ceil(len(train) / BATCH_SIZE)
    found = {}
    for name, (method, precision) in OURS.items():
        passes, trained = (3.0, parameters) if method == "full-ft" else (2 + tuned / weights, tuned)
        training = operations(train, passes) / rates[precision]
        evaluating = operations(validation, 1) / rates["fp32"]
        # AdamW reads w, g, m and v, and writes w, m and v, of four bytes each.
        moving = steps * trained * 4 * 7 / bandwidth
        found[name] = round(start + training + evaluating + moving, 1)
        print(
            f"{task}: floor of {name} {found[name]} s ({start:.1f} start, {training:.1f} training)",
            flush=True,
        )
    return found


STARTED = """
import atexit, gc, sys
gc.disable()
atexit.register(gc.freeze)
import torch
from transformers import AutoModelForSequenceClassification
AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
"""


def product_rate(dtype: Any, hidden: int, inner: int, tokens: int = 2048) -> float:
    """Operations a second of a product of the feed-forward network's shape."""
    import torch

    x, weight = torch.randn(tokens, hidden).to(dtype), torch.randn(inner, hidden).to(dtype)
    return best_rate(lambda: torch.nn.functional.linear(x, weight), 2 * tokens * hidden * inner)


def copy_bandwidth(numbers: int = 50_000_000) -> float:
    """Bytes a second of an addition of large arrays."""
    import torch

    x, y = torch.randn(numbers), torch.randn(numbers)
    return best_rate(lambda: x.add_(y), 3 * 4 * numbers)


def best_rate(call: Any, amount: float, seconds: float = 1.0) -> float:
    """The highest rate of repeated calls."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return amount / shortest


if __name__ == "__main__":
    main()
