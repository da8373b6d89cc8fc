"""`hifi` commands in this process, and the numbers in what they print and write.

The files of a run and the JSON of tables are read in this file only.
"""

import contextlib
import csv
import hashlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from command_words import words_of
from safetensors import safe_open

from hifi_cli.cli.app import main


@dataclass
class Ended:
    """The exit code of a command and what it printed."""

    code: int
    out: str
    err: str


def run(*words: object, cwd: Path) -> Ended:
    """Run a command to its end, without the network and without official data; its first word may be a line of words."""
    variables = {key: value for key, value in os.environ.items() if key != "HIFI_DATA_DIR"} | {
        "HF_HUB_OFFLINE": "1"
    }
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", ["hifi", *words_of(*words)]),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    logging.getLogger("hifi").propagate = True  # as before the command
    return Ended(code, out.getvalue(), err.getvalue())


def hifi(*words: object, cwd: Path) -> str:
    """What a command prints that must succeed."""
    ended = run(*words, cwd=cwd)
    assert ended.code == 0, f"hifi {' '.join(map(str, words))}: {ended.code}\n{ended.err}"
    return ended.out


def table_numbers(printed: str) -> list[dict[str, Any]]:
    """The cells of each row of one or several tables in JSON, without verdicts, texts and notes."""
    tables = json.loads(printed)
    return [
        {row.get("method", row["label"]): _cells(row, table["headings"]) for row in table["rows"]}
        for table in (tables if isinstance(tables, list) else [tables])
    ]


def _cells(row: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    cells = {column: row[column] for column in columns if column != "verdict"}
    return cells | ({"interval": [row["low"], row["high"]]} if "interval" in cells else {})


def csv_rows(text: str) -> list[list[Any]]:
    """The rows of a CSV, numbers as numbers."""
    return [[_number(cell) for cell in row] for row in csv.reader(io.StringIO(text))]


def _number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell


def run_numbers(directory: Path) -> dict[str, Any]:
    """All numbers of a finished run that do not depend on the machine's speed."""
    results = json.loads((directory / "results.json").read_text())
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    predictions = [
        json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()
    ]
    return {
        "metrics": results["metrics"],
        "scores": results["scores"],
        "best_epoch": results["epochs"]["best"],
        "examples": results["n_examples"],
        "params": {
            key: results["params"][key]
            for key in ("trainable", "trainable_backbone", "stored", "total")
        },
        "epochs": [line for line in lines if "epoch" in line],
        "steps": [line for line in lines if "epoch" not in line],
        "predictions": digest(predictions),
        "delta": delta_digest(directory / "delta.safetensors"),
    }


def digest(value: Any) -> str:
    """SHA-256 of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def delta_digest(path: Path) -> str:
    """SHA-256 of a delta's tensors, whatever their names."""
    with safe_open(path, "pt") as file:
        tensors = [file.get_tensor(name).contiguous() for name in file.keys()]  # noqa: SIM118
    contents = [
        (
            list(tensor.shape),
            str(tensor.dtype),
            tensor.flatten().view(torch.uint8).numpy().tobytes(),
        )
        for tensor in tensors
    ]
    return digest(
        sorted(
            [shape, dtype, hashlib.sha256(content).hexdigest()]
            for shape, dtype, content in contents
        )
    )


def machine() -> dict[str, str]:
    """What decides the last bits of floating-point results on a CPU."""
    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    )
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )
    return {
        "cpu": model,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
