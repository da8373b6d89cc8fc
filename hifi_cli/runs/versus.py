"""`hifi versus`: a new method against stored baselines: plan, cost, canary, search, and the runs."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pandas as pd
import torch

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest
from hifi_cli.errors import MissingError, RunFailed, UsageError, logger
from hifi_cli.methods.find import check_method_settings
from hifi_cli.records.layout import CANARY
from hifi_cli.records.record import SCHEMA
from hifi_cli.records.study import COLUMN_OF_KEY, UNCHANGED_DRAWS, Study
from hifi_cli.reports.comparable import CONDITIONS
from hifi_cli.reports.protocols import protocol_config
from hifi_cli.reports.versus import (
    Baselines,
    CanaryResult,
    Outlook,
    RateChoice,
    Search,
    best_rate,
    canary_limit,
    comparable_with,
    outlooks,
)
from hifi_cli.runs.cost import Cost, CostEstimator, MeasuredStep
from hifi_cli.runs.heads import placeholder_heads
from hifi_cli.runs.inputs import load_task
from hifi_cli.runs.plan import Planner, machine_of
from hifi_cli.runs.prepare import prepare_run
from hifi_cli.runs.provenance import release_memory, reset_peak_memory
from hifi_cli.runs.run import run
from hifi_cli.runs.size import batch_size
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import Workspace
from hifi_cli.text import abbreviate
from hifi_cli.training.device import device_name, set_up_device, uses_bf16
from hifi_cli.training.loop import Callback, Trainer

# Steps of a measurement; the first ones are slow, as kernels are chosen and graphs recorded in them.
_SLOW_STEPS = 3
_MEASURED_STEPS = 8


# --- what is planned


@dataclass(frozen=True)
class VersusPlan:
    """All runs of the command, and what is known before the first one trains.

    Attributes:
        method: the new method, as finished runs have it.
        baselines: the stored runs that can be compared.
        search: how the baseline that tried most learning rates was searched.
        left_out: why other stored runs cannot be compared.
        outlooks: what each comparison can say at best.
        canary_runs: the stored runs that are repeated, one for each task.
        search_runs: the new method's run for each learning rate, on the tasks and seeds of `search`.
        method_runs: the new method's runs that are compared.
        device: where all of them train.
    """

    method: str
    baselines: Baselines
    search: Search
    left_out: list[str]
    outlooks: list[Outlook]
    canary_runs: list[RunConfig]
    search_runs: list[RunConfig]
    method_runs: list[RunConfig]
    device: torch.device

    @property
    def rates(self) -> list[float]:
        """The learning rates that are tried."""
        return sorted({config.learning_rate for config in self.search_runs})

    @property
    def can_decide(self) -> bool:
        """Whether any comparison can get a verdict."""
        return any(outlook.can_decide for outlook in self.outlooks)


def plan_versus(
    baselines: Baselines,
    configs: Sequence[RunConfig],
    workspace: Workspace,
    *,
    rates: Sequence[float],
    search_configs: Sequence[RunConfig],
    canary: str | None,
) -> VersusPlan:
    """Plan a new method's runs beside stored baselines; nothing trains.

    Args:
        baselines: the stored runs.
        configs: the new method's run for each task and seed.
        workspace: has data and results.
        rates: learning rates to try; empty: as many as the baseline that tried most, around the
            configured one.
        search_configs: the new method's run for each task and seed of the baselines' search.
        canary: the baseline that is repeated; None: the fastest one that can be.

    Raises:
        MissingError: the data, the encoder or the device is not here, or no baseline can be
            compared.
        UsageError: more rates than any baseline tried, or no baseline can be repeated.
    """
    method = configs[0].method
    device = _device_of(configs[0])
    # One run of each task stands for all of its seeds.
    new_runs = {config.task: config for config in configs}
    conditions = {}
    for task, config in new_runs.items():
        check_method_settings(config)
        conditions[task] = planned_conditions(config, workspace, device)
    comparable, left_out = comparable_with(baselines, conditions)
    if comparable.runs.empty:
        raise MissingError(
            f"no stored run can be compared with {method} here: {abbreviate(left_out, '; ')}"
        )
    # A task on which nothing can be compared is not trained.
    method_runs = [config for config in configs if config.task in comparable.tasks]
    seeds = sorted({config.seed for config in method_runs})
    rates_to_try = _rates_to_try(rates, baselines, method_runs[0].learning_rate)
    search_runs: list[RunConfig] = []
    if len(rates_to_try) > 1:
        search_runs = _search_runs(search_configs, rates_to_try, baselines)
    # The user's only rate needs no search.
    elif rates:
        method_runs = [_with_rate(config, rates_to_try[0]) for config in method_runs]
    return VersusPlan(
        method=method,
        baselines=comparable,
        search=baselines.search,
        left_out=left_out,
        outlooks=outlooks(comparable, seeds),
        canary_runs=_canary_runs(comparable, new_runs, seeds, canary),
        search_runs=search_runs,
        method_runs=method_runs,
        device=device,
    )


def _device_of(config: RunConfig) -> torch.device:
    """Return the device of the new runs: that of the stored ones unless the user names another.

    Raises:
        MissingError: it is not here.
    """
    try:
        return set_up_device(config)
    except MissingError as error:
        raise MissingError(f"the new runs take the stored ones' device: {error}") from None


def planned_conditions(
    config: RunConfig, workspace: Workspace, device: torch.device
) -> dict[str, Any]:
    """Return what a run will have in the columns of `CONDITIONS`, and in that of own epochs.

    Args:
        config: of the run.
        workspace: has its data.
        device: where it trains.

    Raises:
        MissingError: its data or its encoder is not here.
    """
    task = load_task(config)
    identity = workspace.identities.identity(config, task)
    data = identity.data_digests
    if data is None:
        # Loading the data raises the error that names what is missing.
        workspace.data(task)
        raise MissingError(f"the data of {config.task} are not here: give --data-dir")
    if identity.encoder_digest is None:
        raise MissingError(
            f"the encoder {config.backbone.name} is not here, and nothing can be compared without"
            " its digest: give --backbone"
        )
    settings: dict[str, Any] = {}
    for key, value in config.model_dump(mode="json").items():
        settings[COLUMN_OF_KEY.get(key, key)] = value
    usual = protocol_config(
        task=config.task,
        method=config.method,
        backbone=config.backbone.name,
        protocol=config.protocol,
        shots=config.shots,
    )
    conditions = {column: settings.get(column) for column in CONDITIONS}
    return conditions | {
        "metric": task.with_primary(config.primary_metric).primary,
        "precision": "bf16" if uses_bf16(config.precision, device) else "fp32",
        "selection": config.epoch_rule.selection,
        "weights": identity.encoder_digest,
        "task_digest": identity.task_digest,
        "data": digest(data),
        # A new run draws by this program's versions.
        "common_draws": UNCHANGED_DRAWS,
        "split": "validation",
        "schema_version": SCHEMA,
        "own_epochs": usual is None or usual.epochs != config.epochs,
    }


def _with_rate(config: RunConfig, rate: float) -> RunConfig:
    """Return a run with another learning rate."""
    return config.model_copy(update={"learning_rate": rate})


def _rates_to_try(given: Sequence[float], baselines: Baselines, configured: float) -> list[float]:
    """Return the learning rates to try, ascending.

    Args:
        given: by the user; empty: none.
        baselines: whose search bounds the number.
        configured: of the method.

    Raises:
        UsageError: more are given than any baseline tried.
    """
    allowed = baselines.search.rates
    if not given and allowed == 1:
        return [configured]
    if not given:
        # Half a power of ten lies between two rates, as between 1e-4, 3e-4 and 1e-3. The configured
        # one is in the middle, as it is.
        below = allowed // 2
        factors = [10 ** (step / 2) for step in range(-below, allowed - below)]
        around = [float(f"{configured * factor:.1g}") for factor in factors]
        around[below] = configured
        return around
    if len(given) > allowed:
        raise UsageError(
            f"--rates names {len(given)} learning rates, and no baseline of this study tried more"
            f" than {allowed}: more tries than they had would favour the new method"
        )
    return sorted(given)


def _search_runs(
    configs: Sequence[RunConfig], rates: Sequence[float], baselines: Baselines
) -> list[RunConfig]:
    """Return a run for each learning rate on each task and seed of the baselines' search.

    Args:
        configs: the new method's run for each task and seed of that search.
        rates: to try.
        baselines: were searched.
    """
    search = baselines.search
    runs = []
    for config in configs:
        for rate in rates:
            changes = {
                "learning_rate": rate,
                "selection": search.selection,
                "holdout": search.holdout,
                "variant": f"versus--learning_rate--{rate:g}",
            }
            runs.append(config.model_copy(update=changes))
    return runs


# --- the canary


def _canary_runs(
    baselines: Baselines,
    new_runs: dict[str, RunConfig],
    seeds: Sequence[int],
    name: str | None,
) -> list[RunConfig]:
    """Choose the stored runs that are repeated: of one baseline and seed, one for each task.

    Args:
        baselines: those that can be compared.
        new_runs: the new method's run on each task, whose backbone and device the canary has.
        seeds: that the new method is trained with.
        name: of the baseline; None: the fastest one that can be repeated.

    Raises:
        UsageError: no baseline can be repeated.
    """
    tasks = set(baselines.tasks)
    candidates: list[tuple[float, pd.DataFrame]] = []
    reasons = []
    for method in [name] if name else baselines.methods:
        runs = baselines.runs[baselines.runs["method"] == method]
        reason = _why_not_repeated(method, runs, tasks)
        complete = [seed for seed in seeds if set(runs.loc[runs["seed"] == seed, "task"]) == tasks]
        if not reason and not complete:
            reason = "has none of the seeds on all tasks"
        if reason:
            reasons.append(f"{method} {reason}")
            continue
        candidates.append((float(runs["time_s"].median()), runs[runs["seed"] == complete[0]]))
    if not candidates:
        raise UsageError(
            f"no stored run can be repeated as the canary: {abbreviate(reasons, '; ')}; choose"
            " other --tasks, --seeds or --against"
        )
    _, runs = min(candidates, key=lambda candidate: candidate[0])
    return [_repeated(stored, new_runs[stored.task]) for stored in runs.itertuples()]


def _why_not_repeated(method: str, runs: pd.DataFrame, tasks: set[str]) -> str:
    """Return why a baseline cannot be the canary; empty: it can.

    Args:
        method: its name.
        runs: its stored runs.
        tasks: of all baselines.
    """
    if method not in registry.names("methods") or registry.own_file(method):
        return "is a method of somebody's own, whose code is not run"
    counts = runs.groupby("task").size()
    if set(counts.index) != tasks or counts.min() < 2:
        return "lacks two stored seeds on each task"
    if runs["method_code"].notna().any() or any(config["start_from"] for config in runs["config"]):
        return "depends on code or runs that the study does not hold"
    if (runs["draws"] != UNCHANGED_DRAWS).any():
        return "drew its random numbers by another version of this program"
    return ""


def _repeated(stored: Any, new_run: RunConfig) -> RunConfig:
    """Return the configuration of a stored run, for this machine.

    Args:
        stored: a row of `Baselines.runs`.
        new_run: the new method's run on its task.

    Raises:
        UsageError: this program has other settings than the stored run.
    """
    config = parse(RunConfig, stored.config, f"the stored run {stored.path}")
    here = {"task": new_run.task, "backbone": new_run.backbone, "device": new_run.device}
    config = config.model_copy(update=here)
    if config.config_hash != stored.config_hash:
        raise UsageError(
            f"{stored.path} was stored with settings that this program does not have: train the"
            " baselines again"
        )
    # Where the configuration says auto, this machine may choose otherwise than the stored run's.
    return config.model_copy(update={"precision": stored.precision})


def repeat_canary(plan: VersusPlan, workspace: Workspace) -> CanaryResult:
    """Train the canary's runs in a place of their own, and compare them with the stored ones.

    Args:
        plan: of the command.
        workspace: of the command.

    Raises:
        RunFailed: a run diverged, which the stored one did not.
    """
    own = canary_workspace(workspace)
    stored = plan.baselines.runs.set_index("path")
    shifts = {}
    for config in plan.canary_runs:
        result = run(config, own)
        if not result.is_done:
            raise RunFailed(f"canary: {config.run_label} diverged here, and the stored run did not")
        points = float(stored.at[config.run_path.as_posix(), "points"])
        shifts[config.task] = 100 * result.score() - points
    first = plan.canary_runs[0]
    limit = canary_limit(plan.baselines, first.method)
    # A baseline with one seed was not chosen.
    assert limit is not None
    return CanaryResult(first.method, first.seed, shifts, limit)


def canary_workspace(workspace: Workspace) -> Workspace:
    """Return a workspace for the canary's runs, which shares what is loaded."""
    return replace(workspace, results_dir=workspace.results_dir / CANARY)


# --- the new method's runs


def train_search(plan: VersusPlan, workspace: Workspace) -> RateChoice:
    """Try the learning rates, and choose the best one."""
    for index, config in enumerate(plan.search_runs, start=1):
        logger.info(f"search, run {index} of {len(plan.search_runs)}: {config.run_label}")
        run(config, workspace)
    paths = [config.run_path.as_posix() for config in plan.search_runs]
    return best_rate(Study(workspace.results_dir), paths)


def train_method(
    plan: VersusPlan, workspace: Workspace, choice: RateChoice | None
) -> list[RunConfig]:
    """Train the new method's runs, and give their configurations.

    Args:
        plan: of the command.
        workspace: of the command.
        choice: the learning rate that the search chose; None: nothing was searched.
    """
    configs = plan.method_runs
    if choice is not None:
        configs = [_with_rate(config, choice.rate) for config in configs]
    for index, config in enumerate(configs, start=1):
        logger.info(f"run {index} of {len(configs)}: {config.run_label}")
        run(config, workspace)
    return configs


# --- cost


@dataclass(frozen=True)
class VersusCost:
    """The expected cost of a plan's runs.

    Attributes:
        minutes: of each part (`canary`, `search`, `method`), without finished runs.
        finished: number of runs that are finished already.
        step: measured seconds of a training step of the new method, on a CPU of its cores.
        per_run: minutes of one of the new method's runs, a mean over tasks.
        unit: what the minutes are of.
        left: cost of the runs that are not finished, whose seconds are those of `minutes`.
    """

    minutes: dict[str, float]
    finished: int
    step: float
    per_run: float
    unit: str
    left: Cost

    @property
    def total(self) -> float:
        """Minutes of all parts."""
        return sum(self.minutes.values())


def estimate_cost(plan: VersusPlan, workspace: Workspace) -> VersusCost:
    """Estimate what a plan takes: a few steps are measured here, and stored runs scale them to tasks.

    Args:
        plan: of the command.
        workspace: of the command.
    """
    measured = _measured_steps(plan, workspace)
    stored = plan.baselines.study.results.values()
    estimator = CostEstimator(stored, Planner(workspace).stored_bytes, measured)
    machine = machine_of(plan.device)

    def cost_of(configs: Sequence[RunConfig]) -> Cost:
        return Cost.of_all(
            [estimator.cost(config, load_task(config), machine) for config in configs]
        )

    parts = {
        "canary": (plan.canary_runs, canary_workspace(workspace)),
        "search": (plan.search_runs, workspace),
        "method": (plan.method_runs, workspace),
    }
    minutes = {}
    finished = 0
    left = []
    for name, (configs, where) in parts.items():
        unfinished = [config for config in configs if not where.directory(config).results.is_file()]
        cost = cost_of(unfinished)
        minutes[name] = cost.seconds.value / 60
        finished += len(configs) - len(unfinished)
        left.append(cost)
    per_run = cost_of(plan.method_runs).seconds.value / 60 / len(plan.method_runs)
    unit = f"minutes of {device_name(plan.device)}"
    if plan.device.type == "cpu":
        unit = "core-minutes"
    step = measured[plan.method].seconds
    return VersusCost(minutes, finished, step, per_run, unit, Cost.of_all(left))


def _measured_steps(plan: VersusPlan, workspace: Workspace) -> dict[str, MeasuredStep]:
    """Measure a step of the canary and of the new method, both on the first task."""
    first = plan.method_runs[0]
    (canary,) = [config for config in plan.canary_runs if config.task == first.task]
    measured = {}
    for config in (canary, first):
        batch = batch_size(config, load_task(config))
        seconds = measured_step(config, workspace)
        measured[config.method] = MeasuredStep(config.task, batch, seconds)
    return measured


def _cores(plan: VersusPlan) -> int:
    """Count the cores that a run keeps busy; 1 of a run on a GPU."""
    return torch.get_num_threads() if plan.device.type == "cpu" else 1


def spent_minutes(plan: VersusPlan, configs: Sequence[RunConfig], workspace: Workspace) -> float:
    """Sum the minutes that the runs of a command took, in the unit of their cost.

    Args:
        plan: of the command.
        configs: the new method's runs, as they were trained.
        workspace: of the command.
    """
    places = [canary_workspace(workspace).directory(config) for config in plan.canary_runs]
    places += [workspace.directory(config) for config in [*plan.search_runs, *configs]]
    seconds = sum(place.read_result().wall_s for place in places)
    return seconds * _cores(plan) / 60


class _StepClock(Callback):
    """Notes when each step ends: on a CPU in seconds of its cores, which no other program adds to."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        """Note when the first step begins."""
        self.times.append(_seconds_so_far(trainer.runner.device))

    def on_step_end(self, trainer: Trainer) -> None:
        """Note the time when the device has done the step."""
        self.times.append(_seconds_so_far(trainer.runner.device))


def _seconds_so_far(device: torch.device) -> float:
    """Return the seconds that a device has computed for this process, from some beginning on."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.monotonic()


def measured_step(config: RunConfig, workspace: Workspace) -> float:
    """Measure the seconds of a training step of a run here, on a CPU of its cores; nothing is stored.

    Args:
        config: of the run.
        workspace: has its data and encoder.
    """
    device = set_up_device(config)
    # The next run's peak memory is then not taken for its own.
    reset_peak_memory(device)
    task = load_task(config)
    inputs = workspace.inputs(config, task)
    # Which heads are tuned does not change the time.
    heads = placeholder_heads(config, inputs.pretrained.encoder)
    prepared = prepare_run(config, task, inputs.pretrained, device, heads)
    splits = load_splits(inputs)
    clock = _StepClock()
    trainer = Trainer(prepared, prepared.method, splits, callback=clock)
    trainer.train(_MEASURED_STEPS)
    durations = [end - start for start, end in pairwise(clock.times)]
    release_memory()
    # A run may have fewer steps than are slow.
    return statistics.median(durations[_SLOW_STEPS:] or durations)
