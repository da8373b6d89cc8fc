"""Checks of the files beside a record: settings, epochs and weights that are not the record's.

Each function yields one sentence for each problem.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import read_yaml
from hifi_cli.digests import file_digest
from hifi_cli.errors import UsageError
from hifi_cli.files import read_file, read_jsonl
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import Pruned, RunResult
from hifi_cli.text import abbreviate


def find_in_keys(text: bytes) -> Iterator[str]:
    """Find keys that an object of a JSON text has more than once.

    Programs differ in which of the two they read.
    """
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    json.loads(text, object_pairs_hook=note)
    if repeated:
        yield f"has a key twice ({abbreviate(repeated)})"


def find_in_keys_of_file(file: Path) -> Iterator[str]:
    """Find keys that an object of a JSON file has more than once."""
    yield from find_in_keys(read_file(file))


def find_in_config_file(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Find settings of config.yaml, which repeats a run, that are not those of the run."""
    if not directory.config_file.is_file():
        return
    there = flatten(read_yaml(directory.config_file))
    here = flatten(result.config)
    keys = [key for key in {**here, **there} if there.get(key) != here.get(key)]
    if keys:
        yield f"config.yaml has other settings than its record ({abbreviate(keys)})"


def find_in_own_code(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Find copies of the user's own code that are not the code of the run."""
    try:
        has_other_code = directory.has_other_code(result)
    except UsageError:
        # `RunDirectory.names_outside` says what is wrong.
        return
    if has_other_code:
        yield f"the code in {directory.user_files.name}/ is not that of the run (method_code)"


def find_in_metrics_file(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Find epochs in metrics.jsonl that are not those of the record."""
    if not directory.metrics.is_file():
        return
    lines = [line for line in read_jsonl(directory.metrics) if "epoch" in line]
    recorded = [line.model_dump(exclude_none=True) for line in result.epoch_metrics]
    if lines != recorded:
        yield "epoch_metrics are not those of metrics.jsonl"


def find_in_delta(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Find weights on the disk that are not those of the record."""
    delta = directory.delta
    if not delta.is_file():
        yield from _find_in_note_on_pruning(directory, result)
        return
    if file_digest(delta) != result.delta_sha256:
        yield "delta.safetensors is not the file that the run wrote (delta_sha256)"
        return
    size = delta.stat().st_size
    if size != result.delta_bytes:
        yield f"delta_bytes is {result.delta_bytes}, and the file has {size}"
    numbers, content = _numbers_and_bytes(delta)
    stored = result.params.stored
    stored_bytes = result.params.stored_bytes
    if (numbers, content) != (stored, stored_bytes):
        yield (
            f"params: {stored:,} stored numbers in {stored_bytes:,} bytes, and in delta.safetensors"
            f" {numbers:,} in {content:,}"
        )


def _find_in_note_on_pruning(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Find a note on dropped weights that is about other weights than those of the record."""
    if not directory.pruned.is_file():
        return
    pruned = Pruned.read(directory.pruned)
    if pruned.delta_sha256 != result.delta_sha256:
        yield "pruned.json is of other weights than those of the record (delta_sha256)"


def _numbers_and_bytes(delta: Path) -> tuple[int, int]:
    """Count the floating-point numbers of a safetensors file, and the bytes of all its tensors.

    Only its header is read.
    """
    with delta.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    numbers = 0
    content = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        start, end = tensor["data_offsets"]
        content += end - start
        # Types of floating-point numbers have an F in their names, such as F32 and BF16. Masks and
        # indices do not count.
        if "F" in tensor["dtype"]:
            numbers += int(np.prod(tensor["shape"], dtype=np.int64))
    return numbers, content
