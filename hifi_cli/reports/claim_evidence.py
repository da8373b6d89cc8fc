"""What finished runs, figures and measured costs say about a claim: numbers by task and repetition, and what is missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hifi_cli.config import figure_spec
from hifi_cli.config.choices import Score
from hifi_cli.config.registry import argument_of, label_of, name_of
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.reports import chance, run_filter, run_pairs
from hifi_cli.reports.claim_measures import Values, cells_of, reduced, stored_measure
from hifi_cli.reports.claim_scope import tasks_of
from hifi_cli.reports.claim_spec import Claim, ClaimsFile, ComparisonClaim, OrderClaim, PropertyClaim, TrendClaim
from hifi_cli.reports.proportions import Failures
from hifi_cli.reports.run_records import Results, RunRecord
from hifi_cli.reports.table import MissingRuns
from hifi_cli.reports.table_spec import shots_of
from hifi_cli.wording import counted_noun


@dataclass(frozen=True)
class ClaimContext:
    """Where evidence is looked for."""

    results: Results
    protocol: str
    backbone: str
    shots: str
    tasks: Sequence[str]
    seeds: Sequence[int]
    score: Score | None
    counted: frozenset[str]

    @classmethod
    def of(
        cls, claim: Claim, file: ClaimsFile, results: Results, score: Score | None, counted: frozenset[str]
    ) -> "ClaimContext":
        """Return the context of a claim in a file of claims."""
        protocol = claim.protocol or file.protocol
        tasks, shots = tasks_of(claim, file), str(claim.shots or shots_of(protocol))
        return cls(results, protocol, claim.only_backbone or file.backbone, shots, tasks, file.seeds, score, counted)

    def records(self, methods: Sequence[str]) -> list[RunRecord]:
        """Return the finished runs of some methods with their protocol's settings."""
        return [record for record in self._finished(methods) if not record.changed_settings]

    def _finished(self, methods: Sequence[str]) -> list[RunRecord]:
        setting = (self.protocol, self.backbone, self.shots)
        return [
            record
            for record in self.results.records
            if record.setting == setting and record.result.method in methods and record.result.task in self.tasks
        ]

    def notes_on_changed(self, methods: Sequence[str]) -> list[str]:
        """Return notes on the runs of some methods that are not used, as their settings are not the protocol's."""
        runs = Counter(
            (label_of("methods", record.result.method), label_of("tasks", record.result.task), record.changed_settings)
            for record in self._finished(methods)
            if record.changed_settings
        )
        return [
            f"{counted_noun(count, 'run')} of {method} on {task} left out, whose settings are not the protocol's: {changed}"
            for (method, task, changed), count in runs.items()
        ]

    def missing(self, methods: Sequence[str], seeds: Sequence[int]) -> list[MissingRuns]:
        """Return the missing runs of some methods with some seeds, and their commands."""
        commands = []
        shots = None if self.shots == shots_of(self.protocol) else self.shots
        for method in methods:
            finished: dict[str, list[RunRecord]] = {task: [] for task in self.tasks}
            for record in self._finished([method]):  # one with changed settings is in the place of the missing one
                finished[record.result.task].append(record)
            usable = {task: [run for run in runs if not run.changed_settings] for task, runs in finished.items()}
            included = {task: run_filter.comparable_runs(runs, [], self.counted)[0] for task, runs in usable.items()}
            commands += run_filter.missing_runs(
                method,
                self.tasks,
                seeds,
                finished=finished,
                included=included,
                setting=(self.backbone, self.protocol, shots),
                results=self.results,
            )
        return commands

    def figure_command(self, name: str, *, more_seeds: int = 0) -> MissingRuns:
        """Return the command that computes a figure, with more seeds than its CSV has."""
        spec = figure_spec.load(name, protocol=self.protocol)
        words = ["--backbone", self.backbone] if self.backbone != spec.backbone else []
        if more_seeds:
            frame, _ = _figure(name, self)
            words += ["--seeds", f"1-{int(frame['seed'].max()) + more_seeds}"]
        words += ["--train"] if spec.kind in ("sweep", "features", "stage-features") else []  # these kinds read finished runs
        return self.command("figure", name, *words)

    def command(self, *words: str) -> MissingRuns:
        """Return the command that computes a figure or measures a cost."""
        protocol = argument_of("protocols", self.protocol)
        return MissingRuns("", (), (), command_line(["hifi", *words, "--protocol", protocol, *self.results.arguments]))


@dataclass(frozen=True)
class Evidence:
    """Numbers about one comparison or property.

    Attributes:
        label: what is compared.
        values: differences or numbers, by task and repetition; empty: nothing is known yet.
        runs: keys of the runs, or of the repetitions, that the values are computed from.
        tasks: of the claim, where runs decide it: there is no verdict before each of them has numbers.
        exact: whether each number is certain: it does not vary with the seed.
        is_ratio: whether the values are ratios, which are averaged as logarithms.
        sides: the two methods, or groups of methods, whose runs are compared.
        failures: failed and all runs of both sides.
        reason: why there is no verdict, although there may be numbers.
        missing: what would complete the evidence.
    """

    label: str
    values: Values
    runs: frozenset[tuple[Any, ...]]
    tasks: Sequence[str] = ()
    exact: bool = False
    is_ratio: bool = False
    sides: tuple[str, str] = ("", "")
    failures: tuple[Failures, Failures] | None = None
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    missing: list[MissingRuns] = field(default_factory=list)

    @property
    def tasks_with_values(self) -> list[str]:
        """Those of the claim's tasks that have numbers."""
        return [task for task in self.tasks if self.values.get(task)]

    @property
    def groups(self) -> list[list[float]]:
        """The numbers of each task."""
        return [list(values.values()) for values in self.values.values()]


def evidence(claim: Claim, context: ClaimContext) -> list[Evidence]:
    """Collect the evidence of a claim: one entry, or one per comparison of an order."""
    match claim:
        case ComparisonClaim():
            return [_of_comparison(claim.first, claim.second, context)]
        case OrderClaim():
            return [_of_comparison(*pair, context) for pair in claim.pairs]
        case TrendClaim():
            return [_of_trend(claim, context)]
        case PropertyClaim():
            return [_of_property(claim, context)]


def _of_comparison(first: str, second: str, context: ClaimContext) -> Evidence:
    records = context.records([first, second])
    pairs = run_pairs.paired(records, first, second, tasks=context.tasks, score=context.score, counted=context.counted)
    sides = [run_filter.failures(context.records([method]), context.counted) for method in (first, second)]
    runs = {task: [run for pair in by_seed.values() for run in pair] for task, by_seed in pairs.runs.items()}
    tasks, reason, notes = _above_chance(runs, context)
    differences = {task: dict(by_seed) for task, by_seed in pairs.differences.items() if task in tasks}
    return Evidence(
        label=" above ".join(pairs.labels),
        values=differences,
        runs=frozenset(
            (method, task, seed) for task, by_seed in differences.items() for seed in by_seed for method in (first, second)
        ),
        tasks=tasks,
        sides=pairs.labels,
        failures=(sides[0], sides[1]),
        reason=reason,
        notes=[*context.notes_on_changed([first, second]), *pairs.notes, *notes],
        missing=context.missing([first, second], context.seeds),
    )


def _above_chance(runs: Mapping[str, Sequence[RunRecord]], context: ClaimContext) -> tuple[list[str], str, list[str]]:
    """Return the tasks of a claim without those at chance, why none is left, and notes on those that decide nothing.

    Args:
        runs: the compared runs of each task.
    """
    notes = []
    tasks = [*context.tasks]
    for task, compared in runs.items():
        if not any(record.directory.predictions.is_file() for record in compared):
            notes.append(f"{label_of('tasks', task)}: no predictions are stored, so it is not known whether it is at chance")
        elif reason := chance.at_chance(compared, context.score):
            tasks.remove(task)
            notes.append(f"{label_of('tasks', task)} decides nothing: {reason}")
    return tasks, "" if tasks else "every task is at chance", notes


def _of_trend(claim: TrendClaim, context: ClaimContext) -> Evidence:
    """Subtract the mean at `second` from the mean at `first`, by task and repetition, where all values are known."""
    notes = _notes_of_figure(context) if claim.figure else []
    failures, tasks = None, list[str]()
    first, second = (", ".join(f"{x:g}" for x in values) for values in (claim.first, claim.second))
    if claim.figure:
        frame, missing = _figure(claim.figure, context)
        cells = {} if frame is None else cells_of(frame, claim.per, claim.x, claim.y)
        reason = "" if frame is None else _single_seed(frame)
    else:
        cells, tasks, reason, notes = _method_scores(claim, context)
        missing = context.missing([*claim.values], context.seeds)
        failures = (_failures_at(claim, claim.first, context), _failures_at(claim, claim.second, context))
    values: Values = {}
    for (task, repetition), numbers in cells.items():
        if all(x in numbers for x in (*claim.first, *claim.second)):
            values.setdefault(task, {})[repetition] = claim.scale * contrast(numbers, claim.first, claim.second)
    return Evidence(
        label=f"{claim.x} = {first} minus {second}",
        values=values,
        runs=frozenset((x, *key) for x in (*claim.first, *claim.second) for key in _keys(values)),
        tasks=tasks,
        sides=(f"{claim.x} = {first}", f"{claim.x} = {second}"),
        failures=failures,
        reason=reason,
        notes=notes,
        missing=missing,
    )


def contrast(numbers: Mapping[float, float], first: Sequence[float], second: Sequence[float]) -> float:
    """Return the mean of the numbers at `first` minus the mean of those at `second`."""
    return sum(numbers[x] for x in first) / len(first) - sum(numbers[x] for x in second) / len(second)


def _failures_at(claim: TrendClaim, values: Sequence[float], context: ClaimContext) -> Failures:
    """Count the failures of all methods that stand for some values."""
    sides = [
        run_filter.failures(context.records([method]), context.counted) for method, x in claim.values.items() if x in values
    ]
    return sum(sides, Failures(0, 0, 0))


def _method_scores(
    claim: TrendClaim, context: ClaimContext
) -> tuple[dict[tuple[str, Any], dict[float, float]], list[str], str, list[str]]:
    """Return the scores by task and seed, and by the value that each method stands for; then as `_above_chance` does.

    Runs of one task and seed that differ in more than a comparison allows are left out, as those of a pair of methods are.
    """
    records: dict[tuple[str, int], dict[float, RunRecord]] = {}
    for method, x in claim.values.items():
        for task in context.tasks:
            runs = [record for record in context.records([method]) if record.result.task == task]
            for record in run_filter.comparable_runs(runs, [], context.counted)[0]:
                records.setdefault((task, record.result.seed), {})[x] = record
    cells: dict[tuple[str, Any], dict[float, float]] = {}
    notes: dict[str, None] = {}
    for (task, seed), by_value in records.items():
        first, *others = by_value.values()
        differing = next(filter(None, (run_filter.disagreement(first, other, context.score) for other in others)), None)
        if differing and "unequal" not in context.counted:
            notes[f"{label_of('tasks', task)}: runs left out, which differ in {differing}"] = None
            continue
        metric = first.result.primary_metric
        scores = {x: record.score(context.score, metric) for x, record in by_value.items()}
        cells[task, seed] = {x: score for x, score in scores.items() if score is not None}
    compared = {
        task: [run for (name, _), by_x in records.items() if name == task for run in by_x.values()] for task, _ in cells
    }
    tasks, reason, on_chance = _above_chance(compared, context)
    cells = {key: scores for key, scores in cells.items() if key[0] in tasks}
    return cells, tasks, reason, [*context.notes_on_changed([*claim.values]), *notes, *on_chance]


def _of_property(claim: PropertyClaim, context: ClaimContext) -> Evidence:
    if claim.measure:
        return _of_measure(claim.measure, str(claim.method), context)
    assert claim.figure
    frame, missing = _figure(claim.figure, context)
    if frame is None:
        return Evidence(claim.figure, {}, frozenset(), exact=claim.every, missing=missing)
    values, notes = reduced(frame, claim, claim.rows), _notes_of_figure(context)
    if claim.second_rows:
        others = reduced(frame, claim, claim.second_rows)
        values = {
            task: {
                key: number / others[task][key] if claim.compare == "ratio" else number - others[task][key]
                for key, number in numbers.items()
                if key in others.get(task, {})
            }
            for task, numbers in values.items()
        }
    values = {task: numbers for task, numbers in values.items() if numbers}
    is_ratio = bool(claim.second_rows) and claim.compare == "ratio"
    return Evidence(
        claim.figure,
        values,
        _keys(values),
        exact=claim.every,
        is_ratio=is_ratio,
        reason=_single_seed(frame),
        notes=notes,
        missing=missing,
    )


def _keys(values: Values) -> frozenset[tuple[Any, ...]]:
    return frozenset((task, repetition) for task, numbers in values.items() for repetition in numbers)


def _single_seed(frame: Any) -> str:
    """Return the reason that there is no verdict where a figure's CSV has one seed, or does not say how many it has."""
    return "" if "seed" in frame and frame["seed"].nunique() > 1 else "it rests on a single seed"


def _notes_of_figure(context: ClaimContext) -> list[str]:
    return [f"read from a figure, whose numbers are not those of --score {context.score}"] if context.score else []


def _figure(name: str, context: ClaimContext) -> tuple[Any, list[MissingRuns]]:
    """Return the CSV of a figure under a protocol and backbone, or None, and the command that computes it.

    A CSV with overrides (`limit=32`) or of other tasks than the figure's is of another setting than the claim's.
    """
    import pandas as pd

    spec, stem = figure_spec.load(name, protocol=context.protocol), name_of(name)
    expected: tuple[str, str, list[str], set[str]] = (context.protocol, context.backbone, [], {*spec.tasks})
    for path in sorted((context.results.directory / "figures").glob(f"{stem}*.csv")):
        if len(figure_spec.name_of(path) or "") > len(stem) or not f"{path.stem}-".startswith(f"{stem}-"):
            continue  # of another figure: hifi-7-flatness is not hifi-7, and hifi-70 neither
        record = figure_spec.read_record(path)
        if (record.protocol, record.backbone, record.overrides, {*record.tasks}) == expected:
            return pd.read_csv(path), []
    return None, [context.figure_command(name)]


def _of_measure(measure: str, method: str, context: ClaimContext) -> Evidence:
    label = f"{measure} of {label_of('methods', method)}"
    if measure == "trained-percent":
        percents = {100 * r.result.params.trainable_backbone / r.result.params.total for r in context.records([method])}
        of_runs = {"": dict(enumerate(sorted(percents)))} if percents else {}
        missing = [] if percents else context.missing([method], context.seeds[:1])[:1]
        notes = context.notes_on_changed([method])
        runs = frozenset((record.result.task, record.result.seed) for record in context.records([method]))
        return Evidence(label, of_runs, runs, exact=True, notes=notes, missing=missing)
    try:
        where = {"protocol": context.protocol, "backbone": context.backbone}
        numbers, table = stored_measure(measure, method, context.results.directory, **where)
    except UsageError:  # the backbone was a local directory, whose costs cannot be found by its name
        return Evidence(label, {}, frozenset(), exact=True)
    if not numbers:
        command = context.command("table", table, "--methods", method, "--backbone", context.backbone)
        return Evidence(label, {}, frozenset(), exact=True, missing=[command])
    values: Values = {"": dict(enumerate(numbers))}
    return Evidence(label, values, _keys(values), exact=len(numbers) == 1, is_ratio=True)
