"""The identity of a run: all that decides its numbers.

A finished run is the same run only if all of it is the same: configuration, task as it is read,
data, encoder, own code, and the versions of the random draws. Data, encoder and the run to start
from may be on another machine, as for a grid whose commands are only listed: the configuration then
decides, and the command says so.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hifi_cli.config.draws import changed_draws, draws_of, present_versions
from hifi_cli.config.own_code import own_code_digest
from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest
from hifi_cli.errors import ConflictError, MissingError, logger
from hifi_cli.models.encoder_files import digest_of_backbone
from hifi_cli.records.layout import OTHER_PLACE, RunDirectory
from hifi_cli.records.record import RunResult, labelled_splits
from hifi_cli.run_paths import relative_run_path
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.task_spec import TaskData, TaskSpec, task_digest


class RunIdentity:
    """The parts of an identity besides the configuration and the draws.

    Task and code are read at once. Data and encoder are read when they are first asked for: they
    take long, and rows of another task may not even be readable.

    Attributes:
        task_digest: of the task as it is read.
        code_digest: of the user's own code; None: there is none.
    """

    def __init__(self, config: RunConfig, task: TaskSpec, reader: "IdentityReader") -> None:
        self.task_digest = task_digest(task)
        self.code_digest = own_code_digest(config)
        self._config = config
        self._task = task
        self._reader = reader

    @cached_property
    def data_digests(self) -> dict[str, str] | None:
        """Digest of every labelled split's rows; None: not on this machine."""
        return self._reader.data_digests_of(self._task)

    @cached_property
    def encoder_digest(self) -> str | None:
        """Digest of weights, configuration and tokenizer, and of what the run starts from.

        None: not on this machine.

        Raises:
            MissingError: the run to start from is not on this machine.
        """
        return self._reader.encoder_digest_of(self._config)

    @cached_property
    def _start_is_absent(self) -> bool:
        """Whether the run to start from is not on this machine, as where only this one was copied."""
        start = self._config.start_from
        if not start:
            return False
        try:
            run_to_start_from(start, self._reader.results_dir).read_result()
        except MissingError:
            return True
        return False

    def finished_run(self, directory: RunDirectory) -> RunResult | None:
        """Return the finished run of this identity in a directory; None: it is to be trained.

        Raises:
            ConflictError: the directory holds a run that differs; the message names the field.
        """
        # The configuration is compared first: it is stored when a run begins, and the rest with its
        # results.
        directory.check_is_of(self._config)
        if not directory.results.is_file():
            return None
        result = directory.read_result()
        # Data and encoder may be gigabytes: they are read only if nothing quicker tells the runs
        # apart.
        differing = self._quick_differences(result) or self._slow_differences(result)
        if differing:
            raise ConflictError(
                f"{directory.path} holds a run with {'; '.join(differing)}; {OTHER_PLACE}"
            )
        if self.data_digests is None:
            self._reader.log_absent_once(f"the data of {self._config.task} are not on this machine")
        if self._start_is_absent:
            start = self._config.start_from
            self._reader.log_absent_once(f"the run of start_from={start} is not on this machine")
        elif self.encoder_digest is None:
            name = self._config.backbone.name
            self._reader.log_absent_once(f"the encoder {name} is not on this machine")
        return result

    def parts_of_training(
        self,
        data_digests: Mapping[str, str],
        encoder_digest: str,
        heads: list[list[int]] | None,
        *,
        trains_all_words: bool,
    ) -> dict[str, Any]:
        """Return all that a checkpoint must agree in to be continued, by the words of messages.

        More must agree than in a finished run, which is compared by its record alone: a training
        goes on only with the same attention heads and the same words that train, because the
        optimizer's state fits no others. Data and encoder are those that the run has loaded.

        Args:
            data_digests: of the rows of every split.
            encoder_digest: of weights, configuration, tokenizer, and of what the run starts from.
            heads: that the method tunes, by layer; None: it needs none.
            trains_all_words: whether words train that no train example has, where the method could
                leave them out.
        """
        parts: dict[str, Any] = {
            "the configuration": self._config.config_hash,
            "the task as it is read": self.task_digest,
            "the code of your own": self.code_digest,
            "the encoder's weights, configuration or tokenizer": encoder_digest,
            "the attention heads": digest(heads),
            "one or several processes": trains_all_words,
        }
        for split, value in labelled_splits(data_digests).items():
            parts[f"the data of {split}"] = value
        # A record has the draws of the devices that trained the run. A training may go on elsewhere,
        # so that the draws of both kinds of device count.
        draws = draws_of(self._config, ("cpu", "cuda"), selects_heads=heads is not None)
        for name, version in draws.items():
            parts[f"the random draws ({name})"] = version
        return parts

    def _quick_differences(self, result: RunResult) -> list[str]:
        """Return how a finished run's task, code and draws differ, each with its field."""
        found = []
        if self.task_digest != result.task_digest:
            found.append("another task as it is read (task_digest)")
        if self.code_digest != result.method_code:
            found.append("other code of your own (method_code)")
        for name, version in changed_draws(result.draws).items():
            present = present_versions().get(name)
            found.append(
                f"other random draws: {name}, version {version} there, {present} here (draws)"
            )
        return found

    def _slow_differences(self, result: RunResult) -> list[str]:
        """Return how a finished run's data and encoder differ, where they are on this machine."""
        found = []
        if self.data_digests is not None:
            stored = labelled_splits(result.data)
            splits = sorted({*stored, *self.data_digests})
            differing = [
                split for split in splits if stored.get(split) != self.data_digests.get(split)
            ]
            if differing:
                found.append(f"other data of {' and '.join(differing)} (data)")
        if self._start_is_absent or self.encoder_digest is None:
            return found
        if self.encoder_digest != result.backbone_weights:
            found.append(
                "another encoder, by its weights, configuration or tokenizer (backbone_weights)"
            )
        return found


class IdentityReader:
    """Reads the identities of the runs of a command; what several runs share is read once.

    Args:
        load_data: gives a task's rows, where the command has them anyway.
    """

    def __init__(
        self,
        results_dir: Path,
        data_dir: Path | None,
        load_data: Callable[[TaskSpec], TaskData] | None = None,
    ) -> None:
        self.results_dir = results_dir
        self.data_dir = data_dir
        self._load_data = load_data or self._read_data
        self._data: dict[str, dict[str, str] | None] = {}
        self._encoders: dict[str, str | None] = {}
        self._logged: set[str] = set()

    def identity(self, config: RunConfig, task: TaskSpec) -> RunIdentity:
        """Return what decides a run's numbers besides its configuration and the draws."""
        return RunIdentity(config, task, self)

    def check_finished(self, config: RunConfig, task: TaskSpec) -> RunResult | None:
        """Return the finished run of a configuration; None: it is to be trained.

        Raises:
            ConflictError: its directory holds a run that differs; the message names the field.
        """
        directory = RunDirectory.of(config, self.results_dir)
        return self.identity(config, task).finished_run(directory)

    def log_absent_once(self, absence: str) -> None:
        """Log that something is not here, and what follows, once for all runs of a command.

        Args:
            absence: the clause that says what is not on this machine.
        """
        if absence not in self._logged:
            self._logged.add(absence)
            logger.info(
                f"{absence}: which of its runs are finished is told by their configurations alone"
            )

    def data_digests_of(self, task: TaskSpec) -> dict[str, str] | None:
        """Return the digest of every labelled split's rows; None: not on this machine."""
        # The task's whole YAML is the key, and not its name: a user's own task may have any name.
        key = task.model_dump_json()
        if key not in self._data:
            self._data[key] = self._read_digests(task)
        return self._data[key]

    def _read_digests(self, task: TaskSpec) -> dict[str, str] | None:
        """Read the digest of every labelled split's rows; None: not on this machine."""
        try:
            digests = task_sources.fingerprint_of_files(
                task, self.data_dir, lambda: self._load_data(task)
            )
        except MissingError:
            # Without its files, the configuration decides which run it is.
            return None
        if digests is None:
            return None
        return labelled_splits(digests)

    def _read_data(self, task: TaskSpec) -> TaskData:
        return task_sources.load(task, data_dir=self.data_dir)

    def encoder_digest_of(self, config: RunConfig) -> str | None:
        """Return the digest of a run's encoder and of what it starts from; None: not here.

        Raises:
            MissingError: the run to start from is not here.
        """
        key = config.backbone.model_dump_json()
        if key not in self._encoders:
            try:
                self._encoders[key] = digest_of_backbone(config.backbone)
            except MissingError:
                self._encoders[key] = None
        encoder = self._encoders[key]
        if encoder is None or not config.start_from:
            return encoder
        # The encoder is then the pretrained one with the changes of another run: a run that starts
        # from it is the same only if that run's delta is.
        start = run_to_start_from(config.start_from, self.results_dir).read_result()
        return digest_of_start(encoder, str(start.delta_sha256))


def digest_of_start(encoder: str, delta: str) -> str:
    """Return the digest of an encoder whose weights a finished run changed.

    Args:
        encoder: digest of the pretrained encoder.
        delta: SHA-256 of the run's delta.safetensors.
    """
    return digest([encoder, delta], 64)


def run_to_start_from(run: str, results_dir: Path) -> RunDirectory:
    """Find the run that `start_from` names: as given, or at its place in the results.

    Raises:
        MissingError: there is none.
    """
    stored = results_dir / relative_run_path(run)
    for path in (Path(run), stored):
        directory = RunDirectory(path)
        if directory.config_file.is_file():
            return directory
    raise MissingError(f"start_from={run}: no run there, nor in {stored}; train it first")
