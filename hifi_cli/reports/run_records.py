"""Finished runs, as tables and comparisons read them."""

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.errors import MissingError
from hifi_cli.files import command_line, safe_name
from hifi_cli.records.run_directory import RunDirectory, directories_with_runs, finished_runs, variant_paths
from hifi_cli.records.run_files import RunResult
from hifi_cli.records.search_result import SearchResult
from hifi_cli.reports.changed_settings import changed_settings

logger = logging.getLogger("hifi")


@dataclass(frozen=True)
class RunRecord:
    """A finished run."""

    directory: RunDirectory
    result: RunResult

    @property
    def method_and_task(self) -> tuple[str, str]:
        """The names of method and task."""
        return self.result.method, self.result.task

    @property
    def shots(self) -> str:
        """Training rows per class of a few-shot run, or `full`."""
        return "full" if self.result.shots is None else str(self.result.shots)

    @property
    def setting(self) -> tuple[str, str, str]:
        """Protocol, backbone and shots: runs that differ in one of them never share a table."""
        return self.result.protocol, self.result.backbone, self.shots

    @property
    def conditions(self) -> dict[str, object]:
        """What runs of different methods must share for a comparison of their scores to make sense."""
        result = self.result
        return {
            "epochs": result.epochs.total if result.epochs else None,
            "shots": self.shots,
            "reported epoch": result.report,
            "selection": result.selection,
            "precision": result.precision,
            "limit": result.limit,
            "encoder weights": result.backbone_weights,
            "data": result.data,
            "split": result.split,
            "primary metric": result.primary_metric,
        }

    @property
    def identity(self) -> dict[str, object]:
        """What runs of one method must share, apart from the seed, for a mean over them to make sense."""
        return {
            **self.conditions,
            "method code": self.result.method_code,
            "heads": self.result.heads_sha256,
            "settings": self.result.setting_hash,
        }

    def score(self, name: Score | None, metric: str | None = None) -> float | None:
        """A metric at the `last`, `best` or `max` epoch, as a fraction of 1.

        Args:
            name: None: the epoch that the run's protocol reports.
            metric: None: the primary one.

        Returns:
            None where the run did not keep that number: another metric's epochs are read from metrics.jsonl.
        """
        result = self.result
        name = name or result.report
        if metric is None or metric == result.primary_metric:
            return getattr(result.scores, name, None)
        if name == result.kept_score:  # the model that was kept
            return result.metrics.get(metric)
        epochs = self.directory.read_epochs() if self.directory.metrics.is_file() else {}
        values = {number: line.metrics[metric] for number, line in epochs.items() if metric in line.metrics}
        if not values:
            return None
        if name == "max":
            return max(values.values()) if result.scores and result.scores.max is not None else None
        return values.get(result.epoch(name))

    @cached_property
    def changed_settings(self) -> str:
        """The keys of the run's configuration that are not its protocol's, with both values; empty where there are none."""
        return changed_settings(self.directory, self.result)

    @property
    def flags(self) -> list[str]:
        """What sets the run apart from an ordinary one: `diverged`, or `collapsed`, `limited` or both."""
        if not self.result.is_done:
            return [self.result.status]
        flags = {"collapsed": self.result.collapsed, "limited": self.result.limited}
        return [name for name, is_set in flags.items() if is_set]


@dataclass(frozen=True)
class Results:
    """A results directory, whose runs are read once and at the first need.

    Attributes:
        data_dir: the command's `--data-dir`, for the commands of missing runs.
    """

    directory: Path
    data_dir: Path | None = None

    @property
    def arguments(self) -> list[str]:
        """The directories as options of a command that is printed."""
        return [*self.results_argument, *(["--data-dir", str(self.data_dir)] if self.data_dir else [])]

    @property
    def results_argument(self) -> list[str]:
        """The results directory as an option of a command that is printed."""
        return ["--results-dir", str(self.directory)] if self.directory != Path("results") else []

    @cached_property
    def records(self) -> list[RunRecord]:
        """All finished runs, sorted by path; the labels of the user's own methods and tasks are known from then on.

        Raises:
            UsageError: a run is damaged, or at another path than its configuration's.
        """
        records = [RunRecord(directory, result) for directory, result in finished_runs(self.directory)]
        registry.use_files_of_runs(_user_files(records))
        return records

    def backbone_argument(self, name: str) -> str:
        """What `--backbone` takes for a backbone: a shipped name, else the directory or hub id that its first run was given."""
        record = next((record for record in self.records if record.result.backbone == name), None)
        if name in registry.names("backbones") or record is None:
            return name
        backbone = record.result.config.get("backbone", {})
        return str(backbone.get("path") or backbone.get("hub") or name)

    @cached_property
    def variants(self) -> "Counter[tuple[str, str, str]]":
        """Number of finished runs of searches, by protocol, backbone and method; no table of scores shows them."""
        return Counter((path.parts[0], path.parts[1], path.parts[3]) for path in variant_paths(self.directory))

    @cached_property
    def searches(self) -> list[SearchResult]:
        """The finished searches.

        Raises:
            UsageError: the file of one is damaged.
        """
        return [SearchResult.read(path) for paths in SearchResult.paths(self.directory).values() for path in paths]

    def variant_notes(self, protocol: str, backbone: str, methods: Collection[str] = ()) -> list[str]:
        """Return a note on the runs of searches that a table leaves out; none where there is none.

        Args:
            methods: only of these; empty: of all.
        """
        setting = (safe_name(protocol), safe_name(backbone))
        names = {safe_name(method) for method in methods}
        count = sum(self.variants[key] for key in self.variants if key[:2] == setting and (not names or key[2] in names))
        runs = f"{count} run{'s' * (count > 1)} of searches and other variants"
        return [f"{runs} left out (hifi table search shows searches)"] if count else []

    def no_run_error(self, command: str) -> MissingError:
        """Return the error for a results directory without a finished run that `command` could show; it says where runs are."""
        if self.variants:
            where = "" if self.directory == Path("results") else f" --results-dir {self.directory}"
            count = self.variants.total()
            return MissingError(f"no finished run in {self.directory} but {count} of searches: hifi table search{where}")
        if others := directories_with_runs(self.directory):
            listed, first = ", ".join(map(str, others)), command_line([*command.split(), "--results-dir", str(others[0])])
            return MissingError(f"no finished run in {self.directory}, but in {listed}: {first}")
        return MissingError(f"no finished run in {self.directory}; make one with hifi train")

    def no_setting_error(self, **options: str | None) -> MissingError:
        """Return the error for options (`protocol`, `backbone`, `shots`) that no finished run has; it says which there are."""
        given = " ".join(f"--{name} {value}" for name, value in options.items() if value)
        present = [
            f"protocol {protocol} (backbone {backbone}{'' if shots == 'full' else f', {shots} shots'})"
            for protocol, backbone, shots in sorted({record.setting for record in self.records})
        ]
        return MissingError(f"no finished run of {given} in {self.directory}; there are runs of {' and '.join(present)}")

    def or_only_subdirectory(self, protocol: str | None = None) -> "Results":
        """These results; if they hold no run, those of the only directory inside that holds some, as `make demo` leaves them.

        Args:
            protocol: that directory must hold runs of this protocol.
        """
        if self.records or self.variants:
            return self
        inner = [
            Results(path, self.data_dir) for path in directories_with_runs(self.directory) if path.parent == self.directory
        ]
        if len(inner) != 1 or (protocol and all(record.result.protocol != protocol for record in inner[0].records)):
            return self
        logger.info(f"no finished run in {self.directory}: reading {inner[0].directory}")
        return inner[0]

    @property
    def names(self) -> dict[str, set[str]]:
        """The methods, tasks and protocols that were run."""
        return {
            "methods": {record.result.method for record in self.records},
            "tasks": {record.result.task for record in self.records},
            "protocols": {record.result.protocol for record in self.records},
        }


def _user_files(records: list[RunRecord]) -> dict[tuple[str, str], Path]:
    """Return the copies of users' own YAMLs that runs keep, by kind and name."""
    directories = {
        key: record.directory
        for record in records
        for key in (("methods", record.result.method), ("tasks", record.result.task))
        if key[1] not in registry.names(key[0])
    }
    files = {(kind, name): directory.user_files / kind / f"{name}.yaml" for (kind, name), directory in directories.items()}
    return {key: file for key, file in files.items() if file.is_file()}
