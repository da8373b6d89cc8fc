"""From a task's name to its rows, and from rows to tokens."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.errors import MissingError
from hifi_cli.files import file_digest, locked
from hifi_cli.tasks import demo, hub, local
from hifi_cli.tasks.spec import Dataset, Row, TaskSpec


@dataclass(frozen=True, slots=True)
class Example:
    """A row's tokens.

    Attributes:
        tokens: the tokenizer's lists (input_ids, token_type_ids), without padding.
    """

    row: Row
    tokens: dict[str, list[int]]

    def __len__(self) -> int:
        return len(self.tokens["input_ids"])


def load_rows(spec: TaskSpec, *, data_dir: Path | None, results_dir: Path) -> Dataset:
    """A task's rows: generated, from `data_dir`, or from the hub when no directory is given.

    Raises:
        MissingError: they cannot be had.
        UsageError: they do not fit the task.
    """
    if spec.local.generated:
        return local.load(spec, _generated(results_dir))
    if data_dir:
        if not data_dir.is_dir():
            raise MissingError(f"--data-dir {data_dir}: no such directory")
        return local.load(spec, data_dir)
    if spec.hub:
        return hub.load(spec, spec.hub)
    raise MissingError(f"task {spec.label} has no hub repository: give --data-dir")


def tokenise(tokenizer: Any, rows: list[Row], max_length: int) -> list[Example]:
    """Tokenise once, without padding; a text or pair that is too long loses the end of its longer text."""
    texts = zip(*(row.texts for row in rows), strict=True)
    encoded = tokenizer(*(list(column) for column in texts), truncation="longest_first", max_length=max_length)
    names = [name for name in encoded if name != "attention_mask"]
    return [
        Example(row, {name: encoded[name][index] for name in names})
        for index, row in enumerate(rows)
    ]


def _generated(results_dir: Path) -> Path:
    """The demo's data, in a folder named after the generator's text, so that another version writes another folder."""
    directory = results_dir / "data" / f"demo-{file_digest(Path(demo.__file__))[:8]}"
    with locked(results_dir / "data" / ".lock", wait=True):
        if not directory.is_dir():
            with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
                demo.write(Path(temporary) / "demo")
                (Path(temporary) / "demo").rename(directory)
    return directory
