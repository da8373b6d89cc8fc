"""Estimated costs of runs: steps, time, disk, memory, and what each rests on. Without torch.

Every number of this kind that the program prints comes from here: the summary of `hifi grid`, the
lines of a dry run, the cost of `hifi versus`. Seconds and memory are those of stored records. Where no
record is like the run, the number is unknown, and the reason says what to do.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from hifi_cli.config.decides import keys_that_decide
from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest
from hifi_cli.errors import HifiError, logger
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
        rests_on: the number of runs for which it rests on something, by what that is.
        unknown: the number of runs for which it is unknown, by the reason.
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
        """Return the number in words, what it rests on, and for how many runs it is unknown.

        Args:
            text: the number in words.
        """
        parts = []
        if self.is_known:
            parts.append(f"{text}, by {self._bases_in_words()}")
        # The number of a single run needs no count.
        is_of_one_run = not self.is_known and sum(self.unknown.values()) == 1
        for reason, count in self.unknown.most_common(3):
            for_runs = "" if is_of_one_run else f" for {counted_noun(count, 'run')}"
            parts.append(f"unknown{for_runs}: {reason}")
        return "; ".join(parts) or "nothing"

    def _bases_in_words(self) -> str:
        """Return what the number rests on, and for how many runs if on several things."""
        counts = self.rests_on.most_common()
        if len(counts) == 1:
            only, _ = counts[0]
            return only
        bases = [f"{basis} ({count:,})" for basis, count in counts]
        return abbreviate(bases, "; ")


def sum_of(amounts: Sequence[Amount]) -> Amount:
    """Add the numbers of several runs."""
    return _joined(amounts, sum(amount.value for amount in amounts))


def largest_of(amounts: Sequence[Amount]) -> Amount:
    """Return the largest number of several runs."""
    return _joined(amounts, max((amount.value for amount in amounts), default=0.0))


def _joined(amounts: Iterable[Amount], value: float) -> Amount:
    """Make the number of several runs, which rests on whatever theirs rest on.

    Args:
        amounts: the numbers of the runs.
        value: what they are together.
    """
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
        """Return the cost of several runs together."""
        return cls(
            runs=sum(cost.runs for cost in costs),
            steps=sum_of([cost.steps for cost in costs]),
            seconds=sum_of([cost.seconds for cost in costs]),
            disk=sum_of([cost.disk for cost in costs]),
            memory=largest_of([cost.memory for cost in costs]),
        )

    @property
    def lines(self) -> dict[str, str]:
        """The texts of the lines `time`, `disk` and `memory`."""
        time = f"about {format_hours(self.seconds.value)}"
        if self.steps.value and self.seconds.is_known and not self.seconds.unknown:
            time += f" at {self.seconds.value / self.steps.value:.3g} s a step with evaluations"
        return {
            "time": self.seconds.sentence(time),
            "disk": self.disk.sentence(f"about {format_bytes(self.disk.value)}"),
            "memory": self.memory.sentence(f"up to {format_bytes(self.memory.value)}"),
        }


# --- where the runs will train


@dataclass(frozen=True)
class Machine:
    """Where a run trains.

    Attributes:
        device: name of the GPU or CPU, as records have it.
        threads: of PyTorch; None on a GPU, whose speed they do not decide.
        memory: bytes of the GPU's memory; None on a CPU, and where a record says the machine. Two
            machines are equal without regard to it.
    """

    device: str
    threads: int | None = None
    memory: int | None = field(default=None, compare=False)

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
        speed: digest of what decides its speed besides method, task, batches and machine.
        precisions: the one that it computed in, and that of its configuration, which may be `auto`:
            a planned run is like it by either.
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
        several_trained = any(process.processes > 1 for process in result.processes)
        if size is None or not result.time_s or several_trained:
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
    """Return where a run was trained."""
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


@dataclass(frozen=True)
class _Rate:
    """The expected speed of a run.

    Attributes:
        seconds: for a row that it trains on.
        basis: what they rest on.
    """

    seconds: float
    basis: str


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
        # Rows of `train` and `validation`, by task.
        self._rows: dict[str, dict[str, int]] = {}
        # Bytes of stored weights, by `_weights_key` and task; under the task None those of all.
        self._weights: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        # By `_speed_of` and precision.
        self._runs: dict[tuple[str, str], list[_StoredRun]] = defaultdict(list)
        # How many runs each machine has trained, by encoder.
        self._machines: dict[str, Counter[Machine]] = defaultdict(Counter)
        for result in results:
            self._add(result)
        # Estimates made already, by the settings of a run without its seed, machine and size.
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
        # A few-shot run, or one with a limit, does not see all rows of its task.
        if not result.shots and not result.limit:
            rows = self._rows.setdefault(result.task, {"train": 0, "validation": 0})
            rows["train"] = max(rows["train"], stored.size.train + stored.size.selection)
            rows["validation"] = max(rows["validation"], stored.size.reported)
        for precision in stored.precisions:
            self._runs[stored.speed, precision].append(stored)
        self._machines[result.backbone][stored.machine] += 1

    def rows_of(self, task: TaskSpec, name: str) -> dict[str, int]:
        """Return the number of rows of a task's splits: those of records, or the official ones.

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
            seconds_of_row = measured.seconds / measured.batch
            ratio = self._ratio_of_tasks(config, measured.task)
            return Amount.known(seconds_of_row * ratio * size.work, MEASURED_HERE)
        if machine is None:
            return Amount.missing("the machine of the runs is not known here")
        runs = self._alike_on(config, machine)
        rate = _rate_of(config, (size.batch, config.max_length), runs)
        if rate is None:
            return Amount.missing(self._why_no_step(config, machine))
        return Amount.known(rate.seconds * size.work, rate.basis)

    def _alike(self, config: RunConfig) -> list[_StoredRun]:
        """Return the stored runs of a run's encoder and computation, by all methods, anywhere."""
        return self._runs.get((_speed_of(config.model_dump(mode="json")), config.precision), [])

    def _alike_on(self, config: RunConfig, machine: Machine) -> list[_StoredRun]:
        """Return the runs of `_alike` that a machine has trained."""
        return [run for run in self._alike(config) if run.machine == machine]

    def _ratio_of_tasks(self, config: RunConfig, task: str) -> float:
        """Return how long a row of a run's task takes, relative to a row of another task.

        It is the median over the methods that have trained both, each under equal conditions; 1 where
        none has.

        Args:
            config: of the run.
            task: the other task.
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
        """Return why no record gives the time of a step."""
        elsewhere = ""
        machines = self._machines[config.backbone.name].most_common()
        others = [str(other) for other, _ in machines if other != machine]
        if others:
            elsewhere = f" (records are of {abbreviate(others)})"
        return f"no measured step on {machine}{elsewhere}: train one run first"

    # --- disk

    def _disk(self, config: RunConfig, task: TaskSpec, size: RunSize | None) -> Amount:
        """Estimate the bytes of the files that a run leaves."""
        weights = self._bytes_of_weights(config, task)
        if not weights.is_known:
            return weights
        return replace(weights, value=weights.value + _bytes_of_texts(config, task, size))

    def _bytes_of_weights(self, config: RunConfig, task: TaskSpec) -> Amount:
        """Estimate the bytes of the weights that a run stores."""
        key = _weights_key(config.method, config.model_dump(mode="json"))
        # The task head differs from task to task: runs of the same task come first.
        stored = self._weights.get((key, config.task)) or self._weights.get((key, None))
        if stored:
            return Amount.known(median(stored), STORED_RUNS)
        counted = None
        if self._stored_bytes:
            counted = self._stored_bytes(config, task)
        if counted is None:
            return Amount.missing(f"no finished run of {config.method} with {config.backbone.name}")
        return Amount.known(counted, COUNTED)

    # --- memory

    def _memory(self, config: RunConfig, size: RunSize | None, machine: Machine | None) -> Amount:
        """Return the highest peak memory of stored runs that are like a run."""
        if machine is None:
            return Amount.missing("the machine of the runs is not known here")
        runs = []
        for run in self._alike(config):
            # Another run of the same process may have caused the peak.
            is_own_peak = run.result.memory_is_own is not False
            if run.machine.device == machine.device and is_own_peak:
                runs.append(run)
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


def _peak(runs: Iterable[_StoredRun]) -> float:
    """Return the highest peak memory of some runs, in bytes."""
    return float(max(run.result.peak_memory_bytes for run in runs))


# --- rates


def _rates(runs: Iterable[_StoredRun]) -> _Rates:
    """Return the median time of a row by method and task."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        found[run.result.method, run.result.task].append(run.rate)
    return {key: median(values) for key, values in found.items()}


def _ratios(rates: _Rates, task: str, other: str) -> list[float]:
    """Return the time of a task's row relative to another's, by each method that has trained both.

    Args:
        rates: under equal conditions.
        task: whose rows are in the numerator.
        other: the other task.
    """
    ratios = []
    for (method, of_task), rate in rates.items():
        if of_task == task and (method, other) in rates:
            ratios.append(rate / rates[method, other])
    return ratios


def _rate_of(
    config: RunConfig, batches: tuple[int, int], runs: Sequence[_StoredRun]
) -> _Rate | None:
    """Estimate the speed of a run by the stored runs that are most like it; None: there are none.

    From the most like to the least: the same method, task and batches; the same method and task; the
    method on other tasks; other methods on the task.

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
        return _Rate(median(same), OWN_RUNS)
    if own:
        return _Rate(median(run.rate for run in own), OTHER_BATCHES)
    rates = _rates(runs)
    # The method's time on each other task, times how much longer or shorter each other method that
    # has trained both takes for a row of the run's task.
    scaled = []
    for of_method, other in rates:
        if of_method == method:
            ratios = _ratios(rates, task, other)
            scaled += [rates[method, other] * ratio for ratio in ratios]
    if scaled:
        return _Rate(median(scaled), OTHER_TASKS)
    on_task = {of_method: rate for (of_method, of_task), rate in rates.items() if of_task == task}
    if on_task:
        # No other method says how fast this one is: rather too much time is planned than too little.
        slowest = max(on_task, key=on_task.__getitem__)
        basis = f"runs of {slowest} on the task, the slowest method there"
        return _Rate(on_task[slowest], basis)
    return None


# --- files


def _bytes_of_texts(config: RunConfig, task: TaskSpec, size: RunSize | None) -> float:
    """Estimate the bytes of a run's files besides its weights: record, log and predictions."""
    epochs = config.epochs * _BYTES_OF_EPOCH
    if size is None:
        return _BYTES_OF_RECORD + epochs
    logged = size.steps / config.log_every * _BYTES_OF_LOGGED_STEP
    label = mean(len(json.dumps(name)) for name in task.labels) if task.labels else 0.0
    logits = task.rules.logits_per_sequence(one_logit=config.task_head.one_logit)
    # A line has the label and what is predicted in its place.
    line = _BYTES_OF_PREDICTION + 2 * label + logits * _BYTES_OF_LOGIT
    return _BYTES_OF_RECORD + epochs + logged + size.reported * line
