"""The directory of a run: the names of its files, and everything that reads or writes them."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from hifi_cli.config import registry
from hifi_cli.config.base import describe_error, parse
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import code_file
from hifi_cli.errors import ConflictError, MissingError, UsageError
from hifi_cli.files import TEMPORARY_SUFFIX, locked, make_directory, read_json, read_jsonl, write_json, write_text
from hifi_cli.results.record import EpochMetrics, MetricsLine, Prediction, RunResult, metrics_line
from hifi_cli.results.stored_file import Record

DELTA = "delta.safetensors"
Line = TypeVar("Line")
_SUBFOLDERS = ("checkpoints", "tensorboard", "own")  # of a run
_OTHER_PLACE = "keep both with variant=NAME or another --results-dir, or replace it with --force"
_AGAIN = "train the run again with --force"


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run, `RunConfig.run_path` in a results directory; results.json is written last."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig, results_dir: Path) -> "RunDirectory":
        """The directory where a configuration's run belongs."""
        return cls(results_dir / config.run_path)

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def delta(self) -> Path:
        return self.path / DELTA

    @property
    def results(self) -> Path:
        return self.path / "results.json"

    @property
    def failure(self) -> Path:
        """A failed attempt that a grid recorded; a new attempt removes it."""
        return self.path / "failure.json"

    @property
    def checkpoint(self) -> Path:
        """The state of an unfinished run."""
        return self.path / "checkpoints" / "last.pt"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def user_files(self) -> Path:
        """Copies of the user's own YAMLs, as KIND/NAME.yaml: without them the run could not be read again."""
        return self.path / "own"

    @property
    def predictions(self) -> Path:
        """Predictions of the reported split; those of another one are in predictions-SPLIT.jsonl."""
        return self.path / "predictions.jsonl"

    def read_config(self) -> RunConfig:
        """The configuration of the run: what results.json says, or config.yaml as long as the run is not finished.

        Raises:
            MissingError: there is none.
        """
        if self.results.is_file():
            return parse(RunConfig, self.read_result().config, str(self.results))
        if not self.config_file.is_file():
            raise MissingError(f"no run in {self.path} (config.yaml is missing)")
        return parse(RunConfig, read_yaml(self.config_file), str(self.config_file))

    @contextmanager
    def opened(self, *, trust: bool = False) -> Iterator[RunConfig]:
        """The configuration in the directory; inside the block, names in it mean the run's own YAMLs and no others.

        Args:
            trust: whether the code of methods that the run's own YAMLs name may be executed.

        Raises:
            MissingError: there is none.
        """
        config = self.read_config()
        copies = {name: self._copy_of(*name) for name in _named_files(config)}
        with registry.only_user_files({name: path for name, path in copies.items() if path.is_file()}, trust=trust):
            yield config

    def _copy_of(self, kind: str, name: str) -> Path:
        return self.user_files / kind / f"{name}.yaml"

    def _user_files(self, config: RunConfig) -> Iterator[tuple[str, Path | None, Path]]:
        """What a configuration names: kind, the user's own file, and its copy's place; a method's code follows its YAML."""
        for kind, name in _named_files(config):
            own, copy = registry.user_file(kind, name), self._copy_of(kind, name)
            yield kind, own, copy
            source = own or copy
            if kind == "methods" and source.is_file() and (code := code_file(source)):
                yield kind, own and own.parent / code, copy.parent / code

    def write_config(self, config: RunConfig) -> None:
        """Store `config_text`, and copies of the user's own YAMLs and methods that it names; remove other copies."""
        copies = {copy: own for _, own, copy in self._user_files(config) if own}
        for copy, own in copies.items():
            if own.resolve() != copy.resolve():
                make_directory(copy.parent)
                write_text(copy, own.read_text(encoding="utf-8"))
        for path in self.user_files.glob("**/*"):
            if path.is_file() and path not in copies:
                path.unlink()
        write_text(self.config_file, config_text(config))

    def write_result(self, result: RunResult) -> None:
        """Store the result of the run, which is finished then."""
        write_json(self.results, result.model_dump(mode="json"))

    def read_result(self, results_dir: Path | None = None) -> RunResult:
        """The result of a finished run.

        Args:
            results_dir: the run must be at its configuration's path in this directory: a copy would count twice.

        Raises:
            MissingError: the run is not finished.
            UsageError: it is damaged, or at another path.
        """
        content = read_json(self.results, what="results")
        try:
            result = RunResult.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{self.results} is damaged ({describe_error(error, RunResult)}); {_AGAIN}") from None
        if results_dir and self.path != results_dir / result.run_path:
            raise UsageError(
                f"{self.path} holds the run that belongs in {results_dir / result.run_path}: move it there, or a copy out of"
                f" {results_dir}"
            )
        return result

    def append_metrics(self, line: MetricsLine) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line.to_dict()) + "\n")

    def read_metrics(self) -> list[MetricsLine]:
        """The lines of metrics.jsonl.

        Raises:
            MissingError: there is none.
            UsageError: a line is damaged; it is named.
        """
        return _read_lines(self.metrics, "metrics", metrics_line)

    def read_epochs(self) -> dict[int, EpochMetrics]:
        """The metrics after each epoch, by its number; see `read_metrics`."""
        return {line.epoch: line for line in self.read_metrics() if isinstance(line, EpochMetrics)}

    def write_predictions(self, predictions: Sequence[Prediction], split: str | None = None) -> Path:
        """Store the predictions of the reported split, or of another one in a file of its own."""
        path = self.path / f"predictions-{split}.jsonl" if split else self.predictions
        write_text(path, "".join(json.dumps(prediction.model_dump()) + "\n" for prediction in predictions))
        return path

    def read_predictions(self) -> list[Prediction]:
        """The predictions of the reported split, in the order of its rows, with the same number of logits or one for each tag.

        Raises:
            MissingError: there are none.
            UsageError: a line is damaged; it is named.
        """
        predictions = _read_lines(self.predictions, "predictions", Prediction.model_validate)
        for number, prediction in enumerate(predictions, start=1):
            tags = prediction.prediction if isinstance(prediction.prediction, list) else []
            if len(prediction.logits) not in (len(predictions[0].logits), len(tags)):
                raise UsageError(f"{self.predictions} is damaged (line {number}: logits: not as many as in line 1); {_AGAIN}")
        return predictions

    def check_is_of(self, config: RunConfig) -> None:
        """Refuse a directory that holds a run of another configuration.

        Raises:
            ConflictError: it does; the first differing key is named.
        """
        if not self.config_file.is_file() and not self.results.is_file():
            return
        stored = self.read_config()
        for kind, own, copy in self._user_files(config):
            here, there = (file.read_text(encoding="utf-8") if file and file.is_file() else None for file in (own, copy))
            if here != there:
                differs = _first_differing_line(there or "", here or "")
                raise ConflictError(
                    f"{self.path} holds a run by another {kind.removesuffix('s')} {copy.name} ({differs}); {_OTHER_PLACE}"
                )
        if stored.hash != config.hash:
            raise ConflictError(
                f"{self.path} holds a run of another configuration ({_first_difference(stored, config)}); {_OTHER_PLACE}"
            )

    def leftovers(self) -> list[Path]:
        """What a killed process left: half-written files, and the checkpoint of a finished run."""
        folders = (self.path, self.checkpoint.parent)
        temporary = [path for folder in folders for path in folder.glob(f".*{TEMPORARY_SUFFIX}")]
        finished = self.results.is_file() and self.checkpoint.is_file()
        return [*temporary, *([self.checkpoint] if finished else [])]

    def remove_leftovers(self) -> None:
        """Remove what a killed process left. The caller holds the lock."""
        for path in self.leftovers():
            path.unlink(missing_ok=True)

    def remove_leftovers_if_unlocked(self) -> None:
        """The same, unless another process is writing here."""
        if self.leftovers():
            with locked(self.lock, wait=False) as is_held:
                if is_held:
                    self.remove_leftovers()

    def clear(self) -> None:
        """Remove a former run's files, results.json first, so that no half of it can be mistaken for a run.

        The copies of the user's own YAMLs stay for `write_config`: the next run may be made from them, and from them alone.
        """
        others = (
            *self.path.glob("predictions-*.jsonl"),
            self.metrics,
            self.failure,
            self.checkpoint,
        )
        for path in (self.results, self.delta, self.predictions, *others):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.tensorboard, ignore_errors=True)
        self.config_file.unlink(missing_ok=True)

    def clear_if_unlocked(self) -> None:
        """Remove a former run's files; see `clear`.

        Raises:
            ConflictError: another process is writing here.
        """
        if not self.path.is_dir():
            return
        with locked(self.lock, wait=False) as is_held:
            if not is_held:
                raise ConflictError(f"another process is writing {self.path}; wait for it")
            self.clear()


def run_directories(results_dir: Path) -> list[RunDirectory]:
    """Every run in a results directory, finished or not, sorted by path."""
    folders = sorted(_run_folders(results_dir), key=lambda folder: folder.split(os.sep))  # noqa: PTH206 (thousands of them)
    return [RunDirectory(Path(folder)) for folder in folders]


def has_runs(results_dir: Path) -> bool:
    """Whether a results directory has a run, finished or not."""
    return next(_run_folders(results_dir), None) is not None


def _run_folders(results_dir: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(results_dir / "runs"):
        if {"config.yaml", "results.json", "failure.json"} & set(files):
            subfolders[:] = [name for name in subfolders if name not in _SUBFOLDERS]
            yield folder


def directories_with_runs(results_dir: Path) -> list[Path]:
    """The results directories with finished runs in `results_dir` and beside it."""
    folders = {*results_dir.glob("*/runs"), *results_dir.parent.glob("*/runs")}
    return sorted(folder.parent for folder in folders if any(folder.glob("*/*/*/*/seed*/results.json")))


def _read_lines(path: Path, what: str, parse_line: Callable[[dict[str, Any]], Line]) -> list[Line]:
    lines = []
    for number, content in enumerate(read_jsonl(path, what=what), start=1):
        try:
            lines.append(parse_line(content))
        except ValidationError as error:
            raise UsageError(f"{path} is damaged (line {number}: {describe_error(error, Record)}); {_AGAIN}") from None
    return lines


def config_text(config: RunConfig) -> str:
    """The content of config.yaml: the resolved configuration."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return f"# the resolved configuration of this run; hash {config.hash}\n{text}"


def _named_files(config: RunConfig) -> list[tuple[str, str]]:
    """The YAMLs that a configuration names and does not hold, as kind and name."""
    return [("tasks", config.task), *(("methods", stage.method) for stage in config.stages)]


def _first_difference(stored: RunConfig, requested: RunConfig) -> str:
    left, right = stored.model_dump(mode="json"), requested.model_dump(mode="json")
    for key, value in right.items():
        if left[key] != value and isinstance(left[key], dict) and isinstance(value, dict):
            inner = next((name for name in value if left[key].get(name) != value[name]), None)
            if inner:
                return f"{key}.{inner} is {left[key].get(inner)} there, {value[inner]} here"
        if left[key] != value:
            return f"{key} is {left[key]} there, {value} here"
    return "in its keys"


def _first_differing_line(stored: str, own: str) -> str:
    pairs = zip_longest(stored.splitlines(), own.splitlines(), fillvalue="")
    left, right = next(((left.strip(), right.strip()) for left, right in pairs if left != right), ("", ""))
    return f"'{left}' there, '{right}' here"
