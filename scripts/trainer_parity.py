"""Compare `hifi` with transformers' Trainer, and random batches with batches grouped by length, over paired seeds.

python scripts/trainer_parity.py --data-dir glue_data            train what is missing, then print the table
python scripts/trainer_parity.py --data-dir glue_data --shard 1/2  the first half of the runs; a second process takes 2/2
python scripts/trainer_parity.py --print                         print the table of the stored scores

Every arm of a seed starts from the same weights (task head included) and has the same hyperparameters. Arms with random
batches also see the same batches in the same order, so only the dropout noise differs between them. The Trainer is stock:
AdamW, linear decay, gradients clipped at 1.0. Scores are those of the last epoch, appended to results/parity/scores.jsonl.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy import stats
from sklearn.metrics import accuracy_score, matthews_corrcoef
from torch.utils.data import Sampler
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.locks import locked
from hifi_cli.models.encoder_files import resolve_source
from hifi_cli.runs.inputs import load_task
from hifi_cli.runs.prepare import own_encoder
from hifi_cli.runs.run import run
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks.encode import epoch_batches

TASKS = {"cola": {"epochs": 3, "batch_size": 32}, "cb": {"epochs": 10, "batch_size": 16}}
LEARNING_RATES = {"full-ft": 5e-5, "lora": 1e-3}
METRICS = {"cola": matthews_corrcoef, "cb": accuracy_score}
# Program, method and train_sampling_strategy of each arm.
ARMS = {
    "hifi, full-ft": ("hifi", "full-ft", "random"),
    "hifi, full-ft, grouped": ("hifi", "full-ft", "group_by_length"),
    "Trainer, full-ft": ("trainer", "full-ft", "random"),
    "hifi, lora": ("hifi", "lora", "random"),
    "Trainer, lora": ("trainer", "lora", "random"),
}
# On CoLA LoRA stays at chance within so few epochs in both programs, whatever the rate.
ARMS_OF = {"cola": ["hifi, full-ft", "Trainer, full-ft"], "cb": list(ARMS)}
# Name, first arm and second arm.
COMPARISONS = [
    ("hifi - Trainer, Full-FT", "hifi, full-ft", "Trainer, full-ft"),
    ("hifi - Trainer, LoRA", "hifi, lora", "Trainer, lora"),
    ("grouped by length - random, Full-FT", "hifi, full-ft, grouped", "hifi, full-ft"),
]
LARGEST_DIFFERENCE = 1.5  # points; an interval inside this range counts as parity


class HifiOrder(Sampler[int]):
    """The order in which `hifi` visits the training examples, epoch after epoch."""

    def __init__(self, examples: int, config: RunConfig) -> None:
        self.examples, self.config, self.epoch = examples, config, 0

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[int]:
        numbers = [(index,) for index in range(self.examples)]
        batches = epoch_batches(self.config, self.config.batch_size, numbers, self.epoch)
        self.epoch += 1
        return iter([index for batch in batches for (index,) in batch])


class OrderedTrainer(Trainer):
    """The Trainer with a given order of the training examples."""

    order: HifiOrder

    def _get_train_sampler(self, *_: Any, **__: Any) -> HifiOrder:
        return self.order


def config_of(task: str, method: str, strategy: str, seed: int) -> RunConfig:
    """The configuration that all arms share."""
    keys = {
        **TASKS[task],
        "learning_rate": LEARNING_RATES[method],
        "warmup": 0.0,
        "weight_decay": 0.0,
        "report": "last",
        "precision": "fp32",
        "train_sampling_strategy": strategy,
        "variant": f"parity-{strategy}",
    }
    overrides = [f"{key}={value}" for key, value in keys.items()]
    return resolve(
        task=task,
        method=method,
        backbone="minilm",
        protocol="laptop",
        seed=seed,
        overrides=overrides,
    )


def train_with_hifi(config: RunConfig, workspace: Workspace) -> float:
    """The last epoch's score, in points."""
    return 100 * float(run(config, workspace, force=True).score("last"))


def train_with_trainer(config: RunConfig, workspace: Workspace) -> float:
    """The last epoch's score, in points."""
    source, _ = resolve_source(config.backbone)
    inputs = workspace.inputs(config, load_task(config))
    pretrained = inputs.pretrained
    encoder = own_encoder(pretrained, config.seed)
    labels = len(inputs.task.labels)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=labels)
    model.load_state_dict(encoder.model.state_dict())
    if config.method == "lora":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(config.seed)
        targets, heads = (
            ["query", "key"],
            ["pooler", "classifier"],
        )  # peft alone would leave the pooler frozen
        lora = LoraConfig(
            task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=targets, modules_to_save=heads
        )
        model = get_peft_model(model, lora)
    train, validation = (
        [
            {**example.sequences[0], "labels": int(example.row.label or 0)}
            for example in inputs.examples(split, 128)
        ]
        for split in ("train", "validation")
    )
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            num_train_epochs=config.epochs,
            per_device_train_batch_size=config.batch_size,
            per_device_eval_batch_size=64,
            learning_rate=config.learning_rate,
            seed=config.seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        collator = DataCollatorWithPadding(pretrained.tokenizer)
        trainer = OrderedTrainer(
            model=model, args=arguments, train_dataset=train, data_collator=collator
        )
        trainer.order = HifiOrder(len(train), config)
        trainer.train()
        output = trainer.predict(validation)
    return 100 * float(METRICS[config.task](output.label_ids, output.predictions.argmax(-1)))


# A training: task, epochs, arm, seed.
Key = tuple[str, int, str, int]


def read(path: Path) -> dict[Key, float]:
    """The stored scores of all trainings."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {
        (line["task"], line["epochs"], line["arm"], line["seed"]): line["score"] for line in lines
    }


def train_missing(
    path: Path,
    tasks: list[str],
    arms: list[str],
    seeds: int,
    data_dir: Path,
    shard: tuple[int, int],
) -> None:
    """Train every arm that has no score yet, seed after seed."""
    runs = [
        (task, arm, seed)
        for task in tasks
        for seed in range(1, seeds + 1)
        for arm in arms
        if arm in ARMS_OF[task]
    ]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as results:
        workspace = Workspace(Path(results), data_dir)
        for task, arm, seed in runs[shard[0] - 1 :: shard[1]]:
            program, method, strategy = ARMS[arm]
            config = config_of(task, method, strategy, seed)
            if (task, config.epochs, arm, seed) in read(path):
                continue
            started = time.monotonic()
            train = train_with_hifi if program == "hifi" else train_with_trainer
            line = {
                "task": task,
                "epochs": config.epochs,
                "arm": arm,
                "seed": seed,
                "score": train(config, workspace),
                "wall_s": round(time.monotonic() - started, 1),
                "threads": torch.get_num_threads(),
                "commit": commit,
            }
            with locked(path.with_name(f"{path.name}.lock"), wait=True), path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


def table(scores: dict[Key, float]) -> str:
    """Paired differences with 95 % t-intervals, in Markdown."""
    lines = [
        "| difference, points | task | epochs | pairs | first | second | mean | 95 % interval | contains 0 | within ±1.5 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    trained = sorted({(task, epochs) for task, epochs, _, _ in scores})
    for name, first, second in COMPARISONS:
        for task, epochs in trained:
            of_first = scores_by_seed(scores, task, epochs, first)
            of_second = scores_by_seed(scores, task, epochs, second)
            seeds = sorted(of_first.keys() & of_second.keys())
            if len(seeds) < 2:
                continue
            ones = np.array([of_first[seed] for seed in seeds])
            others = np.array([of_second[seed] for seed in seeds])
            low, high, mean = interval(ones - others)
            cells = [name, task, str(epochs), str(len(seeds))]
            cells += [
                f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" for values in (ones, others)
            ]
            cells += [f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}"]
            for holds in (low <= 0 <= high, max(-low, high) <= LARGEST_DIFFERENCE):
                cells.append("yes" if holds else "no")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def scores_by_seed(scores: dict[Key, float], task: str, epochs: int, arm: str) -> dict[int, float]:
    """The scores of an arm on a task, by their seeds."""
    found = {}
    for (of_task, of_epochs, of_arm, seed), score in scores.items():
        if (of_task, of_epochs, of_arm) == (task, epochs, arm):
            found[seed] = score
    return found


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """The 95 % t-interval of the mean difference, and the mean."""
    mean, error = float(differences.mean()), float(stats.sem(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return mean - half, mean + half, mean


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("HIFI_DATA_DIR"),
        help="the official GLUE download",
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument(
        "--arms", default=";".join(ARMS), help="separated by semicolons (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds", type=int, default=10, help="seeds 1 to this (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--shard", default="1/1", help="i/n: every n-th run, from the i-th (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/parity/scores.jsonl"), help="default: %(default)s"
    )
    parser.add_argument("--print", action="store_true", help="train nothing")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    if not given.print:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        number, shards = map(int, given.shard.split("/"))
        tasks, arms = given.tasks.split(","), given.arms.split(";")
        train_missing(given.out, tasks, arms, given.seeds, given.data_dir, (number, shards))
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
