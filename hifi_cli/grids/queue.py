"""Train the cells of a grid: start a command for each, repeat what fails, and say what becomes of them."""

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from hifi_cli.errors import logger
from hifi_cli.files import safe_name
from hifi_cli.grids.attempts import Attempts
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.display import GridDisplay
from hifi_cli.grids.processes import Submit
from hifi_cli.grids.state import GridState, ready_cells
from hifi_cli.grids.watch import RunWatch, WarningsOfRuns
from hifi_cli.records.record import RunResult
from hifi_cli.text import format_number

# Between two looks at the runs, those too that other processes train.
_POLL_SECONDS = 1.0


def run(
    state: GridState,
    submit: Submit,
    logs: Path,
    where: Sequence[str] = (),
    *,
    force: bool = False,
    retries: int = 0,
) -> None:
    """Train the cells that are left, and keep in `state` what became of them.

    Runs that select heads need scores, once for a task and encoder: the first of them makes them,
    and the others wait. A run with `start_from` is submitted when that run of the grid has ended; if
    it failed, this one fails and says so. A line says what became of each run, and another one what
    its command has warned of. `GridDisplay` shows how far the grid and its runs are.

    Args:
        state: which cells are left.
        submit: starts a command.
        logs: directory for what the commands print.
        where: options that name data and results in every command.
        force: whether finished runs are repeated.
        retries: how often a failed run is repeated.
    """
    if not state.left:
        # Nothing is written: the disk may be read-only.
        return
    logs.mkdir(parents=True, exist_ok=True)
    queue = Queue(state, submit, logs, where, force=force, retries=retries)
    warnings = WarningsOfRuns()
    with GridDisplay(len(state.cells)) as display:
        while queue.is_busy:
            queue.start_ready()
            queue.start_what_others_left()
            for future in queue.ended_commands():
                ended = queue.settle(future)
                if ended:
                    warnings.say_new(ended.watch)
                    _say_outcome(state, ended.cell)
            for attempts in queue.running.values():
                warnings.say_new(attempts.watch)
            if display.is_due:
                _show(display, state, queue.training())


def _show(display: GridDisplay, state: GridState, training: Sequence[RunWatch]) -> None:
    """Show how far the grid is, and each of the runs that train."""
    now = time.monotonic()
    for run in training:
        run.look(now)
    running_cost = sum(run.cost_done for run in training)
    ended = len(state.finished) + len(state.failed)
    display.show(state.summary(running_cost), ended, training, now)


def _say_outcome(state: GridState, cell: GridCell) -> None:
    """Log what became of a cell that has ended."""
    if cell in state.finished:
        logger.info(_outcome(cell, state.finished[cell]))
    else:
        logger.warning(f"{cell.config.run_label}: failed: {state.failed[cell]}")


def _outcome(cell: GridCell, result: RunResult) -> str:
    """Return what became of a finished cell: its score and what stands against it."""
    label = cell.config.run_label
    if not result.is_done:
        return f"{label}: diverged: {result.reason}"
    text = f"{label}: {result.primary_metric} {format_number(100 * result.score(), '.2f')}"
    if result.collapsed:
        text += ", collapsed"
    if result.limit is not None:
        text += ", limited"
    return text


class Queue:
    """The cells of a grid that wait, run, or are trained by other processes.

    Attributes:
        waiting: cells to start as soon as those that they start from have ended.
        running: commands of this grid.
        elsewhere: cells that other processes train. They are looked at again and again: such a
            process finishes the run, or leaves it to this grid.
    """

    def __init__(
        self,
        state: GridState,
        submit: Submit,
        logs: Path,
        where: Sequence[str],
        *,
        force: bool,
        retries: int,
    ) -> None:
        self.waiting = state.left
        self.running: dict[Future[int], Attempts] = {}
        self.elsewhere: list[Attempts] = []
        self._state = state
        self._submit = submit
        self._where = where
        self._force = force
        self._attempts: dict[GridCell, Attempts] = {}
        for cell in self.waiting:
            name = safe_name(cell.config.run_label.replace("/", "-"))
            log = logs / f"{name}.log"
            self._attempts[cell] = Attempts(cell, state.directory_of(cell), log, retries)

    @property
    def is_busy(self) -> bool:
        """Whether any cell has not ended."""
        return bool(self.waiting or self.running or self.elsewhere)

    def start_ready(self) -> None:
        """Start the cells that start from no other cell that has not ended."""
        begun = [attempts.cell for attempts in [*self.running.values(), *self.elsewhere]]
        for cell in ready_cells(self.waiting, begun):
            self.waiting.remove(cell)
            self._start(self._attempts[cell])

    def start_what_others_left(self) -> None:
        """Start the cells that other processes trained, and do not train any more."""
        # A copy of the list, which changes within the loop.
        for attempts in [*self.elsewhere]:
            if attempts.is_trained_elsewhere():
                continue
            self.elsewhere.remove(attempts)
            # The command itself finds out whether what is there now is this run.
            self._start(attempts)

    def _start(self, attempts: Attempts) -> None:
        """Start a command for a cell, or put the cell aside while another process trains it."""
        if attempts.is_trained_elsewhere():
            logger.info(f"{attempts.label}: another process trains it; waiting for its end")
            self.elsewhere.append(attempts)
            return
        command = attempts.next_command(self._where, force=self._force)
        future = self._submit(command, attempts.log)
        self.running[future] = attempts

    def ended_commands(self) -> list[Future[int]]:
        """Wait a moment for commands to end; return those that have ended."""
        if self.running:
            return list(wait(self.running, _POLL_SECONDS, return_when=FIRST_COMPLETED).done)
        if self.elsewhere:
            time.sleep(_POLL_SECONDS)
        return []

    def settle(self, future: Future[int]) -> Attempts | None:
        """Take the result of a command that has ended, or start its cell again.

        Returns:
            The attempts of a cell that has finished, or failed for good; None: it is repeated.
        """
        attempts = self.running.pop(future)
        code = future.result()
        if self._state.take_result(attempts.cell, code):
            return attempts
        attempts.note_failure(code)
        if attempts.are_over:
            self._state.failed[attempts.cell] = attempts.reason(code)
            return attempts
        self._start(attempts)
        return None

    def training(self) -> list[RunWatch]:
        """Return the cells that train now; of this grid's commands, some wait for a free process."""
        begun = [*self.running.values(), *self.elsewhere]
        return [attempts.watch for attempts in begun if attempts.watch.is_training]
