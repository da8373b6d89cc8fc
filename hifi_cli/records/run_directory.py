"""Where a run keeps its files, and which of them say that it is finished."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, MissingError, UsageError
from hifi_cli.files import make_directory, read_jsonl, write_text
from hifi_cli.records import run_files
from hifi_cli.records.run_status import checkpoint_path, failure_path, leftovers


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run, `RunConfig.place` in a results directory; results.json is written last."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig, results_dir: Path) -> "RunDirectory":
        """The directory a configuration's run belongs in."""
        return cls(results_dir / config.run_path)

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def delta(self) -> Path:
        return self.path / "delta.safetensors"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def manifest(self) -> Path:
        return run_files.manifest_path_in(self.path)

    @property
    def results(self) -> Path:
        return run_files.path_in(self.path)

    @property
    def failure(self) -> Path:
        """Where a grid records a failed attempt; see `hifi_cli.records.run_status`."""
        return failure_path(self.path)

    @property
    def checkpoint(self) -> Path:
        return checkpoint_path(self.path)

    @property
    def own(self) -> Path:
        """Where copies of the user's own YAMLs are kept, as KIND/NAME.yaml: without them the run could not be read again."""
        return self.path / "own"

    def config(self) -> RunConfig:
        """The configuration the directory holds.

        Raises:
            MissingError: it holds none.
        """
        path = self.path / "config.yaml"
        if not path.is_file():
            raise MissingError(f"no run in {self.path} (config.yaml is missing)")
        return parse(RunConfig, read_yaml(path), str(path))

    @contextmanager
    def opened(self) -> Iterator[RunConfig]:
        """The configuration the directory holds; inside, the run's own YAMLs and no others stand for the names in it.

        Raises:
            MissingError: it holds none.
        """
        config = self.config()
        copies = {named: self._own(*named) for named in _named(config)}
        with registry.only_user_files({named: path for named, path in copies.items() if path.is_file()}):
            yield config

    def _own(self, kind: str, name: str) -> Path:
        return self.own / kind / f"{name}.yaml"

    def write_config(self, config: RunConfig) -> None:
        """Store the resolved configuration, and copies of the user's own YAMLs that it names."""
        for kind, name in _named(config):
            own, copy = registry.user_file(kind, name), self._own(kind, name)
            if own and own.resolve() != copy.resolve():
                make_directory(copy.parent)
                write_text(copy, own.read_text(encoding="utf-8"))
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_text(self.path / "config.yaml", f"# the resolved configuration of this run; hash {config.hash}\n{text}")

    def read_results(self) -> dict[str, Any]:
        """A finished run's results.json; see `hifi_cli.records.run_files.read`."""
        return run_files.read(self.path)

    def check_is_of(self, config: RunConfig) -> None:
        """Refuse a directory that holds a run of another configuration.

        Raises:
            ConflictError: it does; the first differing key is named.
        """
        if not (self.path / "config.yaml").is_file():
            return
        held = self.config()
        for kind, name in _named(config):
            files = registry.user_file(kind, name), self._own(kind, name)
            then_and_now = {file.read_text(encoding="utf-8") if file and file.is_file() else None for file in files}
            if len(then_and_now) > 1:
                raise ConflictError(
                    f"{self.path} holds a run by another {kind.removesuffix('s')} file {name}.yaml;"
                    " use --force to replace it or another --results-dir"
                )
        if held.hash != config.hash:
            raise ConflictError(
                f"{self.path} holds a run of another configuration ({_difference(held, config)});"
                " use --force to replace it or another --results-dir"
            )

    def sweep(self) -> None:
        """Remove what a killed process left; see `hifi_cli.records.run_status.leftovers`. The caller holds the lock."""
        for path in leftovers(self.path):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove a former run's files, results.json first, so that no half of it can be mistaken for a run."""
        others = (*self.path.glob("predictions-*.jsonl"), self.metrics, self.manifest, self.failure, self.checkpoint)
        for path in (self.results, self.delta, self.predictions, *others):
            path.unlink(missing_ok=True)
        for folder in (self.path / "tensorboard", self.own):
            shutil.rmtree(folder, ignore_errors=True)
        (self.path / "config.yaml").unlink(missing_ok=True)

    def write_predictions(self, rows: list[dict[str, Any]], split: str | None = None) -> Path:
        """One JSON object per row of the reported split, or of another one in a file of its own."""
        path = self.path / f"predictions-{split}.jsonl" if split else self.predictions
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
        return path

    def read_predictions(self) -> list[dict[str, Any]]:
        """The stored predictions, in the order of the split's rows; each has `logits`, as many as the others.

        Raises:
            MissingError: there are none.
            UsageError: they are damaged.
        """
        rows = read_jsonl(self.predictions, what="predictions")
        for number, row in enumerate(rows, start=1):
            if not _is_logits(row.get("logits")) or len(row["logits"]) != len(rows[0]["logits"]):
                raise UsageError(f"{self.predictions} is damaged (line {number}: logits); train the run again with --force")
        return rows


def _is_logits(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int | float) for number in value)


def _named(config: RunConfig) -> list[tuple[str, str]]:
    """The YAMLs that a configuration names and does not hold, as kind and name."""
    stage1 = [("methods", config.stage1.method)] if config.stage1 else []
    return [("tasks", config.task), ("methods", config.method), *stage1]


def _difference(held: RunConfig, wanted: RunConfig) -> str:
    left, right = held.model_dump(mode="json"), wanted.model_dump(mode="json")
    for key, value in right.items():
        if left[key] != value and isinstance(value, dict):
            inner = next((name for name in value if left[key].get(name) != value[name]), None)
            if inner:
                return f"{key}.{inner} is {left[key].get(inner)} there, {value[inner]} here"
        if left[key] != value:
            return f"{key} is {left[key]} there, {value} here"
    return "in its keys"
