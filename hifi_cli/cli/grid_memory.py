"""The memory that the runs of a grid are expected to take, by which `hifi grid --jobs auto` shares GPUs."""

from collections.abc import Callable
from functools import cache

from hifi_cli.errors import HifiError
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.jobs import JobOptions
from hifi_cli.runs.plan import predicted_memory
from hifi_cli.runs.resources import ResourceCache


def predicted_memory_of(job_options: JobOptions) -> Callable[[GridCell], int | None]:
    """Return a function that predicts the memory of a run in bytes, by the plan that `--dry-run` prints, once per setting."""
    resources = ResourceCache(job_options.results_dir, job_options.data_dir)
    predictions: dict[str, int | None] = {}

    @cache  # a scheduler asks for the cells that wait again and again
    def predict(cell: GridCell) -> int | None:
        setting = cell.config.setting_hash
        if setting not in predictions:
            try:
                parts = predicted_memory(cell.config, resources)
            except HifiError:  # its own process refuses it; the other runs go on
                parts = None
            predictions[setting] = sum(parts) if parts else None
        return predictions[setting]

    return predict
