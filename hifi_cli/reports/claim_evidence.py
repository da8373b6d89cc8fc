"""What finished runs, figures and measured costs say about a claim: numbers by task and repetition, and what is missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config.choices import Score
from hifi_cli.config.registry import argument_of, label_of, name_of
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.records.cost_files import ResultCosts, TrainingCosts
from hifi_cli.reports import run_filter, run_pairs
from hifi_cli.reports.claim_spec import Claim, ClaimsFile, ComparisonClaim, OrderClaim, PropertyClaim, TrendClaim
from hifi_cli.reports.cost_table import FULL_FT, Costs
from hifi_cli.reports.figures import figure_spec
from hifi_cli.reports.proportions import Failures
from hifi_cli.reports.run_records import Results, RunRecord
from hifi_cli.reports.table import MissingRuns
from hifi_cli.reports.table_spec import shots_of

_REDUCTIONS: dict[str, Callable[[Any], float]] = {
    "mean": lambda numbers: numbers.mean(),
    "min": lambda numbers: numbers.min(),
    "max": lambda numbers: numbers.max(),
    "first": lambda numbers: numbers.iloc[0],
    "last": lambda numbers: numbers.iloc[-1],
    "rise": lambda numbers: numbers.mean() - numbers.min(),
}
Values = dict[str, dict[Any, float]]  # by task and repetition


@dataclass(frozen=True)
class ClaimContext:
    """Where evidence is looked for.

    Attributes:
        figure_csv: the CSV of the claim's figure; None: the one in the results directory of the same protocol and backbone.
    """

    results: Results
    protocol: str
    backbone: str
    shots: str
    tasks: Sequence[str]
    seeds: Sequence[int]
    score: Score | None
    counted: frozenset[str]
    figure_csv: Path | None = None

    @classmethod
    def of(
        cls, claim: Claim, file: ClaimsFile, results: Results, score: Score | None, counted: frozenset[str]
    ) -> "ClaimContext":
        """Return the context of a claim in a file of claims."""
        protocol = claim.protocol or file.protocol
        tasks, shots = claim.tasks or file.tasks, str(claim.shots or shots_of(protocol))
        return cls(results, protocol, claim.only_backbone or file.backbone, shots, tasks, file.seeds, score, counted)

    def records(self, methods: Sequence[str]) -> list[RunRecord]:
        """Return the finished runs of some methods."""
        setting = (self.protocol, self.backbone, self.shots)
        return [
            record
            for record in self.results.records
            if record.setting == setting and record.result.method in methods and record.result.task in self.tasks
        ]

    def missing(self, methods: Sequence[str], seeds: Sequence[int]) -> list[MissingRuns]:
        """Return the missing runs of some methods with some seeds, and their commands."""
        commands = []
        shots = None if self.shots == shots_of(self.protocol) else self.shots
        for method in methods:
            finished: dict[str, list[RunRecord]] = {task: [] for task in self.tasks}
            for record in self.records([method]):
                finished[record.result.task].append(record)
            included = {task: run_filter.comparable_runs(runs, [], self.counted)[0] for task, runs in finished.items()}
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
    return Evidence(
        label=" above ".join(pairs.labels),
        values={task: dict(differences) for task, differences in pairs.differences.items()},
        runs=frozenset(
            (method, task, seed)
            for task, differences in pairs.differences.items()
            for seed in differences
            for method in (first, second)
        ),
        tasks=context.tasks,
        sides=pairs.labels,
        failures=(sides[0], sides[1]),
        notes=pairs.notes,
        missing=context.missing([first, second], context.seeds),
    )


def _of_trend(claim: TrendClaim, context: ClaimContext) -> Evidence:
    """Subtract the mean at `second` from the mean at `first`, by task and repetition, where all values are known."""
    notes = _notes_of_figure(context) if claim.figure else []
    failures = None
    first, second = (", ".join(f"{x:g}" for x in values) for values in (claim.first, claim.second))
    if claim.figure:
        frame, missing = _figure(claim.figure, context)
        cells = {} if frame is None else _cells(frame, claim.per, claim.x, claim.y)
    else:
        cells, notes = _method_scores(claim, context)
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
        tasks=() if claim.figure else context.tasks,
        sides=(f"{claim.x} = {first}", f"{claim.x} = {second}"),
        failures=failures,
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


def _method_scores(claim: TrendClaim, context: ClaimContext) -> tuple[dict[tuple[str, Any], dict[float, float]], list[str]]:
    """Return the scores by task and seed, and by the value that each method stands for; and notes on what was left out.

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
    return cells, list(notes)


def _of_property(claim: PropertyClaim, context: ClaimContext) -> Evidence:
    if claim.measure:
        return _of_measure(claim.measure, str(claim.method), context)
    assert claim.figure
    frame, missing = _figure(claim.figure, context)
    if frame is None:
        return Evidence(claim.figure, {}, frozenset(), exact=claim.every, missing=missing)
    values, notes = _reduced(frame, claim, claim.rows), _notes_of_figure(context)
    if claim.second_rows:
        others = _reduced(frame, claim, claim.second_rows)
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
    return Evidence(claim.figure, values, _keys(values), exact=claim.every, is_ratio=is_ratio, notes=notes, missing=missing)


def _keys(values: Values) -> frozenset[tuple[Any, ...]]:
    return frozenset((task, repetition) for task, numbers in values.items() for repetition in numbers)


def _notes_of_figure(context: ClaimContext) -> list[str]:
    return [f"read from a figure, whose numbers are not those of --score {context.score}"] if context.score else []


def _figure(name: str, context: ClaimContext) -> tuple[Any, list[MissingRuns]]:
    """Return the CSV of a figure under a protocol and backbone, or None, and the command that computes it.

    A CSV with overrides (`limit=32`) or of other tasks than the figure's is of another setting than the claim's.
    """
    import pandas as pd

    if context.figure_csv:
        return pd.read_csv(context.figure_csv), []
    spec, stem = figure_spec.load(name, protocol=context.protocol), name_of(name)
    expected: tuple[str, str, list[str], set[str]] = (context.protocol, context.backbone, [], {*spec.tasks})
    for path in sorted((context.results.directory / "figures").glob(f"{stem}*.csv")):
        if len(figure_spec.name_of(path) or "") > len(stem) or not f"{path.stem}-".startswith(f"{stem}-"):
            continue  # of another figure: hifi-7-flatness is not hifi-7, and hifi-70 neither
        metadata = figure_spec.read_metadata(path)
        if (metadata.protocol, metadata.backbone, metadata.overrides, {*metadata.tasks}) == expected:
            return pd.read_csv(path), []
    return None, [context.figure_command(name)]


def _cells(frame: Any, per: Sequence[str], x: str, y: str) -> dict[tuple[str, Any], dict[float, float]]:
    """Return the mean of `y` by task and repetition, and by `x`."""
    _check_columns(frame, [*per, x, y], y)
    cells: dict[tuple[str, Any], dict[float, float]] = {}
    for (task, *keys, value), number in frame.groupby(["task", *per, x])[y].mean().items():
        cells.setdefault((str(task), tuple(keys)), {})[float(value)] = float(number)
    return cells


def _reduced(frame: Any, claim: PropertyClaim, rows: Mapping[str, Any]) -> Values:
    """Return one number per task and repetition from the chosen rows of a figure's CSV."""
    _check_columns(frame, [*claim.per, *rows, claim.column], claim.column)
    for column, accepted in rows.items():
        if isinstance(accepted, dict):
            frame = frame[frame[column].between(accepted.get("min", -float("inf")), accepted.get("max", float("inf")))]
        else:
            frame = frame[frame[column].isin(accepted if isinstance(accepted, list) else [accepted])]
    values: Values = {}
    for (task, *keys), numbers in frame.groupby(["task", *claim.per])[claim.column]:
        values.setdefault(str(task), {})[tuple(keys)] = float(_REDUCTIONS[claim.take](numbers))
    return values


def _check_columns(frame: Any, columns: Sequence[str], number: str) -> None:
    """Raise UsageError for a column that a figure's CSV does not have, or a number that is text."""
    known = [*frame.columns]
    for column in columns:
        if column not in known:
            raise UsageError(
                f"the figure's CSV has no column '{column}' (it has {', '.join(known)}); if an older version computed it,"
                " hifi figure NAME --force computes it again"
            )
    if frame[number].dtype.kind not in "biuf":
        raise UsageError(f"column '{number}' of the figure's CSV holds texts; a claim is about a number")


def _of_measure(measure: str, method: str, context: ClaimContext) -> Evidence:
    label = f"{measure} of {label_of('methods', method)}"
    if measure == "trained-percent":
        percents = {100 * r.result.params.trainable_backbone / r.result.params.total for r in context.records([method])}
        of_runs = {"": dict(enumerate(sorted(percents)))} if percents else {}
        missing = [] if percents else context.missing([method], context.seeds[:1])[:1]
        runs = frozenset((record.result.task, record.result.seed) for record in context.records([method]))
        return Evidence(label, of_runs, runs, exact=True, missing=missing)
    try:
        numbers, table = _stored_measure(measure, method, context)
    except UsageError:  # the backbone was a local directory, whose costs cannot be found by its name
        return Evidence(label, {}, frozenset(), exact=True)
    if not numbers:
        command = context.command("table", table, "--methods", method, "--backbone", context.backbone)
        return Evidence(label, {}, frozenset(), exact=True, missing=[command])
    values: Values = {"": dict(enumerate(numbers))}
    return Evidence(label, values, _keys(values), exact=len(numbers) == 1, is_ratio=True)


def _stored_measure(measure: str, method: str, context: ClaimContext) -> tuple[list[float], str]:
    """Return a stored cost (a time: of each round; nothing: it was not measured), and the table that measures it."""
    where = {"protocol": context.protocol, "backbone": context.backbone}
    directory = context.results.directory
    if measure in ("step-time", "scoring-percent"):
        training = TrainingCosts.config_of(method, **where)
        stored = _stored(TrainingCosts, lambda gpu: TrainingCosts.path_of(training, FULL_FT, directory, gpu))
        return _training_cost(measure, stored) if stored else [], "cost"
    config = ResultCosts.config_of(method, **where)
    result = _stored(ResultCosts, lambda gpu: ResultCosts.path_of(config, directory, gpu))
    return _result_cost(measure, result) if result else [], "hifi-1"


def _stored(kind: type[Costs], path_of: Callable[[str | None], Path]) -> Costs | None:
    """Read stored costs: those measured on a CPU, or else those on any GPU, whose name is a part of the file's name."""
    path = path_of(None)
    if path.is_file():
        return kind.read(path)
    others = ((other, kind.read(other)) for other in sorted(path.parent.glob(f"{path.stem.rpartition('-')[0]}-*.json")))
    return next((costs for other, costs in others if path_of(costs.provenance.device) == other), None)


def _training_cost(measure: str, costs: TrainingCosts) -> list[float]:
    return costs.step_ratio_rounds or [costs.step_ratio] if measure == "step-time" else [100 * costs.scoring_fraction]


def _result_cost(measure: str, costs: ResultCosts) -> list[float]:
    return {
        "added-parameters": [float(costs.added_in_result)],
        "added-modules": [float(costs.modules_added)],
        "latency": costs.latency_rounds or [costs.latency],
        "stored-percent": [100 * costs.stored_bytes / costs.plain_bytes],
    }[measure]
