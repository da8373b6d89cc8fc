"""Test scores that the GLUE server returned: a file with one line per submission, written by the user."""

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import read_bytes
from hifi_cli.wording import counted_noun, number_ranges

# The columns of the server's score page: task, and the metrics in the page's order.
COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CoLA": ("cola", ("matthews",)),
    "SST-2": ("sst2", ("accuracy",)),
    "MRPC": ("mrpc", ("f1", "accuracy")),
    "STS-B": ("stsb", ("pearson", "spearman")),
    "QQP": ("qqp", ("f1", "accuracy")),
    "MNLI-m": ("mnli", ("accuracy",)),
    "MNLI-mm": ("mnli", ("accuracy_mismatched",)),
    "QNLI": ("qnli", ("accuracy",)),
    "RTE": ("rte", ("accuracy",)),
    "WNLI": ("wnli", ("accuracy",)),
    "AX": ("ax", ("matthews",)),
}
_NOT_SUBMITTED = (None, "", "-")
_LARGEST = 1_000_000  # bytes of a file


@dataclass(frozen=True)
class ServerScores:
    """The test scores of submissions.

    Attributes:
        frame: a row per submission and metric: method, seed, task, metric, score in percent.
    """

    path: Path
    frame: pd.DataFrame

    def scores_of(self, method: str, task: str, metric: str | None, seeds: list[int]) -> tuple[pd.DataFrame, list[str]]:
        """Seed and score of a cell's submissions, and notes on those left out.

        Args:
            seeds: only these; empty: all.
        """
        frame = self.frame
        every = frame[(frame["method"] == method) & (frame["task"] == task) & (frame["metric"] == metric)]
        scores = every[every["seed"].isin(seeds)] if seeds else every
        notes = [f"{len(scores)} of {len(seeds)} seeds"] if 0 < len(scores) < len(seeds) else []
        if others := len(every) - len(scores):
            remedy = f"--seeds {number_ranges({*seeds, *every['seed']})} includes them"
            notes.append(f"{counted_noun(others, 'submission')} with other seeds left out ({remedy})")
        return scores[["seed", "score"]], notes

    @property
    def methods(self) -> list[str]:
        """The methods that were submitted."""
        return [*self.frame["method"].unique()]


def read(path: Path) -> ServerScores:
    """Read a CSV, or a JSON object or list of objects, with the keys `method`, `seed` and those of the score page.

    A score is in percent. Two metrics stand in one cell, as on the page: 89.3/85.4. An empty cell or a dash: not submitted.

    Raises:
        MissingError: the file does not exist.
        UsageError: an unknown method or column, a value that is no score, or a submission that stands there twice.
    """
    rows: list[dict[str, Any]] = []
    submissions = set()
    for where, line in _lines(path):
        method, seed = str(line.pop("method")), _seed(line.pop("seed"), where)
        if method not in registry.names("methods"):
            raise UsageError(f"{where}: {registry.unknown('methods', method)}")
        if (method, seed) in submissions:
            raise UsageError(f"{where}: a second submission of {method} with seed {seed}; keep one of them")
        submissions.add((method, seed))
        for column, text in line.items():
            for metric, score in _scores(column, text, where):
                names = {"method": method, "seed": seed, "task": COLUMNS[column][0], "metric": metric}
                rows.append({**names, "score": score})
    if not rows:
        raise UsageError(f"{path}: no test scores; expected are the columns method, seed and {', '.join(COLUMNS)}")
    if (highest := max(abs(row["score"]) for row in rows)) <= 1:
        raise UsageError(f"{path}: the highest score is {highest:g}; write percentages, as on the score page")
    return ServerScores(path, pd.DataFrame(rows))


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each submission with its place in the file.

    Raises:
        MissingError: the file does not exist.
        UsageError: the file is no CSV or JSON, or a line lacks method or seed or has an unknown column.
    """
    if not path.exists():
        raise MissingError(f"{path} does not exist; save the server's scores as CSV or JSON first")
    try:
        text = read_bytes(path, at_most=_LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8") from None
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path} is no JSON ({error})") from None
        objects = content if isinstance(content, list) else [content]
        lines = [(f"{path}, submission {number}", line) for number, line in enumerate(objects, 1)]
    elif path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text), restkey="")
        lines = [(f"{path}, line {reader.line_num}", dict(line)) for line in reader]
    else:
        raise UsageError(f"{path}: the name must end in .csv or .json")
    for where, line in lines:
        if not isinstance(line, dict) or "" in line:
            raise UsageError(f"{where}: expected are method, seed and scores, with a name for each value")
        for key in ("method", "seed"):
            if line.get(key) in _NOT_SUBMITTED:
                raise UsageError(f"{where}: {key} is missing; each line is one submission of one method and seed")
        for column in line:
            if column not in ("method", "seed", *COLUMNS):
                raise UsageError(f"{where}: unknown column '{column}'{registry.nearest(column, COLUMNS)}")
        yield where, dict(line)


def _seed(value: Any, where: str) -> int:
    if not str(value).isdecimal():
        raise UsageError(f"{where}: seed '{value}' is not a whole number")
    return int(value)


def _scores(column: str, value: Any, where: str) -> Iterator[tuple[str, float]]:
    """Give the metrics of a cell with their values."""
    if value in _NOT_SUBMITTED:
        return
    metrics, parts = COLUMNS[column][1], str(value).split("/")
    if len(parts) != len(metrics):
        raise UsageError(f"{where}: {column} is '{value}'; expected is {'/'.join(metrics)}, as on the score page")
    for metric, part in zip(metrics, parts, strict=True):
        try:
            score = float(part)
        except ValueError:
            score = math.nan
        if not -100 <= score <= 100:
            raise UsageError(f"{where}: {column} is '{value}'; a score in percent is a number from -100 to 100")
        yield metric, score
