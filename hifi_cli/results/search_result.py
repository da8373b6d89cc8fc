"""chosen-PROTOCOL-BACKBONE.json: the settings that a search tried, and the best one of each task and method."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hifi_cli.config.registry import name_of
from hifi_cli.errors import ConflictError
from hifi_cli.files import locked, safe_name
from hifi_cli.results.stored_file import Record, StoredFile


class SettingScore(Record):
    """A tried setting.

    Attributes:
        setting: configuration keys and their values, as on the command line.
        score: mean over seeds on the selection split, a fraction of 1; None where a run diverged.
        deviation: sample standard deviation over seeds; None for fewer than two.
        seeds: number of seeds.
    """

    setting: dict[str, str]
    score: float | None
    deviation: float | None = None
    seeds: int


class MethodSearch(Record):
    """The settings of one task and method.

    Attributes:
        task, method: names, also of a user's own YAML.
        chosen: the best one; None where a run of every setting diverged.
        config: keys and values that the grid and the command line set for every run.
        arguments: what the command line takes in place of the names, by `task` and `method`: paths of the user's own YAMLs.
    """

    task: str
    method: str
    chosen: SettingScore | None
    tried: list[SettingScore]
    config: dict[str, str] = {}
    arguments: dict[str, str] = {}


@dataclass(frozen=True)
class SettingMean:
    """A setting that was tried on several tasks.

    Attributes:
        scores: its score on each task; None where it diverged or was not tried.
    """

    setting: dict[str, str]
    scores: dict[str, float | None]

    @property
    def mean(self) -> float | None:
        """Mean over tasks, rounded so that equal scores in another order are equal; None if one is missing."""
        known = [score for score in self.scores.values() if score is not None]
        return round(statistics.fmean(known), 9) if len(known) == len(self.scores) else None


class SearchResult(StoredFile):
    """The outcome of a grid whose settings vary.

    Attributes:
        protocol, backbone: names, also of a user's own YAML or directory.
        searches: one for each task and method.
        varied: the keys that varied for each method, and their values.
        trials: number of settings tried per method; None: every combination.
        splits: the examples whose scores chose: `holdout` or `few-shot`, or the reported `validation` split.
        arguments: what the command line takes in place of the names, by `protocol` and `backbone`.
    """

    description: ClassVar[str] = "search result"
    remedy: ClassVar[str] = "repeat the grid"

    grid: str
    protocol: str
    backbone: str
    searches: list[MethodSearch]
    varied: dict[str, dict[str, list[str]]] = {}
    trials: int | None = None
    splits: list[str] = []
    arguments: dict[str, str] = {}

    def budget(self, search: MethodSearch) -> str:
        """Return what was searched for one of the search's methods, and with how many trials, as text."""
        varied = self.varied.get(search.method, {})
        settings = math.prod(map(len, varied.values()))
        trials = (
            f"{len(search.tried)} of {settings} settings" if settings > len(search.tried) else f"{len(search.tried)} settings"
        )
        keys = [
            f"{key} ({', '.join(values) if len(values) < 5 else f'{len(values)} values from {values[0]} to {values[-1]}'})"
            for key, values in varied.items()
        ]
        split = f", chosen on {' and '.join(self.splits)}" if self.splits else ""
        return f"{trials} of {' and '.join(keys) or 'unknown keys'}{split}"

    def over_tasks(self, method: str) -> list[SettingMean]:
        """Every setting of a method with its scores on all tasks; none if only one task was searched."""
        searches = [search for search in self.searches if search.method == method]
        scores: dict[tuple[tuple[str, str], ...], dict[str, float | None]] = {}
        for search in searches if len(searches) > 1 else []:
            for tried in search.tried:
                by_task = scores.setdefault(tuple(tried.setting.items()), {search.task: None for search in searches})
                by_task[search.task] = tried.score
        return [SettingMean(dict(setting), by_task) for setting, by_task in scores.items()]

    def best_over_tasks(self, method: str) -> SettingMean | None:
        """The setting with the highest mean over tasks, the first of equal ones; None if there is no mean."""
        known = [(tried.mean, tried) for tried in self.over_tasks(method) if tried.mean is not None]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    def with_earlier(self, path: Path) -> "SearchResult":
        """Return this result with the searches that the file has of other tasks and methods, if it is there.

        A search that varied its method's keys otherwise is left out: it is another search.

        Raises:
            ConflictError: the file's searches had another number of trials, or chose on other examples.
        """
        if not path.exists():
            return self
        earlier = SearchResult.read(path)
        if earlier.searches and (earlier.trials, earlier.splits) != (self.trials, self.splits):
            raise ConflictError(
                f"{path} has choices of a search with {earlier._terms}, not {self._terms}: such choices are not mixed;"
                " use another --results-dir, or delete the file (its runs stay)"
            )
        names = {(search.task, search.method) for search in self.searches}
        kept = [
            search
            for search in earlier.searches
            if (search.task, search.method) not in names
            and earlier.varied.get(search.method) == self.varied.get(search.method, earlier.varied.get(search.method))
        ]
        return self.model_copy(update={"searches": [*kept, *self.searches], "varied": {**earlier.varied, **self.varied}})

    @property
    def _terms(self) -> str:
        trials = "every setting" if self.trials is None else f"--trials {self.trials}"
        return f"{trials} on {' and '.join(self.splits) or 'unknown examples'}"

    def merge_into(self, path: Path) -> None:
        """Write `with_earlier(path)` to `path`; grids that finish at the same moment wait for each other."""
        with locked(path.with_name(f".{path.name}.lock"), wait=True):
            self.with_earlier(path).write(path)

    @staticmethod
    def path(results_dir: Path, grid: str, protocol: str, backbone: str) -> Path:
        """The file of a search in a results directory: a grid may be searched under several protocols and backbones.

        Args:
            protocol, backbone: as on a command line.
        """
        names = (safe_name(Path(name_of(argument)).name) for argument in (protocol, backbone))
        return results_dir / "grids" / grid / f"chosen-{'-'.join(names)}.json"

    @staticmethod
    def paths(results_dir: Path) -> dict[str, list[Path]]:
        """The files of all searches in a results directory, by the grid's name."""
        files: dict[str, list[Path]] = {}
        for path in sorted((results_dir / "grids").glob("*/chosen-*.json")):
            files.setdefault(path.parent.name, []).append(path)
        return files
