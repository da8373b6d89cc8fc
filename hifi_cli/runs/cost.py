"""Estimated costs of runs: steps, time, disk, memory, and what each rests on. Without torch.

Every number of this kind that the program prints comes from here: the summary of `hifi grid`, the
lines of a dry run, the cost of `hifi versus`. Seconds and memory are those of stored records. Where no
record is like the run, the number is unknown, and the reason says what to do.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from hifi_cli.config.decides import keys_that_decide
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import HifiError, logger
from hifi_cli.files import digest
from hifi_cli.records.record import RunResult
from hifi_cli.records.stored import read_records
from hifi_cli.runs.size import RunSize
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import abbreviate, counted_noun, format_bytes, format_hours

# The bases of a time or a memory.
OWN_RUNS = "finished runs of the same method and task"
OTHER_BATCHES = "the same method and task with other batches or lengths"
OTHER_TASKS = "the method on other tasks, scaled as other methods"
MEASURED_HERE = "steps measured here"
# The bases of the bytes on a disk.
STORED_RUNS = "finished runs of the same method"
COUNTED = "the numbers that the method stores"

# Bytes of config.yaml and results.json of a run with few epochs, and what each epoch and each
# logged step adds to results.json and metrics.jsonl.
_BYTES_OF_RECORD = 6_000
_BYTES_OF_EPOCH = 250
_BYTES_OF_LOGGED_STEP = 75
# Bytes of a line of predictions.jsonl: the names of its fields and the id; of each logit.
_BYTES_OF_PREDICTION = 56
_BYTES_OF_LOGIT = 20
# Keys that say how numbers are computed, but for two that a record has better: its own device, and
# the precision that it computed in.
_SPEED_KEYS = [
    key for key in keys_that_decide(RunConfig, "computation") if key not in ("device", "precision")
]
_SPEED_KEYS += ["gradient_accumulation_steps", "train_sampling_strategy"]

# Gives the bytes of the file that a run stores of its weights; None: unknown.
StoredBytes = Callable[[RunConfig, TaskSpec], int | None]


# --- what is estimated


@dataclass(frozen=True)
class Amount:
    """A number of one or several runs, and what it rests on.

    Attributes:
        value: of the runs for which it is known.
        rests_on: for how many runs it rests on what.
        unknown: for how many runs it is unknown, by the reason.
    """

    value: float
    rests_on: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    @classmethod
    def known(cls, value: float, basis: str) -> "Amount":
        """Make the number of one run."""
        return cls(value, rests_on=Counter([basis]))

    @classmethod
    def missing(cls, reason: str) -> "Amount":
        """Make the unknown number of one run."""
        return cls(0.0, unknown=Counter([reason]))

    @property
    def is_known(self) -> bool:
        """Whether it is known for any run."""
        return bool(self.rests_on)

    def sentence(self, text: str) -> str:
        """Say the number, what it rests on, and for how many runs it is unknown.

        Args:
            text: the number in words.
        """
        parts = []
        if self.is_known:
            bases = [basis for basis, _ in self.rests_on.most_common()]
            if len(bases) > 1:
                bases = [f"{basis} ({count:,})" for basis, count in self.rests_on.most_common()]
            parts.append(f"{text}, by {abbreviate(bases, '; ')}")
        is_of_one_run = not self.is_known and sum(self.unknown.values()) == 1
        for reason, count in self.unknown.most_common(3):
            for_runs = "" if is_of_one_run else f" for {counted_noun(count, 'run')}"
            parts.append(f"unknown{for_runs}: {reason}")
        return "; ".join(parts) or "nothing"


def sum_of(amounts: Sequence[Amount]) -> Amount:
    """Add the numbers of several runs."""
    return _joined(amounts, sum(amount.value for amount in amounts))


def largest_of(amounts: Sequence[Amount]) -> Amount:
    """Give the largest number of several runs."""
    return _joined(amounts, max((amount.value for amount in amounts), default=0.0))


def _joined(amounts: Iterable[Amount], value: float) -> Amount:
    """Join what the numbers of several runs rest on."""
    rests_on: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for amount in amounts:
        rests_on += amount.rests_on
        unknown += amount.unknown
    return Amount(value, rests_on, unknown)


@dataclass(frozen=True)
class Cost:
    """The cost of one or several runs.

    Attributes:
        runs: their number.
        steps: optimizer steps.
        seconds: of training and evaluation, one run after the other; without the start of a process
            and without the scoring of attention heads.
        disk: bytes of the files that stay.
        memory: peak bytes of one process, the largest of all runs.
    """

    runs: int
    steps: Amount
    seconds: Amount
    disk: Amount
    memory: Amount

    @classmethod
    def of_all(cls, costs: Sequence["Cost"]) -> "Cost":
        """Give the cost of several runs together."""
        return cls(
            runs=sum(cost.runs for cost in costs),
            steps=sum_of([cost.steps for cost in costs]),
            seconds=sum_of([cost.seconds for cost in costs]),
            disk=sum_of([cost.disk for cost in costs]),
            memory=largest_of([cost.memory for cost in costs]),
        )

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The lines of time, disk and memory, a name and a text each."""
        time = f"about {format_hours(self.seconds.value)}"
        if self.steps.value and self.seconds.is_known and not self.seconds.unknown:
            time += f" at {self.seconds.value / self.steps.value:.3g} s a step with evaluations"
        return [
            ("time", self.seconds.sentence(time)),
            ("disk", self.disk.sentence(f"about {format_bytes(self.disk.value)}")),
            ("memory", self.memory.sentence(f"up to {format_bytes(self.memory.value)}")),
        ]


# --- where the runs will train


@dataclass(frozen=True)
class Machine:
    """Where a run will train.

    Attributes:
        device: name of the GPU or CPU, as records have it.
        threads: of PyTorch; None on a GPU, whose speed they do not decide.
        memory: bytes of the GPU's memory; None on a CPU.
    """

    device: str
    threads: int | None = None
    memory: int | None = None

    def __str__(self) -> str:
        if self.threads is None:
            return self.device
        return f"{self.device} with {counted_noun(self.threads, 'thread')}"


@dataclass(frozen=True)
class MeasuredStep:
    """The time of a training step of a method, measured on this machine.

    Attributes:
        task: on which it was measured.
        batch: rows of the step.
        seconds: of the step.
    """

    task: str
    batch: int
    seconds: float


# --- stored records


@dataclass(frozen=True)
class _StoredRun:
    """The costs of a finished run.

    Attributes:
        result: its record.
        size: of the run.
        speed: what decides its speed besides method, task, batches and machine.
        precisions: the one that it computed in, and that of its configuration.
        batches: rows and tokens of a batch.
        machine: where it was trained.
        rate: seconds for a row that it trained on.
    """

    result: RunResult
    size: RunSize
    speed: str
    precisions: frozenset[str]
    batches: tuple[int, int]
    machine: Machine
    rate: float

    @classmethod
    def of(cls, result: RunResult) -> "_StoredRun | None":
        """Read a record; None: it has no time, or several processes trained together."""
        size = RunSize.of_record(result)
        has_several = any(process.processes > 1 for process in result.processes)
        if size is None or not result.time_s or has_several:
            return None
        precision = str(result.config.get("precision", result.precision))
        return cls(
            result=result,
            size=size,
            speed=_speed_of(result.config),
            precisions=frozenset([result.precision, precision]),
            batches=(size.batch, int(result.config.get("max_length", 0))),
            machine=_machine_of(result),
            rate=result.time_s / size.work,
        )


def _machine_of(result: RunResult) -> Machine:
    """Say where a run was trained."""
    device = str(result.provenance.get("device", ""))
    if any(process.device_type == "cuda" for process in result.processes):
        return Machine(device)
    return Machine(device, result.provenance.get("threads"))


def _speed_of(config: Mapping[str, Any]) -> str:
    """Digest the values that decide the speed of a step, but for the precision."""
    values: dict[str, Any] = {"backbone": config["backbone"]["name"]}
    for key in _SPEED_KEYS:
        # A record of an earlier version lacks later keys, and computed by their defaults.
        values[key] = config.get(key, RunConfig.model_fields[key].default)
    return digest(values)


def _weights_key(method: str, config: Mapping[str, Any]) -> str:
    """Digest the values that decide how many numbers of the encoder a run stores."""
    heads = config.get("heads") or {}
    values: list[Any] = [method, config["backbone"]["name"], config.get("settings")]
    values += [heads.get(key) for key in ("k", "strategy", "given")]
    values.append(config.get("task_head"))
    stage1 = config.get("stage1") or {}
    values += [stage1.get("method"), stage1.get("settings")]
    return digest(values)


def results_in(directory: Path) -> list[RunResult]:
    """Read the records of a results directory or a packed study.

    An estimate is no reason for a command to fail: a warning names the records that it cannot use.
    """
    try:
        stored = read_records(directory)
    except (HifiError, OSError) as error:
        logger.warning(f"estimates use no records of {directory}, which cannot be read: {error}")
        return []
    unusable = [path for path, found in stored.items() if isinstance(found, HifiError)]
    if unusable:
        count = counted_noun(len(unusable), "record")
        logger.warning(
            f"estimates leave out {count} that cannot be read: {abbreviate(unusable)}"
            " (hifi results check says why)"
        )
    return [found for found in stored.values() if isinstance(found, RunResult)]


# --- the estimator

# Seconds for a row that is trained on, by method and task.
_Rates = dict[tuple[str, str], float]


class CostEstimator:
    """Estimates the costs of runs by stored records.

    Args:
        results: the records.
        stored_bytes: gives the bytes of the weights that a run stores, where no record has them.
        measured: by method, the step that was measured here; it counts instead of the records' own
            times, which then only say how long steps on other tasks take.
    """

    def __init__(
        self,
        results: Iterable[RunResult],
        stored_bytes: StoredBytes | None = None,
        measured: Mapping[str, MeasuredStep] | None = None,
    ) -> None:
        self._stored_bytes = stored_bytes
        self._measured = measured or {}
        self._rows: dict[str, dict[str, int]] = {}
        self._weights: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        self._runs: dict[tuple[str, str], list[_StoredRun]] = defaultdict(list)
        self._machines: dict[str, Counter[Machine]] = defaultdict(Counter)
        for result in results:
            self._add(result)
        self._costs: dict[tuple[str, Machine | None, RunSize | None], Cost] = {}

    def _add(self, result: RunResult) -> None:
        """Note what a record says of rows, weights, time and memory."""
        if result.delta_bytes:
            key = _weights_key(result.method, result.config)
            self._weights[key, result.task].append(result.delta_bytes)
            self._weights[key, None].append(result.delta_bytes)
        stored = _StoredRun.of(result)
        if stored is None:
            return
        if not result.shots and not result.limit:
            rows = self._rows.setdefault(result.task, {"train": 0, "validation": 0})
            rows["train"] = max(rows["train"], stored.size.train + stored.size.selection)
            rows["validation"] = max(rows["validation"], stored.size.reported)
        for precision in stored.precisions:
            self._runs[stored.speed, precision].append(stored)
        self._machines[result.backbone][stored.machine] += 1

    def rows_of(self, task: TaskSpec, name: str) -> dict[str, int]:
        """Give the number of rows of a task's splits: those of records, or the official ones.

        Args:
            task: its YAML.
            name: of the task.
        """
        return self._rows.get(name) or {str(split): rows for split, rows in task.rows.items()}

    def cost(
        self,
        config: RunConfig,
        task: TaskSpec,
        machine: Machine | None,
        rows: Mapping[str, int] | None = None,
    ) -> Cost:
        """Estimate the cost of a run.

        Args:
            config: of the run.
            task: of the run.
            machine: where it will train; None: not known.
            rows: number of rows of `train` and `validation`, where the data have been read.
        """
        size = RunSize.of(config, task, rows or self.rows_of(task, config.task))
        # Runs of a grid differ mostly in seeds, which cost the same.
        setting = config.model_copy(update={"seed": 1}).model_dump_json()
        key = (setting, machine, size)
        if key not in self._costs:
            self._costs[key] = self._cost_of_size(config, task, machine, size)
        return self._costs[key]

    def _cost_of_size(
        self, config: RunConfig, task: TaskSpec, machine: Machine | None, size: RunSize | None
    ) -> Cost:
        """Estimate the cost of a run of some size; None: its number of rows is unknown."""
        if size is None:
            steps = Amount.missing("the number of rows is not known here")
            seconds = steps
        else:
            steps = Amount.known(size.steps, "rows, batch size and epochs")
            seconds = self._seconds(config, size, machine)
        return Cost(
            runs=1,
            steps=steps,
            seconds=seconds,
            disk=self._disk(config, task, size),
            memory=self._memory(config, size, machine),
        )

    # --- time

    def _seconds(self, config: RunConfig, size: RunSize, machine: Machine | None) -> Amount:
        """Estimate the seconds of a run."""
        measured = self._measured.get(config.method)
        if measured:
            ratio = self._ratio_of_tasks(config, measured.task)
            seconds = measured.seconds / measured.batch * ratio * size.work
            return Amount.known(seconds, MEASURED_HERE)
        if machine is None:
            return Amount.missing("the machine of the runs is not known here")
        runs = self._comparable(config, machine)
        rate, basis = _rate(config, (size.batch, config.max_length), runs)
        if rate is None:
            return Amount.missing(self._why_no_step(config, machine))
        return Amount.known(rate * size.work, basis)

    def _alike(self, config: RunConfig) -> list[_StoredRun]:
        """Give the stored runs of the same encoder and computation, on any machine."""
        return self._runs.get((_speed_of(config.model_dump(mode="json")), config.precision), [])

    def _comparable(self, config: RunConfig, machine: Machine) -> list[_StoredRun]:
        """Give those on a machine."""
        return [run for run in self._alike(config) if run.machine == _without_memory(machine)]

    def _ratio_of_tasks(self, config: RunConfig, task: str) -> float:
        """Say how long a row of a run's task takes, relative to a row of another task.

        It is the median over the methods that have trained both, each under equal conditions; 1 where
        none has.
        """
        by_conditions: dict[tuple[str, str, Machine], list[_StoredRun]] = defaultdict(list)
        for (speed, precision), runs in self._runs.items():
            for run in runs:
                if run.result.backbone == config.backbone.name:
                    by_conditions[speed, precision, run.machine].append(run)
        ratios = []
        for runs in by_conditions.values():
            ratios += _ratios(_rates(runs), config.task, task)
        return median(ratios) if ratios else 1.0

    def _why_no_step(self, config: RunConfig, machine: Machine) -> str:
        """Say why no record gives the time of a step."""
        elsewhere = ""
        others = [
            str(other)
            for other, _ in self._machines[config.backbone.name].most_common()
            if other != _without_memory(machine)
        ]
        if others:
            elsewhere = f" (records are of {abbreviate(others)})"
        return f"no measured step on {machine}{elsewhere}: train one run first"

    # --- disk

    def _disk(self, config: RunConfig, task: TaskSpec, size: RunSize | None) -> Amount:
        """Estimate the bytes of the files that a run leaves."""
        weights, basis = self._bytes_of_weights(config, task)
        if weights is None:
            return Amount.missing(basis)
        return Amount.known(weights + _bytes_of_texts(config, task, size), basis)

    def _bytes_of_weights(self, config: RunConfig, task: TaskSpec) -> tuple[float | None, str]:
        """Give the bytes of a run's weights, and what they rest on; or None, and why."""
        key = _weights_key(config.method, config.model_dump(mode="json"))
        for place in (config.task, None):
            stored = self._weights.get((key, place))
            if stored:
                return median(stored), STORED_RUNS
        counted = self._stored_bytes(config, task) if self._stored_bytes else None
        if counted is None:
            return None, f"no finished run of {config.method} with {config.backbone.name}"
        return counted, COUNTED

    # --- memory

    def _memory(self, config: RunConfig, size: RunSize | None, machine: Machine | None) -> Amount:
        """Give the highest peak memory of stored runs that are like a run."""
        if machine is None:
            return Amount.missing("the machine of the runs is not known here")
        runs = [
            run
            for run in self._alike(config)
            # Another run of the same process may have caused the peak.
            if run.machine.device == machine.device and run.result.memory_is_own is not False
        ]
        own = [run for run in runs if run.result.method == config.method]
        batches = (size.batch, config.max_length) if size else None
        of_task = [run for run in own if run.result.task == config.task]
        same = [run for run in of_task if run.batches == batches]
        if same:
            return Amount.known(_peak(same), OWN_RUNS)
        if own:
            return Amount.known(_peak(own), "runs of the method on other tasks or batches")
        if runs:
            return Amount.known(_peak(runs), "the largest run of other methods")
        return Amount.missing(f"no finished run on {machine.device}")


def _without_memory(machine: Machine) -> Machine:
    """Give a machine as a record knows it."""
    return Machine(machine.device, machine.threads)


def _peak(runs: Iterable[_StoredRun]) -> float:
    """Give the highest peak memory of some runs, in bytes."""
    return float(max(run.result.peak_memory_bytes for run in runs))


# --- rates


def _rates(runs: Iterable[_StoredRun]) -> _Rates:
    """Give the median time of a row by method and task."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        found[run.result.method, run.result.task].append(run.rate)
    return {key: median(values) for key, values in found.items()}


def _ratios(rates: _Rates, task: str, other: str) -> list[float]:
    """Give the time of a row of a task relative to another's, by each method that has both."""
    ratios = []
    for (method, of_task), rate in rates.items():
        if of_task == task and (method, other) in rates:
            ratios.append(rate / rates[method, other])
    return ratios


def _rate(
    config: RunConfig, batches: tuple[int, int], runs: Sequence[_StoredRun]
) -> tuple[float | None, str]:
    """Give the seconds for a row of a run, and what they rest on; None: no record says it.

    Args:
        config: of the run.
        batches: rows and tokens of its batches.
        runs: stored runs on the same machine, of the same encoder and computation.
    """
    method = config.method
    task = config.task
    own = [run for run in runs if run.result.method == method and run.result.task == task]
    same = [run.rate for run in own if run.batches == batches]
    if same:
        return median(same), OWN_RUNS
    if own:
        return median(run.rate for run in own), OTHER_BATCHES
    rates = _rates(runs)
    scaled = []
    for of_method, other in rates:
        if of_method == method:
            ratios = _ratios(rates, task, other)
            scaled += [rates[method, other] * ratio for ratio in ratios]
    if scaled:
        return median(scaled), OTHER_TASKS
    on_task = {of_method: rate for (of_method, of_task), rate in rates.items() if of_task == task}
    if on_task:
        slowest = max(on_task, key=on_task.__getitem__)
        return on_task[slowest], f"runs of {slowest} on the task, the slowest method there"
    return None, ""


# --- files


def _bytes_of_texts(config: RunConfig, task: TaskSpec, size: RunSize | None) -> float:
    """Estimate the bytes of a run's files besides its weights: record, log and predictions."""
    epochs = config.epochs * _BYTES_OF_EPOCH
    if size is None:
        return _BYTES_OF_RECORD + epochs
    logged = size.steps / config.log_every * _BYTES_OF_LOGGED_STEP
    label = mean(len(json.dumps(name)) for name in task.labels) if task.labels else 0.0
    logits = task.rules.head_outputs(one_logit=config.task_head.one_logit)
    # A line has the label and what is predicted in its place.
    line = _BYTES_OF_PREDICTION + 2 * label + logits * _BYTES_OF_LOGIT
    return _BYTES_OF_RECORD + epochs + logged + size.reported * line
