"""Load a task's rows from their source: the generated demo data, local files or the Hugging Face hub."""

from collections.abc import Iterable
from pathlib import Path

from hifi_cli.errors import MissingError
from hifi_cli.files import atomic_directory, file_digest, locked
from hifi_cli.tasks import local_files
from hifi_cli.tasks.task_spec import REQUIRED_SPLITS, Split, TaskData, TaskSpec


def load(spec: TaskSpec, *, data_dir: Path | None, results_dir: Path, required: Iterable[Split] = REQUIRED_SPLITS) -> TaskData:
    """Load a task's rows: generated, from `data_dir`, or from the hub when no directory is given.

    Raises:
        MissingError: the source is missing, or a `required` split of the local files is.
        UsageError: the rows do not fit the task.
    """
    if spec.local.generated:
        return local_files.load(spec, _demo_directory(results_dir))
    if data_dir:
        if not data_dir.is_dir():
            raise MissingError(f"--data-dir {data_dir}: no such directory")
        return local_files.load(spec, data_dir, required=required)
    if spec.hub:
        from hifi_cli.tasks import hub_dataset

        return hub_dataset.load(spec, spec.hub)
    raise MissingError(f"task {spec.label} has no hub repository: give --data-dir")


def _demo_directory(results_dir: Path) -> Path:
    """Return the directory of the demo data, which is written first if it does not exist.

    Its name contains a digest of the generator's source, so that another version of the generator uses another directory.
    """
    from hifi_cli import demo_data

    directory = results_dir / "data" / f"demo-{file_digest(Path(demo_data.__file__))[:8]}"
    with locked(results_dir / "data" / ".lock", wait=True):
        if not directory.is_dir():
            with atomic_directory(directory) as temporary:
                demo_data.write(temporary)
    return directory
