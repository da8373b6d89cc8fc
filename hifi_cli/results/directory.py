"""The directory of a run: its files, and everything that reads or writes them."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from hifi_cli.config import registry
from hifi_cli.config.base import flatten, parse
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import code_file
from hifi_cli.errors import ConflictError
from hifi_cli.files import TEMPORARY_SUFFIX, make_directory, read_jsonl, write_text
from hifi_cli.results.record import MetricsLine, Prediction, RunResult, validated

_OTHER_PLACE = "keep both with variant=NAME or another --results-dir, or replace it with --force"


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run; results.json is written last."""

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
        return self.path / "delta.safetensors"

    @property
    def results(self) -> Path:
        return self.path / "results.json"

    @property
    def checkpoint(self) -> Path:
        """The state of an unfinished run."""
        return self.path / "checkpoints" / "last.pt"

    @property
    def user_files(self) -> Path:
        """Copies of the user's own YAMLs, as KIND/NAME.yaml, with which the run is read again."""
        return self.path / "own"

    @property
    def predictions(self) -> Path:
        """Predictions of the reported split; others are in predictions-SPLIT.jsonl."""
        return self.path / "predictions.jsonl"

    # --- a run that begins, and ends

    def claim(self, config: RunConfig, is_held: bool, *, force: bool) -> RunResult | None:
        """The result of a finished run of this configuration; None: it is to be trained.

        Args:
            is_held: whether the caller got the lock.

        Raises:
            ConflictError: another process holds it, or the directory holds another run.
        """
        if not is_held:
            raise ConflictError(f"another process is writing {self.path}; wait for it")
        for part in self.path.glob(f"**/.*{TEMPORARY_SUFFIX}"):  # of a process that was killed
            part.unlink()
        if force:
            return None
        self.check_is_of(config)
        if not self.results.is_file():
            return None
        self.checkpoint.unlink(missing_ok=True)
        return self.read_result()

    def check_is_of(self, config: RunConfig) -> None:
        """Refuse a directory that holds a run of another configuration.

        Raises:
            ConflictError: it does; the first differing key is named.
        """
        if not self.config_file.is_file() and not self.results.is_file():
            return
        stored = self.read_config()
        for kind, own, copy in self._user_files(config):
            if _text_of(own) != _text_of(copy):
                raise ConflictError(f"{self.path} holds a run by another {kind.removesuffix('s')} {copy.name}; {_OTHER_PLACE}")
        if stored.hash != config.hash:
            left_keys, right_keys = (flatten(c.model_dump(mode="json")) for c in (stored, config))
            differing = next(
                (
                    f"{key} is {left_keys.get(key)} there, {right_keys.get(key)} here"
                    for key in {**right_keys, **left_keys}
                    if left_keys.get(key) != right_keys.get(key)
                ),
                "in its keys",
            )
            raise ConflictError(f"{self.path} holds a run of another configuration ({differing}); {_OTHER_PLACE}")

    def begin(self, config: RunConfig, *, anew: bool) -> None:
        """Write config.yaml; without a checkpoint to continue from, remove a former run first."""
        if anew or not self.checkpoint.is_file():
            self.clear()
        self.write_config(config)

    def finish(self, result: RunResult) -> None:
        """Store the result of the run, which is finished then."""
        result.write(self.results)
        self.checkpoint.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove a former run's files, results.json first: no half of it can be mistaken for a run.

        The copies of the user's own YAMLs stay for `write_config`: the next run may be made from
        them.
        """
        others = (self.metrics, self.checkpoint, self.config_file)
        splits = self.path.glob("predictions-*.jsonl")
        for path in (self.results, self.delta, self.predictions, *splits, *others):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)

    # --- its files

    def read_config(self) -> RunConfig:
        """The configuration: what results.json says, or config.yaml until there is one.

        Raises:
            MissingError: there is none.
        """
        if self.results.is_file():
            return parse(RunConfig, self.read_result().config, str(self.results))
        return parse(RunConfig, read_yaml(self.config_file), str(self.config_file))

    @contextmanager
    def opened(self, *, trust: bool = False) -> Iterator[RunConfig]:
        """The configuration; inside the block, names in it mean the run's own YAMLs and no others.

        Args:
            trust: whether the code of methods that the run's own YAMLs name may be executed.

        Raises:
            MissingError: there is none.
        """
        config = self.read_config()
        copies = {name: self._copy_of(*name) for name in _named_files(config)}
        own = {name: path for name, path in copies.items() if path.is_file()}
        with registry.only_user_files(own, trust=trust):
            yield config

    def _copy_of(self, kind: str, name: str) -> Path:
        return self.user_files / kind / f"{name}.yaml"

    def _user_files(self, config: RunConfig) -> Iterator[tuple[str, Path | None, Path]]:
        """What a configuration names: kind, the user's own file, its copy's place; code too."""
        for kind, name in _named_files(config):
            own, copy = registry.user_file(kind, name), self._copy_of(kind, name)
            yield kind, own, copy
            source = own or copy
            if kind == "methods" and source.is_file() and (code := code_file(source)):
                yield kind, own and own.parent / code, copy.parent / code

    def write_config(self, config: RunConfig) -> None:
        """Store the resolved configuration and copies of the user's own YAMLs and methods, and no others."""
        copies = {copy: own for _, own, copy in self._user_files(config) if own}
        for copy, own in copies.items():
            if own.resolve() != copy.resolve():
                make_directory(copy.parent)
                write_text(copy, own.read_text(encoding="utf-8"))
        for path in self.user_files.glob("**/*"):
            if path.is_file() and path not in copies:
                path.unlink()
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_text(self.config_file, f"# the resolved configuration of this run; hash {config.hash}\n{text}")

    def read_result(self) -> RunResult:
        """The result of a finished run.

        Raises:
            MissingError: the run is not finished.
            UsageError: it is damaged.
        """
        return RunResult.read(self.results)

    def write_metrics(self, lines: Sequence[MetricsLine]) -> None:
        """Begin metrics.jsonl with the lines of a run so far; at no moment is it missing."""
        write_text(self.metrics, "".join(map(_metrics_text, lines)))

    def append_metrics(self, line: MetricsLine) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(_metrics_text(line))

    def write_predictions(self, predictions: Sequence[Prediction], split: str | None = None) -> Path:
        """Store the predictions of the reported split, or of another one in a file of its own."""
        path = self.path / f"predictions-{split}.jsonl" if split else self.predictions
        lines = (json.dumps(prediction.model_dump()) + "\n" for prediction in predictions)
        write_text(path, "".join(lines))
        return path

    def read_predictions(self) -> list[Prediction]:
        """The predictions of the reported split, in the order of its rows.

        Raises:
            MissingError: there are none.
            UsageError: a line is damaged; it is named.
        """
        lines = read_jsonl(self.predictions, what="predictions")
        return [validated(Prediction, line, f"{self.predictions}, line {number}") for number, line in enumerate(lines, start=1)]


def run_directories(results_dir: Path) -> list[RunDirectory]:
    """Every run in a results directory, finished or not, sorted by path."""
    patterns = "runs/*/*/*/*/seed*", "runs/*/*/*/*/*/seed*"  # the second for variants
    found = [RunDirectory(path) for pattern in patterns for path in results_dir.glob(pattern)]
    runs = [run for run in found if run.config_file.is_file() or run.results.is_file()]
    return sorted(runs, key=lambda run: run.path)


def _metrics_text(line: MetricsLine) -> str:
    return json.dumps(line.model_dump(exclude_none=True)) + "\n"


def _text_of(path: Path | None) -> str:
    """The content of a user's file, or of its copy; empty where it is not there."""
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""


def _named_files(config: RunConfig) -> list[tuple[str, str]]:
    """The YAMLs that a configuration names and does not hold, as kind and name."""
    return [("tasks", config.task), *(("methods", stage.method) for stage in config.stages)]
