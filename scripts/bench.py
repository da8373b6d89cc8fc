"""Measure whole runs as a user starts them, beside the strongest rivals on the same machine and beside a floor.

    HIFI_DATA_DIR=glue_data python scripts/bench.py --tasks mrpc,cola    writes results/bench/whole_runs.json

Each round starts every program once, in turn: start of the process, data, one epoch, evaluation on the whole validation
split, saving. The table has medians over the rounds: wall seconds, the ratio to the fastest rival of the same precision,
the seconds of a run on 96 rows (one round), real tokens (no padding) of the epoch per second of the whole run, and the
process's peak memory. Run it on an idle machine.

The rivals are transformers' Trainer with padded batches, with batches of similar length, the same in the precision that
`precision=auto` takes on this machine, and sentence-transformers' CrossEncoder (pairs of texts only), all Full-FT with the
settings of their libraries' examples.

The floor is the sum of the times that no program avoids: the products of the real tokens (no padding) at the rate that a large
product reaches here, the bytes that AdamW moves at the bandwidth that a large addition reaches, and a process that imports
torch and transformers and reads the weights.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BATCH_SIZE, EVAL_BATCH_SIZE, MAX_LENGTH, LEARNING_RATE = 32, 64, 128, 5e-5
SETTINGS = [
    "epochs=1",
    f"batch_size={BATCH_SIZE}",
    f"max_length={MAX_LENGTH}",
    f"learning_rate={LEARNING_RATE}",
]
# Instructions that speed up products, by the names that Linux has for them.
INSTRUCTIONS = {"avx2": "AVX2", "avx512_bf16": "AVX-512 bf16", "amx_bf16": "AMX bf16"}
# A run on so few rows is little more than the start and the end of a process.
START_ROWS = 3 * BATCH_SIZE
TRAINER, CROSS_ENCODER, OURS = "Trainer", "CrossEncoder", "hifi"


@dataclass(frozen=True)
class Program:
    """One way to train a task.

    Attributes:
        library: that trains: TRAINER, CROSS_ENCODER or OURS.
        method: of `hifi`; the rivals tune all parameters.
        precision: of the products in training, fp32 or bf16.
        is_grouped: whether the Trainer's batches have texts of similar length.
    """

    library: str
    precision: str
    method: str = "full-ft"
    is_grouped: bool = False

    @property
    def name(self) -> str:
        """The program's name in tables and files."""
        if self.library == OURS:
            from hifi_cli.config.registry import label_of

            return f"hifi {label_of('methods', self.method)}, {self.precision}"
        grouped = ", grouped by length" if self.is_grouped else ""
        return f"{self.library}{grouped}, {self.precision}"

    def takes(self, task: str) -> bool:
        """Whether the library trains this kind of text: CrossEncoder's losses take pairs."""
        from hifi_cli.config import registry

        texts = len(registry.load("tasks", task)["inputs"])
        return self.library != CROSS_ENCODER or texts == 2


@dataclass(frozen=True)
class Measured:
    """The cost of one process: wall seconds, and peak memory in GB."""

    seconds: float
    memory: float


def programs(precision: str) -> list[Program]:
    """The programs of a machine whose `precision=auto` is this one."""
    listed = [Program(TRAINER, "fp32")]
    for each in dict.fromkeys(["fp32", precision]):
        listed += [
            Program(TRAINER, each, is_grouped=True),
            Program(CROSS_ENCODER, each),
            Program(OURS, each, "full-ft"),
            Program(OURS, each, "lora"),
            Program(OURS, each, "hifi-layerwise"),
        ]
    return listed


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
        "--rival",
        metavar="NUMBER",
        type=int,
        help="train one task with this program in this process, and measure nothing",
    )
    arguments = parser.parse_args()
    precision, instructions = machine()
    listed = programs(precision)
    if arguments.rival is not None:
        train_rival(listed[arguments.rival], arguments.tasks, arguments.rows)
        return
    print(f"{processor()}: {', '.join(instructions) or 'none of'}; precision=auto is {precision}")
    tasks = arguments.tasks.split(",")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(arguments.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    started, measured = {}, {}
    for task in tasks:
        started[task] = rounds(task, listed, START_ROWS, 1, environment)
        measured[task] = rounds(task, listed, arguments.rows, arguments.rounds, environment)
    # The floors need torch in this process: a child's peak memory would count it.
    results = {
        task: summary(task, listed, started[task], measured[task], arguments, environment)
        for task in tasks
    }
    content = {
        "processor": processor(),
        "instructions": instructions,
        "precision": precision,
        "threads": arguments.threads,
        "rows": arguments.rows,
        "rounds": arguments.rounds,
        "versions": versions(),
        "tasks": results,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(results))


def rounds(
    task: str, listed: list[Program], rows: int, count: int, environment: dict[str, str]
) -> dict[str, list[Measured]]:
    """Start every program once a round, in turn; the processes of each program by its name."""
    measured: dict[str, list[Measured]] = {}
    for _ in range(count):
        for number, program in enumerate(listed):
            if not program.takes(task):
                continue
            with tempfile.TemporaryDirectory() as directory:
                words = command(number, program, task, rows, directory)
                process = measure(words, environment)
            measured.setdefault(program.name, []).append(process)
            load = os.getloadavg()[0]
            print(
                f"{task}, {rows} rows: {program.name} {process.seconds:.1f} s, {process.memory:.2f} GB"
                f" (load {load:.1f})",
                flush=True,
            )
    return measured


def command(number: int, program: Program, task: str, rows: int, directory: str) -> list[str]:
    """The words of a program's Python process."""
    if program.library != OURS:
        return [__file__, "--rival", str(number), "--tasks", task, "--rows", str(rows)]
    words = ["train", "--task", task, "--method", program.method, "--protocol", "laptop"]
    words += ["--results-dir", directory, "--quiet"]
    settings = [*SETTINGS, f"precision={program.precision}", f"limit={rows}"]
    return ["-m", "hifi_cli", *words, *settings]


def measure(words: list[str], environment: dict[str, str]) -> Measured:
    """Run a Python process to its end."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words} failed:\n{said}")
    # Linux counts KiB, macOS bytes.
    unit = 1 if platform.system() == "Darwin" else 1024
    return Measured(time.perf_counter() - start, usage.ru_maxrss * unit / 1e9)


def summary(
    task: str,
    listed: list[Program],
    started: dict[str, list[Measured]],
    measured: dict[str, list[Measured]],
    arguments: argparse.Namespace,
    environment: dict[str, str],
) -> dict[str, Any]:
    """A task's medians, ratios and floors, as the file has them."""
    train, validation, pretrained = examples_of(task, arguments.rows)
    tokens = sum(len(example) for example in train)
    seconds = {
        name: statistics.median(each.seconds for each in values)
        for name, values in measured.items()
    }
    found = floors(listed, train, validation, pretrained, arguments.threads, environment)
    rows = {}
    for program in listed:
        name = program.name
        if name not in measured:
            continue
        rivals = [
            seconds[other.name]
            for other in listed
            if other.library != OURS
            and other.precision == program.precision
            and other.name in seconds
        ]
        rows[name] = {
            "seconds": round(seconds[name], 1),
            "each round": [round(each.seconds, 1) for each in measured[name]],
            "seconds of a start": round(started[name][0].seconds, 1),
            "of the best rival": round(seconds[name] / min(rivals), 3),
            "real tokens a second": round(tokens / seconds[name]),
            "peak GB": round(statistics.median(each.memory for each in measured[name]), 2),
        }
        if name in found:
            rows[name]["floor"] = round(found[name], 1)
            rows[name]["of the floor"] = round(seconds[name] / found[name], 2)
    return {"tokens": tokens, "programs": rows}


def table(results: dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    from hifi_cli.config.registry import label_of

    lines = [
        "| a run of | task | seconds | of the best rival | start | real tokens/s | peak GB | of the floor |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for task, result in results.items():
        for name, row in result["programs"].items():
            cells = [
                name,
                label_of("tasks", task),
                f"{row['seconds']:.0f}",
                f"{row['of the best rival']:.2f}",
                f"{row['seconds of a start']:.0f}",
                f"{row['real tokens a second']:,}",
                f"{row['peak GB']:.2f}",
                f"{row['of the floor']:.1f}" if "of the floor" in row else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> tuple[str, list[str]]:
    """What `precision=auto` takes here, and the instructions that speed up products.

    In a process of its own: this one stays small, because a child's peak memory counts its parent's.
    """
    asked = (
        "import torch; from hifi_cli.training.device import uses_bf16;"
        " print('bf16' if uses_bf16('auto', torch.device('cpu')) else 'fp32')"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    flags = set(of_processor("flags").split())
    return done.stdout.strip(), [name for flag, name in INSTRUCTIONS.items() if flag in flags]


def processor() -> str:
    """The processor's name, where the system tells it."""
    return of_processor("model name") or "unknown"


def of_processor(key: str) -> str:
    """What Linux says of the first processor under a key; empty elsewhere."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def versions() -> dict[str, str]:
    """The versions of the libraries that were compared."""
    from importlib.metadata import version

    names = ["torch", "transformers", "sentence-transformers"]
    return {name: version(name) for name in names}


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
    # As `limit` does: so many rows of each split.
    return train[:rows], validation[:rows], inputs.pretrained


def train_rival(program: Program, task: str, rows: int) -> None:
    """Train one epoch with another library, evaluate it and save it."""
    from hifi_cli.config.sources import resolve
    from hifi_cli.models.encoder_files import resolve_source

    config = resolve(task=task, method="full-ft", backbone="minilm", protocol="laptop")
    source, _ = resolve_source(config.backbone)
    with tempfile.TemporaryDirectory() as directory:
        settings: dict[str, Any] = {
            "output_dir": directory,
            "num_train_epochs": 1,
            "per_device_train_batch_size": BATCH_SIZE,
            "per_device_eval_batch_size": EVAL_BATCH_SIZE,
            "eval_strategy": "epoch",
            "learning_rate": LEARNING_RATE,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "bf16": program.precision == "bf16",
        }
        if program.is_grouped:
            settings["train_sampling_strategy"] = "group_by_length"
        if program.library == CROSS_ENCODER:
            train_with_cross_encoder(str(source), task, rows, settings)
        else:
            train_with_trainer(str(source), task, rows, settings)


def train_with_trainer(source: str, task: str, rows: int, settings: dict[str, Any]) -> None:
    """Train as transformers' GLUE example does, with batches padded to their longest text."""
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    train, validation, pretrained = examples_of(task, rows)
    trained, evaluated = (
        [{**each.sequences[0], "labels": each.row.label} for each in examples]
        for examples in (train, validation)
    )
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(source, num_labels=2),
        args=TrainingArguments(**settings),
        train_dataset=trained,
        eval_dataset=evaluated,
        data_collator=DataCollatorWithPadding(pretrained.tokenizer),
    )
    trainer.train()
    trainer.save_model(settings["output_dir"])


def train_with_cross_encoder(source: str, task: str, rows: int, settings: dict[str, Any]) -> None:
    """Train as sentence-transformers' example of pairs with classes does."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import CrossEntropyLoss

    train, validation, _ = examples_of(task, rows)
    trained, evaluated = (
        Dataset.from_list(
            [
                {
                    "first": each.row.sequences[0][0],
                    "second": each.row.sequences[0][1],
                    "label": each.row.label,
                }
                for each in examples
            ]
        )
        for examples in (train, validation)
    )
    model = CrossEncoder(source, num_labels=2, max_length=MAX_LENGTH)
    trainer = CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(**settings),
        train_dataset=trained,
        eval_dataset=evaluated,
        loss=CrossEntropyLoss(model),
    )
    trainer.train()
    model.save_pretrained(settings["output_dir"])


def floors(
    listed: list[Program],
    train: list[Any],
    validation: list[Any],
    pretrained: Any,
    threads: int,
    environment: dict[str, str],
) -> dict[str, float]:
    """The floor of each of our programs on a task, in seconds, by the program's name."""
    import torch

    torch.set_num_threads(threads)
    config = pretrained.model.config
    layers, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    weights = layers * (4 * hidden**2 + 2 * hidden * inner)
    # HiFi trains the rows of three heads in W_Q, W_K and W_V; LoRA matrices of rank 8 beside W_Q and W_V.
    head_size = hidden // config.num_attention_heads
    trained = {
        "full-ft": sum(parameter.numel() for parameter in pretrained.model.parameters()),
        "lora": layers * 2 * 2 * 8 * hidden,
        "hifi-layerwise": layers * 3 * 3 * head_size * hidden,
    }

    def operations(examples: list[Any], passes: float) -> float:
        """Multiplications and additions; `passes`: 1 forward, 3 with all gradients."""
        lengths = [len(example) for example in examples]
        return passes * sum(
            2 * weights * length + 4 * layers * hidden * length**2 for length in lengths
        )

    start = measure(["-c", STARTED, pretrained.model.config._name_or_path], environment).seconds
    rates = {
        "fp32": product_rate(torch.float32, hidden, inner),
        "bf16": product_rate(torch.bfloat16, hidden, inner),
    }
    bandwidth = copy_bandwidth()
    steps = math.ceil(len(train) / BATCH_SIZE)
    found = {}
    for program in listed:
        if program.library != OURS:
            continue
        tuned = trained[program.method]
        passes = 3.0 if program.method == "full-ft" else 2 + tuned / weights
        training = operations(train, passes) / rates[program.precision]
        evaluating = operations(validation, 1) / rates["fp32"]
        # AdamW reads w, g, m and v, and writes w, m and v, of four bytes each.
        moving = steps * tuned * 4 * 7 / bandwidth
        found[program.name] = start + training + evaluating + moving
        print(
            f"floor of {program.name} {found[program.name]:.1f} s"
            f" ({start:.1f} start, {training:.1f} training)",
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
