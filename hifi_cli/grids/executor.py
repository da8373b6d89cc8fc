"""Run a grid: submit a command for each unfinished cell to an executor, and repeat what fails.

The executor's processes are here or on a cluster.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from hifi_cli import stopping
from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import (
    HifiError,
    MissingError,
    RecordingFailed,
    Terminated,
    UsageError,
    logger,
)
from hifi_cli.files import is_held_by_a_process, safe_name
from hifi_cli.grids import processes
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.processes import Slot
from hifi_cli.grids.watch import GridDisplay, RunWatch
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.records.signs import signs_of
from hifi_cli.runs.identity import IdentityReader
from hifi_cli.tasks import task_spec
from hifi_cli.text import format_duration, format_number

# Starts a `hifi` command, and appends its output to a file; the result is its exit code.
Submit = Callable[[list[str], Path], "Future[int]"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Exit codes of a run told to stop, as by a cluster that wants its node back.
_STOPPED_CLEANLY = [128 + number for number in stopping.SIGNALS]
# Those of processes that were told before they could listen.
_STOPPED_EARLY = [-number for number in stopping.SIGNALS]
_STOPPED = (130, *_STOPPED_CLEANLY, *_STOPPED_EARLY)
# Exit code: another process trains the run, or the directory holds another run.
_CONFLICT = 4
# So often without another process, the directory holds another run.
_CONFLICTS = 3
# Between two looks at the runs, those too that other processes train.
_POLL_SECONDS = 1.0


@dataclass
class GridState:
    """State of the cells of a grid.

    Attributes:
        finished: cells with a result, those of former grids first.
        failed: cells that are not repeated, with the reason.
        finished_before: number of cells that were finished before the grid started.
    """

    cells: list[GridCell]
    results_dir: Path
    data_dir: Path | None = None
    finished: dict[GridCell, RunResult] = field(default_factory=dict)
    failed: dict[GridCell, str] = field(default_factory=dict)
    finished_before: int = 0
    started: float = field(default_factory=time.monotonic)

    @cached_property
    def time_to_go(self) -> "TimeToGo":
        """The estimate of how long the grid still takes."""
        return TimeToGo(self.started)

    def read(self) -> None:
        """Find the finished cells.

        Raises:
            ConflictError: the directory of a cell holds another run: of another configuration, task,
                data, encoder, own code or version of the random draws.
        """
        identities = IdentityReader(self.results_dir, self.data_dir)
        for cell in self.cells:
            identities.check_finished(cell.config, task_spec.load(cell.config.task))
            self.add(cell)
        self.finished_before = len(self.finished)

    def has_result(self, cell: GridCell) -> bool:
        """Say whether there is a result in the cell's directory, of this run or of a former one."""
        return RunDirectory.of(cell.config, self.results_dir).results.is_file()

    def add(self, cell: GridCell, code: int = 0) -> bool:
        """Count a cell as finished if it has a result, done or diverged; say whether it has.

        Args:
            code: exit code of the command that trained it.
        """
        if not self.has_result(cell):
            return False
        result = RunDirectory.of(cell.config, self.results_dir).read_result()
        has_diverged = code == 1 and not result.is_done
        if code != 0 and not has_diverged:
            # The result is a former one, which --force would have replaced.
            return False
        self.finished[cell] = result
        return True

    @property
    def left(self) -> list[GridCell]:
        """The cells that neither finished nor failed, in the order in which they start.

        The longest come first, seed by seed, but after the cells that they start from.
        """
        ended = {*self.finished, *self.failed}
        left = [cell for cell in self.cells if cell not in ended]
        left.sort(key=lambda cell: (cell.config.seed, -cell.cost))
        # A dict, for its order and its fast look-up.
        ordered: dict[GridCell, None] = {}
        while left:
            ordered.update(dict.fromkeys(_ready(left)))
            left = [cell for cell in left if cell not in ordered]
        return list(ordered)

    @property
    def diverged(self) -> dict[GridCell, str]:
        """Finished cells whose loss was not finite, with the reason."""
        return {cell: result.reason for cell, result in self.finished.items() if not result.is_done}

    def summary(self, running_cost: float = 0.0) -> str:
        """Say how many cells have ended, and about how long the others take.

        Args:
            running_cost: what of the cells that run has been trained, in the unit of their cost.
        """
        finished_now = list(self.finished)[self.finished_before :]
        done = running_cost + sum(cell.cost for cell in finished_now)
        left = sum(cell.cost for cell in self.left) - running_cost
        seconds = self.time_to_go.seconds(done, left, time.monotonic())
        counts = f"{len(self.finished)}/{len(self.cells)} done, {len(self.failed)} failed"
        if seconds is None:
            return counts
        return f"{counts}, about {format_duration(seconds)} to go"


class TimeToGo:
    """The time that a grid still takes, by what has been trained since it began.

    The trained part of the runs is known a few times a minute at most. Between two such times the clock
    goes on: the estimate becomes smaller by the seconds that have passed.

    Args:
        started: when the grid began, by the clock of this process in seconds.
    """

    def __init__(self, started: float) -> None:
        self.started = started
        self._known = (0.0, 0.0)
        self._ends_at = started

    def seconds(self, done: float, left: float, now: float) -> float | None:
        """Estimate how long the grid still takes; None: nothing has been trained yet.

        Args:
            done: what has been trained since the grid began, in the unit of the cells' cost.
            left: what is still to be trained.
            now: the time, by the clock of this process in seconds.
        """
        if not done:
            return None
        if (done, left) != self._known:
            self._known = (done, left)
            self._ends_at = now + (now - self.started) * left / done
        return max(0.0, self._ends_at - now)


def _ready(waiting: Sequence[GridCell], running: Sequence[GridCell] = ()) -> list[GridCell]:
    """Give the waiting cells that start from no other cell that waits or runs."""
    to_come: dict[PurePath | None, GridCell] = {
        cell.config.run_path: cell for cell in [*waiting, *running]
    }
    ready = [cell for cell in waiting if to_come.get(cell.starts_from, cell) is cell]
    if not ready and not running:
        # They start from one another: each fails, and says so.
        return list(waiting)
    return ready


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
    with GridDisplay(len(state.cells)) as display:
        while queue.is_busy:
            queue.start_ready()
            for cell in queue.settle_ended():
                _say(queue.new_warnings(cell))
                if cell in state.finished:
                    logger.info(_outcome(cell, state.finished[cell]))
                else:
                    logger.warning(f"{cell.config.run_label}: failed: {state.failed[cell]}")
            for cell in queue.running.values():
                _say(queue.new_warnings(cell))
            if display.is_due:
                now = time.monotonic()
                runs = queue.training()
                for run in runs:
                    run.look(now)
                running_cost = sum(run.cost_done for run in runs)
                ended = len(state.finished) + len(state.failed)
                display.show(state.summary(running_cost), ended, runs, now)


def _say(warnings: Sequence[str]) -> None:
    """Repeat what commands have warned of."""
    for text in warnings:
        logger.warning(text)


class Queue:
    """The cells of a grid that wait, run, or are trained by other processes.

    Attributes:
        waiting: cells to start as soon as those that they start from have ended.
        running: commands of this grid.
        unrecorded: cells whose steps a GPU could not record. They train again without a recording,
            which is no part of their configuration.
        elsewhere: cells that other processes train. They are looked at again and again: such a
            process finishes the run, or leaves it to this grid.
        watches: the cells that were started or put aside, as their files show them.
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
        self.state = state
        self.submit = submit
        self.logs = logs
        self.where = where
        self.force = force
        self.retries = retries
        self.waiting = state.left
        self.running: dict[Future[int], GridCell] = {}
        self.unrecorded: set[GridCell] = set()
        self.elsewhere: list[GridCell] = []
        self.failures: Counter[GridCell] = Counter()
        self.conflicts: Counter[GridCell] = Counter()
        self.started: set[GridCell] = set()
        self.watches: dict[GridCell, RunWatch] = {}
        self.warned: set[str] = set()

    @property
    def is_busy(self) -> bool:
        """Whether any cell has not ended."""
        return bool(self.waiting or self.running or self.elsewhere)

    def start_ready(self) -> None:
        """Start the cells that start from no other cell that has not ended."""
        for cell in _ready(self.waiting, [*self.running.values(), *self.elsewhere]):
            self.waiting.remove(cell)
            self.start(cell)

    def start(self, cell: GridCell) -> None:
        """Start a cell, or put it aside while another process trains it."""
        if self.is_trained_elsewhere(cell):
            logger.info(f"{cell.config.run_label}: another process trains it; waiting for its end")
            self.elsewhere.append(cell)
            self.watches.setdefault(cell, self.watch_of(cell))
            return
        if cell not in self.started:
            # Lines that another grid has printed until now do not belong to this one's command.
            self.watches[cell] = self.watch_of(cell)
            self.started.add(cell)
        # A stopped run has removed the former result: without --force it continues from its
        # checkpoint.
        replaces = self.force and (cell not in self.failures or self.state.has_result(cell))
        command = cell.command(self.where, force=replaces)
        if cell in self.unrecorded:
            # The last value of a key counts.
            command.append("record_steps=false")
        future = self.submit(command, self.log_of(cell))
        self.running[future] = cell

    def settle_ended(self) -> Iterator[GridCell]:
        """Wait a moment for the end of a cell; yield those that have ended, and start again what is to be repeated."""
        left_by_others = [cell for cell in self.elsewhere if not self.is_trained_elsewhere(cell)]
        for cell in left_by_others:
            self.elsewhere.remove(cell)
            # The command itself finds out whether what is there now is this run.
            self.start(cell)
        if not self.running:
            if self.elsewhere:
                time.sleep(_POLL_SECONDS)
            return
        for future in wait(self.running, _POLL_SECONDS, return_when=FIRST_COMPLETED).done:
            cell = self.running.pop(future)
            code = future.result()
            if self.state.add(cell, code) or not self.repeats(cell, code):
                yield cell

    def repeats(self, cell: GridCell, code: int) -> bool:
        """Start a cell that has no result again, unless it has failed for good."""
        if code == RecordingFailed.exit_code and cell not in self.unrecorded:
            self.unrecorded.add(cell)
            logger.info(f"{cell.config.run_label}: its steps cannot be recorded; once more without")
            self.start(cell)
            return True
        is_conflict = code == _CONFLICT and self.met_another_process(cell)
        if not is_conflict:
            # A cell that was told to stop has not failed, and is known as one that has started.
            self.failures[cell] += 0 if code in _STOPPED else 1
        if self.failures[cell] > self.retries:
            self.state.failed[cell] = _reason(self.watches[cell], code)
            return False
        self.start(cell)
        return True

    def met_another_process(self, cell: GridCell) -> bool:
        """Say whether a command of a cell may have ended because another process trained the cell.

        That process may have ended too since then. So the command is repeated a few times before
        the directory counts as that of another run.
        """
        if self.is_trained_elsewhere(cell):
            return True
        self.conflicts[cell] += 1
        return self.conflicts[cell] < _CONFLICTS

    def is_trained_elsewhere(self, cell: GridCell) -> bool:
        """Say whether a process that is not of this grid trains the cell."""
        return is_held_by_a_process(RunDirectory.of(cell.config, self.state.results_dir).lock)

    def training(self) -> list[RunWatch]:
        """Give the cells that train now; of this grid's commands, some wait for a free process."""
        begun = [*self.running.values(), *self.elsewhere]
        return [self.watches[cell] for cell in begun if self.watches[cell].is_training]

    def new_warnings(self, cell: GridCell) -> list[str]:
        """Give what a cell's command has warned of, once for all cells with the same warning.

        Signs against its score are left out: the grid says them at its end, about all runs.
        """
        texts = self.watches[cell].new_warnings()
        if not texts:
            return []
        signs = self.signs_of(cell)
        new = []
        for text in texts:
            if text in signs or text in self.warned:
                continue
            self.warned.add(text)
            label = cell.config.run_label
            new.append(text if text.startswith(label) else f"{label}: {text}")
        return new

    def signs_of(self, cell: GridCell) -> list[str]:
        """Give the warnings about the score of a cell that its command ends with."""
        if not self.state.has_result(cell):
            return []
        try:
            result = RunDirectory.of(cell.config, self.state.results_dir).read_result()
        except (HifiError, OSError):
            return []
        config = cell.config
        signs = signs_of([result], methods=[config.method], tasks=[config.task])
        return [f"note: {sign}" for sign in signs]

    def watch_of(self, cell: GridCell) -> RunWatch:
        """Make what shows a cell from outside of its process."""
        directory = RunDirectory.of(cell.config, self.state.results_dir)
        return RunWatch(cell, directory, self.log_of(cell))

    def log_of(self, cell: GridCell) -> Path:
        """Give the file to which all commands of a cell append what they print."""
        name = safe_name(cell.config.run_label.replace("/", "-"))
        return self.logs / f"{name}.log"


def _outcome(cell: GridCell, result: RunResult) -> str:
    """Say what became of a finished cell: its score and what stands against it."""
    label = cell.config.run_label
    if not result.is_done:
        return f"{label}: diverged: {result.reason}"
    text = f"{label}: {result.primary_metric} {format_number(100 * result.score(), '.2f')}"
    if result.collapsed:
        text += ", collapsed"
    if result.limit is not None:
        text += ", limited"
    return text


def _reason(watch: RunWatch, code: int) -> str:
    """Say why a command failed: the signal that killed it, its error, or the last line of its log.

    Args:
        watch: has the log of what the cell's commands printed.
        code: the command's exit code.
    """
    if code == -signal.SIGKILL:
        return "killed by SIGKILL (too little memory?)"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    content = b""
    if watch.log.is_file():
        # Earlier lines are of earlier commands.
        content = watch.log.read_bytes()[watch.log_start :]
    said = []
    for line in content.decode(errors="replace").split("\n"):
        # A progress bar is written over and over in one line; its last state counts.
        text = line.rpartition("\r")[2].strip()
        if text:
            said.append(text)
    # Another grid may append to the same file at the same time: its progress is no reason.
    errors = [text for text in said if text.startswith("hifi: ")]
    if errors:
        return errors[-1]
    if said:
        return said[-1]
    return f"exit code {code}"


@contextmanager
def local_executor(jobs: int, *, forks: bool) -> Iterator[Submit]:
    """Give a pool of processes here. An error or Ctrl-C stops them, and they write checkpoints.

    Args:
        jobs: processes at a time.
        forks: whether runs are forked from processes that have imported their libraries.
    """
    told: set[str] = set()
    slots = [Slot(variables, forks=forks, told=told) for variables in slot_environments(jobs)]
    unused = iter(slots)
    of_thread = threading.local()

    def begin_thread() -> None:
        of_thread.slot = next(unused)

    def execute(command: list[str], log: Path) -> int:
        code: int = of_thread.slot.execute(command, log)
        return code

    pool = ThreadPoolExecutor(jobs, initializer=begin_thread)
    try:
        yield lambda command, log: pool.submit(execute, command, log)
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        # The signal that stops the grid stops its processes.
        number = error.number if isinstance(error, Terminated) else signal.SIGTERM
        for slot in slots:
            slot.stop(number)
        raise
    finally:
        pool.shutdown()
        for slot in slots:
            slot.close()


def slot_environments(jobs: int) -> list[dict[str, str]]:
    """Give each process its environment: a GPU in turn, and its part of the cores, unless set."""
    gpus = visible_gpus()
    threads = {}
    if not any(os.environ.get(name) for name in THREADS):
        threads = dict.fromkeys(THREADS, str(max(1, available_cores() // jobs)))
    environments = []
    for index in range(jobs):
        variables = dict(threads)
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = gpus[index % len(gpus)]
        environments.append(variables)
    return environments


def available_cores() -> int:
    """Count the cores that this process may use."""
    # A Mac has no such function.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Name the GPUs that a process started here would see, as CUDA_VISIBLE_DEVICES does."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        names = [name.strip() for name in devices.split(",")]
        return [name for name in names if name not in ("", "-1", "NoDevFiles")]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    number = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(index) for index in range(number)]


# --- a cluster


class SiteSpec(ConfigModel):
    """A site: Parsl's own names and arguments."""

    description: str = ""
    """The site, in one line."""
    provider: dict[str, Any]
    """`kind`, a class of parsl.providers, and its arguments; `launcher`, a class of parsl.launchers
    by name, or a mapping of its `kind` and arguments."""
    executor: dict[str, Any] = {}
    """Arguments of parsl's HighThroughputExecutor: `available_accelerators`, `cpu_affinity`, ..."""


def load_site(site: str) -> SiteSpec:
    """Load a site.

    Args:
        site: its name, or the path of its YAML.

    Raises:
        MissingError: no such file.
        UsageError: no such name, or the YAML is wrong.
    """
    return parse(SiteSpec, registry.load("sites", site), str(registry.find("sites", site)))


def execute(command: list[str], log: str, directory: str) -> int:
    """Run a command on a worker, which imports this function; returns its exit code.

    Args:
        command: of `hifi`.
        log: the file that its output is appended to.
        directory: where it runs.
    """
    return processes.start(command, Path(log), os.environ, cwd=directory).wait()


@contextmanager
def site_executor(site: str, run_dir: Path) -> Iterator[Submit]:
    """Give the workers of a site. Its pilot jobs are cancelled at the end, and at an error or Ctrl-C.

    Raises:
        MissingError: Parsl is not installed, or no pilot job can run.
        UsageError: the site's YAML is wrong.
    """
    try:
        import parsl
    except ImportError:
        raise MissingError("--site needs Parsl: pip install 'hifi-cli[grid]'") from None
    spec = load_site(site)
    try:
        provider = _provider(spec.provider)
        executor = parsl.HighThroughputExecutor(label="hifi", provider=provider, **spec.executor)
    except Exception as error:
        # The type of such an error depends on the provider.
        raise UsageError(f"site {site}: {_one_line(error)}") from error
    # Parsl starts its own scripts by name; they are next to this interpreter.
    scripts = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    config = parsl.Config(
        executors=[executor],
        run_dir=str(run_dir),
        # A command whose worker vanished continues from its checkpoint.
        retries=20,
        # It gives idle blocks back while others are still busy.
        strategy="htex_auto_scale",
        strategy_period=1,
    )
    kernel = parsl.load(config)
    app = parsl.python_app(execute)
    try:
        yield lambda command, log: app(command, str(log.absolute()), str(Path.cwd()))
    except Exception as error:
        if executor.bad_state_is_set:
            # Parsl refuses every further command.
            reason = _one_line(executor.executor_exception)
            raise MissingError(f"site {site}: no node to run on: {reason}") from error
        raise
    finally:
        # First, because Parsl's own end hangs where its interchange got the same signal.
        provider.cancel(list(provider.resources))
        ending = threading.Thread(target=kernel.cleanup, daemon=True)
        ending.start()
        ending.join(timeout=20)
        parsl.clear()


def _one_line(error: BaseException | None) -> str:
    """Give the text of an error in one line."""
    return " ".join(str(error).split())


def _provider(arguments: Mapping[str, Any]) -> Any:
    """Make the provider of a site: an object of Parsl's, as its YAML says."""
    from parsl import launchers, providers

    arguments = dict(arguments)
    launcher = arguments.pop("launcher", None)
    if launcher:
        launcher = dict(launcher) if isinstance(launcher, dict) else {"kind": launcher}
        launcher_class = getattr(launchers, launcher.pop("kind"))
        arguments["launcher"] = launcher_class(**launcher)
    volumes = arguments.get("persistent_volumes")
    if volumes:
        # Parsl wants tuples for Kubernetes, which YAML does not have.
        arguments["persistent_volumes"] = [tuple(volume) for volume in volumes]
    return getattr(providers, arguments.pop("kind"))(**arguments)
