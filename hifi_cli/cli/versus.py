"""`hifi versus`: a new method against the stored baselines of a study."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.decides import keys_that_decide
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, parse_override
from hifi_cli.errors import RunFailed, UsageError, logger
from hifi_cli.records import share
from hifi_cli.records.stored import refuse_packed
from hifi_cli.records.study import Study
from hifi_cli.reports.render import AS_IT_IS, LatexOptions, emit, format_of, render
from hifi_cli.reports.table import Table
from hifi_cli.reports.versus import (
    Baselines,
    CanaryResult,
    RateChoice,
    claims_of,
    further_seeds,
    joined,
    result_tables,
)
from hifi_cli.text import counted_noun, is_number, printable

# The modules that import torch are imported by the functions below that call them.
if TYPE_CHECKING:
    from hifi_cli.runs.versus import VersusCost, VersusPlan
    from hifi_cli.runs.workspace import Workspace


def versus(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="The new method: its YAML, or a name.")
    ],
    overrides: options.Overrides = None,
    study: Annotated[
        str,
        typer.Option(
            "--study",
            metavar="DIR|hub:OWNER/NAME",
            help="The stored baselines: a packed study or a results directory, here or on the hub.",
            rich_help_panel=options.WHAT,
        ),
    ] = str(options.RESULTS),
    against: Annotated[
        list[str] | None,
        options.several("--against", help="Baselines; default: every method of the study."),
    ] = None,
    tasks: options.Tasks = None,
    seeds: options.Seeds = None,
    protocol: options.Protocol = None,
    backbone: options.Backbone = None,
    shots: options.Shots = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="RATE,...",
            help="Learning rates to try, at most as many as a baseline tried; default: as many, around the method's own.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Baseline that is trained once more on each task, as a check; default: the fastest.",
            rich_help_panel=options.HOW,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="MINUTES",
            help="Train nothing if all runs would take more core-minutes (on a GPU: minutes).",
            rich_help_panel=options.HOW,
        ),
    ] = None,
    without_verdict: Annotated[
        bool,
        typer.Option(
            "--without-verdict",
            help="Train even where tasks, seeds and baselines can give no verdict.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would be trained, compared and spent, and stop.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
    caption: options.Caption = None,
    label: options.Label = None,
) -> None:
    """Train a new method and compare it with stored baselines, of which one run per task is trained again as a check.

    It prints what it will cost before it trains, and a verdict, what may be claimed, and LaTeX afterwards.
    """
    from hifi_cli.runs.versus import estimate_cost, repeat_canary, train_method, train_search
    from hifi_cli.runs.workspace import Workspace

    latex = LatexOptions(caption, label)
    # Without another format, the table of verdicts is printed as text and as LaTeX.
    prints_both = format is None and out is None
    if latex != AS_IT_IS and not prints_both and format_of(format, out) != "tex":
        raise UsageError("--caption and --label are for LaTeX: leave them out")
    refuse_packed(results_dir)
    with share.opened(study) as directory:
        name = options.stored_names("methods", [method])[0]
        stored = Study(directory)
        _refuse_stored(name, stored, against or [], results_dir)
        baselines = Baselines.of(
            stored,
            methods=options.stored_names("methods", against),
            tasks=options.stored_names("tasks", tasks),
            keys=options.stored_keys(protocol, backbone, shots),
            new=name,
        )
        workspace = Workspace(results_dir, data_dir)
        new = _NewMethod(method, tasks, protocol, backbone, overrides or [])
        plan = _plan(new, baselines, workspace, seeds=seeds, rates=rates, canary=canary)
        cost = estimate_cost(plan, workspace)
        _show(_lines(plan, cost), to_stdout=dry_run)
        _refuse(plan, cost, budget=budget, without_verdict=without_verdict)
        if dry_run:
            return
        # The canary comes first: where it does not hold, no run of the new method is trained.
        repeated = repeat_canary(plan, workspace)
        logger.info(str(repeated))
        _refuse_failed_canary(repeated)
        choice = None
        if plan.search_runs:
            choice = train_search(plan, workspace)
        configs = train_method(plan, workspace, choice)
        conditions = [_learning_rates(plan, choice), *plan.left_out]
        tables = _tables(plan, configs, workspace, cost, repeated, conditions)
    if prints_both:
        emit(tables, None, None)
        print(render("tex", tables[:1], latex))
    else:
        emit(tables, format, out, latex)


# --- what is planned


def _refuse_stored(name: str, study: Study, against: Sequence[str], results_dir: Path) -> None:
    """Refuse a method that is not new.

    In the command's own results directory, its runs may be those of the same command, which was
    interrupted.

    Args:
        name: of the method.
        study: has the stored runs.
        against: the baselines that the user names.
        results_dir: where the method's runs belong.

    Raises:
        UsageError: the study holds runs of it, or it is its own baseline.
    """
    is_own = study.directory.resolve() == results_dir.resolve()
    if name in against or (name in study.names("method") and not is_own):
        raise UsageError(
            f"the study holds runs of {name}: hifi compare compares them; a new method has a YAML and"
            f" a name of its own, with base: {name} for example"
        )


@dataclass(frozen=True)
class _NewMethod:
    """The new method, as the command line names it, and the settings of its runs.

    Attributes:
        method: a name or a YAML.
        tasks: names or YAMLs; None: those of the baselines.
        protocol: a name or a YAML; None: that of the baselines.
        backbone: as `hifi train` takes it; None: that of the baselines.
        overrides: `key=value`.
    """

    method: str
    tasks: list[str] | None
    protocol: str | None
    backbone: str | None
    overrides: list[str]

    def configs(self, baselines: Baselines, tasks: Sequence[str], seeds: str) -> list[RunConfig]:
        """Return the configuration of every task and seed.

        They have the baselines' precision, device and whatever else says how numbers are computed,
        unless the command line does.

        Args:
            baselines: the stored runs.
            tasks: as a command line names them.
            seeds: as a command line gives them.
        """
        given: set[str] = set()
        for word in self.overrides:
            given.update(flatten(parse_override(word)))
        inherited = baselines.shared_values(keys_that_decide(RunConfig, "computation"))
        if baselines.shots:
            inherited["shots"] = baselines.shots
        words = []
        for key, value in inherited.items():
            if key not in given:
                words.append(f"{key}={override_value(value)}")
        return options.resolve_runs(
            [*tasks],
            [self.method],
            self.backbone or baselines.backbone,
            self.protocol or baselines.protocol,
            seeds=seeds,
            overrides=[*words, *self.overrides],
        )


def _plan(
    new: _NewMethod,
    baselines: Baselines,
    workspace: "Workspace",
    *,
    seeds: str | None,
    rates: str | None,
    canary: str | None,
) -> "VersusPlan":
    """Plan the runs of the command.

    Raises:
        UsageError: a name or value is wrong.
        MissingError: something that the runs need is not here, or nothing can be compared.
    """
    from hifi_cli.runs.versus import plan_versus

    tasks = new.tasks or _plain_tasks(baselines)
    seed_words = seeds or ",".join(map(str, baselines.seeds))
    search = baselines.search
    search_configs: list[RunConfig] = []
    if search.method:
        seeds_of_search = ",".join(map(str, search.seeds))
        search_configs = new.configs(baselines, search.tasks, seeds_of_search)
    return plan_versus(
        baselines,
        new.configs(baselines, tasks, seed_words),
        workspace,
        rates=_parsed_rates(rates),
        search_configs=search_configs,
        canary=canary,
    )


def _plain_tasks(baselines: Baselines) -> list[str]:
    """Return the baselines' tasks by name.

    Raises:
        UsageError: one is of somebody's own YAML.
    """
    for task in baselines.tasks:
        if registry.own_file(task) or task not in registry.names("tasks"):
            raise UsageError(f"task {task} is of a YAML of its own: name tasks with --tasks")
    return baselines.tasks


def _parsed_rates(text: str | None) -> list[float]:
    """Return learning rates such as 1e-3,3e-3.

    Raises:
        UsageError: one is no positive number, or stands twice.
    """
    if text is None:
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(is_number(word) and 0 < float(word) < inf for word in words):
        raise UsageError(f"--rates '{text:.80}': give learning rates such as 1e-3,3e-3")
    values = [float(word) for word in words]
    if len(set(values)) < len(values):
        raise UsageError(f"--rates '{text:.80}': a learning rate stands twice")
    return values


# --- what is said before a run trains


def _show(lines: Sequence[tuple[str, str]], *, to_stdout: bool) -> None:
    """Print lines of a name and a text each.

    Args:
        lines: the plan with its cost.
        to_stdout: whether the plan is what the command prints; else it is a message.
    """
    for name, text in lines:
        line = f"{name:9} {text}"
        if to_stdout:
            print(printable(line))
        else:
            logger.info(line)


def _lines(plan: "VersusPlan", cost: "VersusCost") -> list[tuple[str, str]]:
    """Return what is planned, as a name and a text for each line."""
    lines = [
        ("baselines", _baselines(plan)),
        ("device", _devices(plan)),
        ("rates", _learning_rates(plan, None)),
        ("canary", _canary(plan)),
        ("method", _new_runs(plan)),
        ("cost", _cost(plan, cost)),
    ]
    # The line of the cost says the time already.
    lines.append(("disk", cost.left.lines["disk"]))
    lines += [("verdict", str(outlook)) for outlook in plan.outlooks]
    lines += [("left out", note) for note in plan.left_out]
    return lines


def _baselines(plan: "VersusPlan") -> str:
    """Return in words which baselines there are, and under what protocol and on what encoder they were trained."""
    labels = [registry.label_of("methods", method) for method in plan.baselines.methods]
    # All runs have the protocol and the encoder of the first one.
    first = plan.method_runs[0]
    return f"{', '.join(labels)} (protocol {first.protocol}, {first.backbone.name})"


def _canary(plan: "VersusPlan") -> str:
    """Return in words which stored runs are trained again as a check."""
    canary = plan.canary_runs[0]
    label = registry.label_of("methods", canary.method)
    runs = counted_noun(len(plan.canary_runs), "run")
    return f"{label}, seed {canary.seed}, once on each task: {runs}, in no mean"


def _new_runs(plan: "VersusPlan") -> str:
    """Return in words which runs of the new method are compared."""
    label = registry.label_of("methods", plan.method)
    tasks = [*dict.fromkeys(config.task for config in plan.method_runs)]
    seeds = [*dict.fromkeys(str(config.seed) for config in plan.method_runs)]
    runs = counted_noun(len(plan.method_runs), "run")
    return f"{label} on {', '.join(tasks)}, seeds {','.join(seeds)}: {runs}"


def _cost(plan: "VersusPlan", cost: "VersusCost") -> str:
    """Return in words how many runs there are, and what those that are not finished will take."""
    count = len(plan.canary_runs) + len(plan.search_runs) + len(plan.method_runs)
    parts = [f"{name} {minutes:.2f}" for name, minutes in cost.minutes.items()]
    return (
        f"{counted_noun(count, 'run')}, {cost.finished} of them finished; about {cost.total:.2f}"
        f" {cost.unit} ({', '.join(parts)}), at {cost.step:.3f} s a step, measured here"
    )


def _devices(plan: "VersusPlan") -> str:
    """Return in words where the stored runs were trained, and where the new ones will be."""
    from hifi_cli.training.device import device_name

    stored = " and ".join(sorted(set(map(str, plan.baselines.runs["device"]))))
    here = device_name(plan.device)
    precision = " and ".join(sorted(set(plan.baselines.runs["precision"])))
    text = f"{here}, {precision}"
    if stored == here:
        return f"{text}, as the stored runs"
    return (
        f"{text}; the stored runs are of {stored}, and the canary alone says whether that matters"
    )


def _learning_rates(plan: "VersusPlan", choice: RateChoice | None) -> str:
    """Return in words which learning rates are tried, on what, and which one was chosen.

    Args:
        plan: of the command.
        choice: the best one; None: not known yet, or nothing is searched.
    """
    search = plan.search
    allowed = "no baseline of the study was searched"
    if search.method:
        label = registry.label_of("methods", search.method)
        allowed = f"{label} tried {search.rates}, the most of all baselines"
    if not plan.search_runs:
        return f"learning rate {plan.method_runs[0].learning_rate:g}, not searched ({allowed})"
    rates = ", ".join(f"{rate:g}" for rate in plan.rates)
    where = f"{', '.join(search.tasks)}, seed {','.join(map(str, search.seeds))}"
    text = (
        f"learning rates {rates} ({allowed}), by the mean rank over {where}, on {search.selection}"
    )
    if search.selection == "holdout":
        text += f" {search.holdout:g} of the train split"
    if choice is not None:
        text += f"; {choice}"
    return text


def _what_a_verdict_takes(plan: "VersusPlan") -> str:
    """Return in words what to choose where no comparison can get a verdict."""
    needed = min(outlook.needed_seeds for outlook in plan.outlooks)
    stored = counted_noun(len(plan.baselines.seeds), "seed")
    ways = [f"choose {needed} seeds or more (the study has {stored})", "more tasks"]
    if len(plan.outlooks) > 1:
        ways.append("fewer baselines (--against)")
    return f"{', or '.join(ways)}, or train nevertheless with --without-verdict"


def _refuse(
    plan: "VersusPlan", cost: "VersusCost", *, budget: float | None, without_verdict: bool
) -> None:
    """Refuse runs that can decide nothing, or cost too much.

    Raises:
        UsageError: they do.
    """
    if not plan.can_decide and not without_verdict:
        raise UsageError(f"no verdict is possible: {_what_a_verdict_takes(plan)}")
    if budget is not None and cost.total > budget:
        raise UsageError(
            f"the runs take about {cost.total:.2f} {cost.unit}, more than --budget {budget:g}:"
            " choose fewer seeds or tasks, or a larger budget"
        )


# --- what is said after training


def _refuse_failed_canary(repeated: CanaryResult) -> None:
    """End the command where this machine does not compute what the stored runs say.

    Raises:
        RunFailed: it does not.
    """
    if not repeated.holds:
        raise RunFailed(
            f"the stored runs are not used: {repeated}; either they were not made as their records"
            " say, or this machine computes otherwise: train the baselines here, with hifi train"
        )


def _tables(
    plan: "VersusPlan",
    configs: Sequence[RunConfig],
    workspace: "Workspace",
    cost: "VersusCost",
    repeated: CanaryResult,
    conditions: Sequence[str],
) -> list[Table]:
    """Return what the command prints: the verdicts with all notes, and the tables beside them.

    Args:
        plan: of the command.
        configs: the new method's runs, as they were trained.
        workspace: of the command.
        cost: as it was estimated.
        repeated: the canary, as it was trained here.
        conditions: sentences about the learning rate and what was left out.
    """
    from hifi_cli.runs.versus import spent_minutes

    paths = [config.run_path.as_posix() for config in configs]
    both = joined(plan.baselines, Study(workspace.results_dir), paths)
    verdicts, *others = result_tables(both, plan.method, plan.baselines.methods)
    count = counted_noun(len(plan.canary_runs) + len(plan.search_runs) + len(configs), "run")
    spent = spent_minutes(plan, configs, workspace)
    notes = [
        *claims_of(both, plan.method, verdicts),
        *_plans_for_seeds(both, plan, verdicts, cost),
        repeated.beside(verdicts),
        *conditions,
        f"cost: {count} trained here, {spent:.2f} {cost.unit}",
        *verdicts.notes,
    ]
    return [replace(verdicts, notes=notes), *others]


def _plans_for_seeds(
    both: Study, plan: "VersusPlan", verdicts: Table, cost: "VersusCost"
) -> list[str]:
    """Return sentences on how many new seeds would show differences as large as those without a verdict."""
    texts = []
    for more in further_seeds(both, plan.method, verdicts):
        runs = more.seeds * len(more.tasks)
        texts.append(
            f"plan, not a verdict: {more.seeds} new seeds would show a difference from"
            f" {registry.label_of('methods', more.method)} as large as now (power 0.8):"
            f" {counted_noun(runs, 'run')} of each of the two, about"
            f" {2 * runs * cost.per_run:.2f} {cost.unit}; decide on them before training, and read"
            " the verdict from the new seeds alone"
        )
    return texts
