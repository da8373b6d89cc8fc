"""What is not an epoch: scoring, processes, the command itself, files."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ours
import rivals
import torch
from work import Work

from hifi_cli.heads import select as head_selection
from hifi_cli.models.pretrained import save_delta
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values

SAMPLES, FEWSHOT_RUNS, SEPARATE = 300, 40, 3
ROUNDS, PROCESSES = 5, 3


def measure(works: list[Work], results: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each row's ratio or seconds, and its bar; scoring on every task, the rest on that with the shortest texts."""
    smallest = min(works, key=lambda work: work.tokens)
    entries = []
    for name, bar, unit, call in (
        *((f"hifi score, {SAMPLES} samples of {work.task}", 1.15, "ratio", partial(scoring, work)) for work in works),
        ("40 few-shot runs in one command against 40 processes", 0.15, "ratio", lambda: fewshot(smallest, results)),
        ("hifi --help", 0.3, "s", lambda: command("--help")),
        ("hifi ls methods", 0.6, "s", lambda: command("ls", "methods")),
        ("delta file against the changed numbers", 1.02, "ratio", lambda: delta(smallest)),
    ):
        entries.append({"work": name, "value": round(call(), 4), "unit": unit, "bar": bar})
        say(f"{name}: {entries[-1]['value']} {unit}")
    return entries


def scoring(work: Work) -> float:
    """Scoring beside transformers' own model passing over the same batches."""
    config = work.config("hifi-layerwise")
    plain = rivals.model_of(work).eval()
    encoder, pretrained = work.resources.encoder(config)
    examples = head_selection.sample(work.examples, SAMPLES, 0)
    pad = padding_values(pretrained.tokenizer)
    ratios = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with torch.inference_mode():
            for batch in evaluation_order(examples, 32):
                plain(**collate([examples[index] for index in batch], pad))
        between = time.perf_counter()
        head_selection.score_examples(encoder, examples, pad, config.scoring.xi)
        ratios.append((time.perf_counter() - between) / (between - began))
    return statistics.median(ratios)


def fewshot(work: Work, results: Path) -> float:
    """Short runs that share a process beside processes of their own, whose mean over a few stands for all."""

    def seconds(seeds: range, directory: str) -> float:
        overrides = ["limit=32", "epochs=2"]
        words = ["--task", work.task, "--method", "hifi-layerwise", "--protocol", "hifi-fewshot", "--backbone", work.backbone]
        where = ["--results-dir", str(results / directory), "--seeds", ",".join(map(str, seeds))]
        return command("train", *words, *where, *overrides, rounds=1)

    seconds(range(1), "separate")  # scores, which all share
    separate = statistics.mean(seconds(range(seed, seed + 1), "separate") for seed in range(1, 1 + SEPARATE))
    return seconds(range(FEWSHOT_RUNS), "together") / (FEWSHOT_RUNS * separate)


def command(*words: str, rounds: int = ROUNDS) -> float:
    """Seconds of a `hifi` command."""
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run(
            [str(Path(sys.executable).parent / "hifi"), *words],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        )
        spent.append(time.perf_counter() - began)
        if done.returncode:
            raise SystemExit(f"hifi {' '.join(words)}: {done.stderr}")
    return statistics.median(spent)


def delta(work: Work) -> float:
    """Bytes of a run's delta file beside 4 for each number in it."""
    prepared = ours.build(work, "hifi-layerwise")
    tensors = prepared.method.delta(prepared.encoder.model)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "delta.safetensors"
        save_delta(path, tensors, {})
        return path.stat().st_size / (4 * sum(tensor.numel() for tensor in tensors.values()))
