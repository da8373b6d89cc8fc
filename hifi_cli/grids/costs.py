"""The summary of a grid before it starts: runs, steps, time, disk, memory, and jobs on a GPU."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hifi_cli.errors import HifiError
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.machine import available_cores, machine_here, visible_gpus
from hifi_cli.grids.state import GridState
from hifi_cli.runs.cost import Cost, CostEstimator, Machine
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import counted_noun, format_bytes, format_hours

# A name and a text.
Line = tuple[str, str]

# A process on a GPU takes more than its tensors at their peak: what the allocator holds besides,
# and CUDA's own context. Both are generous guesses; a part of the memory stays free.
_ALLOCATED_PER_PEAK = 1.5
_BYTES_OF_CONTEXT = 1e9
_USED_PART = 0.9
# More processes on one GPU were never measured.
_MOST_MEASURED = 12
_GAIN = (
    "measured on one H200 with MiniLM: 12 processes train 0.42 runs a second, one process that"
    " trains all of them 0.29, and a process for each run imports 10 to 14 s first"
)


def cost_lines(
    state: GridState, estimator: CostEstimator, *, jobs: int, on_site: bool
) -> list[Line]:
    """Return in lines what the runs of a grid that are left will take.

    Args:
        state: of the grid.
        estimator: by the runs that there are.
        jobs: processes at a time.
        on_site: whether the runs train on a cluster, whose machines are not known here.
    """
    left = state.left
    counts = f"{len(state.cells):,}: {len(state.finished):,} finished, {len(left):,} left"
    lines = [("runs", counts)]
    if not left:
        return lines
    # The key `device` may differ between the runs of a grid.
    machines: dict[str, Machine | None] = {}
    for device in {cell.config.device for cell in left}:
        machines[device] = None if on_site else machine_here(device, jobs)
    cost = _cost_of(left, estimator, machines, state.data_dir)
    # A machine whose memory is known is a GPU.
    gpus = [machine for machine in machines.values() if machine and machine.memory]
    lines.append(("steps", cost.steps.sentence(f"{cost.steps.value:,.0f}")))
    texts = cost.lines
    if cost.seconds.is_known:
        texts["time"] += _at_a_time(cost.seconds.value, jobs, is_gpu=bool(gpus))
    texts["disk"] += f"; {format_bytes(_free_bytes(state.results_dir))} are free"
    lines += texts.items()
    if gpus:
        lines.append(("jobs", _jobs_text(gpus[0], cost)))
    return lines


def _cost_of(
    cells: Sequence[GridCell],
    estimator: CostEstimator,
    machines: Mapping[str, Machine | None],
    data_dir: Path | None,
) -> Cost:
    """Estimate the cost of cells together.

    Args:
        cells: those that are left.
        estimator: by the runs that there are.
        machines: where the runs train, by their key `device`.
        data_dir: directory of the official data files.
    """
    tasks: dict[str, TaskSpec] = {}
    rows: dict[str, dict[str, int]] = {}
    # Each task once, in the order of the cells: reading its rows may warn.
    for name in dict.fromkeys(cell.config.task for cell in cells):
        task = task_spec.load(name)
        tasks[name] = task
        rows[name] = estimator.rows_of(task, name) or _rows_here(task, data_dir)
    costs = []
    for cell in cells:
        config = cell.config
        machine = machines[config.device]
        costs.append(estimator.cost(config, tasks[config.task], machine, rows[config.task]))
    return Cost.of_all(costs)


def _rows_here(task: TaskSpec, data_dir: Path | None) -> dict[str, int]:
    """Count the rows of a task whose YAML does not; none where its data are not on this machine."""
    try:
        if task_sources.find_directory(task, data_dir) is None:
            return {}
        splits = task_sources.load(task, data_dir=data_dir).splits
    except HifiError:
        # The runs themselves will say what is wrong with the data.
        return {}
    return {str(split): len(rows) for split, rows in splits.items()}


def _at_a_time(seconds: float, jobs: int, *, is_gpu: bool) -> str:
    """Return in words how long runs take of which several train at a time; each process has to start besides."""
    at_a_time = jobs
    if is_gpu:
        # Processes that share a GPU gain less than their number; see `_GAIN`.
        at_a_time = min(jobs, len(visible_gpus()))
    on_top = "; the start of each process and the scoring of heads come on top"
    if at_a_time > 1:
        return f"; {at_a_time} at a time about {format_hours(seconds / at_a_time)}{on_top}"
    return on_top


def _free_bytes(directory: Path) -> int:
    """Count the bytes that are free where a directory is, or will be."""
    # The results directory may not be made yet; the disk is that of the nearest folder above it.
    directory = directory.absolute()
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


# --- how many at a time


def _jobs_text(gpu: Machine, cost: Cost) -> str:
    """Recommend a number of processes for GPUs, and say what it gains."""
    if not cost.memory.is_known:
        return f"unknown: train one run first, whose peak memory says how many fit; {_GAIN}"
    gpus = len(visible_gpus())
    jobs = recommended_jobs(gpu, cost.memory.value, gpus=gpus, cores=available_cores())
    cards = f"{counted_noun(gpus, 'GPU')} of {format_bytes(gpu.memory or 0)}"
    each = format_bytes(_bytes_of_process(cost.memory.value))
    return f"--jobs {jobs}, on {cards}, about {each} for each process; {_GAIN}"


def recommended_jobs(gpu: Machine, peak: float, *, gpus: int, cores: int) -> int:
    """Recommend how many processes train at a time.

    Args:
        gpu: one of the GPUs.
        peak: bytes of the tensors of a run, at most.
        gpus: their number.
        cores: of the machine; each process keeps one busy.
    """
    fitting = int(_USED_PART * (gpu.memory or 0) / _bytes_of_process(peak))
    on_each = max(1, min(fitting, _MOST_MEASURED))
    return max(1, min(on_each * gpus, cores))


def _bytes_of_process(peak: float) -> float:
    """Estimate the bytes of a GPU's memory that a process takes, by the peak of its tensors."""
    return _ALLOCATED_PER_PEAK * peak + _BYTES_OF_CONTEXT
