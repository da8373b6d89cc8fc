"""Which runs of a grid cannot train here, because their data or their encoder is missing."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hifi_cli.errors import MissingError, logger
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.state import GridState
from hifi_cli.models import encoder_files
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.text import abbreviate, counted_noun


def refuse_missing_inputs(state: GridState, name: str) -> None:
    """Name what is missing before the first run starts; refuse a grid of which nothing can be done.

    The hub is asked for what is not on this machine, as each run would.

    Args:
        state: of the grid, whose runs train on this machine.
        name: of the grid.

    Raises:
        MissingError: no run has finished, and each lacks something.
    """
    inputs = _Inputs(state.data_dir)
    runs_without: Counter[str] = Counter()
    can_train = 0
    for cell in state.left:
        reasons = inputs.reasons(cell)
        runs_without.update(reasons)
        if not reasons:
            can_train += 1
    if runs_without and not can_train and not state.finished:
        reasons_in_words = abbreviate([*runs_without], "; ")
        raise MissingError(f"no run of grid {name} can train here: {reasons_in_words}")
    for reason, count in runs_without.items():
        runs = counted_noun(count, "run")
        logger.warning(f"{runs} of {len(state.cells):,} cannot train here: {reason}")


class _Inputs:
    """Looks for the data and encoders of runs, for each of them once.

    Args:
        data_dir: directory of the official data files.
    """

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self._reasons: dict[str, str] = {}

    def reasons(self, cell: GridCell) -> list[str]:
        """Return why a run cannot train here; none: it lacks nothing that can be told."""
        backbone = cell.config.backbone
        found = [
            self._reason(f"task {cell.task}", lambda: self._check_rows(cell.task)),
            self._reason(
                backbone.model_dump_json(),
                lambda: encoder_files.check_is_here(backbone, asks_hub=True),
            ),
        ]
        return [reason for reason in found if reason]

    def _check_rows(self, task: str) -> None:
        """Refuse a task whose rows are not here.

        Raises:
            MissingError: they are not.
        """
        task_sources.check_is_here(task_spec.load(task), self.data_dir, asks_hub=True)

    def _reason(self, what: str, check: Callable[[], None]) -> str:
        """Return why a check refuses; empty: it does not. Each thing is checked once."""
        if what not in self._reasons:
            try:
                check()
                self._reasons[what] = ""
            except MissingError as error:
                self._reasons[what] = str(error)
        return self._reasons[what]
