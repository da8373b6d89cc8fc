"""Refuse finished runs whose data or local weights are no longer those that they were trained on."""

from functools import cache
from pathlib import Path

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import RunResult
from hifi_cli.tasks import data_sources, task_spec


class InputCheck:
    """Compares finished runs with the files that they would read now; each file is read once.

    Args:
        data_dir: the directory of the data; None: only tasks that name one are compared.
    """

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self._data = cache(self._read_data)
        self._weights_id = cache(_weights_id)

    def check(self, config: RunConfig, directory: RunDirectory, result: RunResult) -> None:
        """Compare a finished run; what is not on this machine is not compared.

        Raises:
            ConflictError: its data or its local weights have changed.
        """
        source, fingerprint = self._data(config.task)
        if fingerprint and fingerprint != result.data:
            raise ConflictError(
                f"{directory.path} holds a run on other data than those in {source};"
                " use --force to replace it or another --results-dir"
            )
        if not config.backbone.path or config.start_from:
            return
        weights_id = self._weights_id(config.backbone.path)
        if weights_id and weights_id != result.backbone_weights:
            raise ConflictError(  # two encoders may share the name of a directory
                f"{directory.path} holds a run on other weights than those in {config.backbone.path};"
                " use --force to replace it, variant=NAME, or another --results-dir"
            )

    def _read_data(self, task: str) -> tuple[Path | None, dict[str, str]]:
        spec = task_spec.load(task)
        own = Path(spec.local.directory) if spec.local.directory else None
        source = own if own and own.is_dir() else self.data_dir
        return source, dict(data_sources.fingerprint(spec, source)) if source else {}


def _weights_id(path: str) -> str | None:
    from hifi_cli.models.pretrained import local_weights_id

    return local_weights_id(path)
