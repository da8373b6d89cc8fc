"""Signs that the score of a run should not be believed, each as one line about many runs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hifi_cli.config.registry import label_of, own_file
from hifi_cli.records.record import RunResult, StepMetrics, TrainingLosses
from hifi_cli.tasks.metrics import OF_SECOND_CLASS
from hifi_cli.text import abbreviate, format_number

CHOSEN_ON_REPORTED = (
    "each run's best epoch, chosen on the same rows: scores are too high; --score last has the last"
    " epoch"
)
# The fraction of the training loss by which it falls at least: a learning rate that trains nothing
# leaves the noise of dropout.
_LEAST_FALL = 0.01
# Over fewer steps of 32 rows each a mean varied by some percent with the rows.
_FEWEST_STEPS = 20
# Where there are more classes, a line names the most and the least frequent one alone.
_MOST_CLASSES = 3


def signs_of(
    results: Sequence[RunResult],
    *,
    methods: Iterable[str],
    tasks: Iterable[str],
    with_selection: bool = True,
) -> list[str]:
    """Return what some runs show against their scores: at most one line of each kind.

    Args:
        results: the records of the runs, whose names are plain.
        methods: names that may carry the user's own YAML, where the label is.
        tasks: likewise.
        with_selection: whether the line about the rows that choose the best epoch is wanted, which
            tables have among their notes.
    """
    done = [result for result in results if result.is_done]
    labels = _Labels(done, methods, tasks)
    names = labels.of_runs(done)
    lines = [
        *_on_collapse(done, names),
        *_on_best_epochs(done, names),
        *_on_classes(done, names),
        *_on_losses(done, names),
        *_on_shares(done, labels),
    ]
    if with_selection and any(is_chosen_on_reported_rows(result) for result in done):
        lines.append(CHOSEN_ON_REPORTED)
    return lines


def is_chosen_on_reported_rows(result: RunResult) -> bool:
    """Return whether the epoch of a run's score was chosen on the rows that the score is of."""
    # Nothing is chosen from a single epoch.
    has_choice = result.epochs is not None and result.epochs.total > 1
    return has_choice and result.epoch_rule.is_chosen_on_reported_rows


def losses_of(lines: Sequence[StepMetrics], steps_per_epoch: int) -> TrainingLosses | None:
    """Return the mean training loss of the first and of the last epoch that have logged steps.

    Where one of them has fewer than 20, or there is one epoch alone, the means are those of the
    first and of the second half of the lines. Where a half has fewer, nothing is known: a mean over
    few batches says which rows they have.
    """
    by_epoch: dict[int, list[_Logged]] = defaultdict(list)
    before = 0
    for line in lines:
        epoch = (line.step - 1) // steps_per_epoch
        # A line's loss is the mean since the line before, or since its epoch began.
        begin = max(before, epoch * steps_per_epoch)
        by_epoch[epoch].append(_Logged(line.loss, line.step - begin))
        before = line.step
    if not by_epoch:
        return None
    logged = [line for of_epoch in by_epoch.values() for line in of_epoch]
    half = len(logged) // 2
    epochs = (by_epoch[min(by_epoch)], by_epoch[max(by_epoch)])
    halves = (logged[:half], logged[half:])
    for first, last in (epochs, halves):
        has_two = first is not last
        if has_two and min(_steps(first), _steps(last)) >= _FEWEST_STEPS:
            return TrainingLosses(first=_mean_loss(first), last=_mean_loss(last))
    return None


class _Logged(NamedTuple):
    """The mean loss of some steps."""

    loss: float
    steps: int


def _steps(lines: Sequence[_Logged]) -> int:
    """Return the number of steps of some lines."""
    return sum(line.steps for line in lines)


def _mean_loss(lines: Sequence[_Logged]) -> float:
    """Return the mean loss over the steps of some lines."""
    return sum(line.loss * line.steps for line in lines) / _steps(lines)


def _on_collapse(results: Sequence[RunResult], names: Sequence[str]) -> Iterator[str]:
    """Name the methods that learnt nothing on a task: each of their runs predicts a single class."""
    has_collapsed: dict[str, list[bool]] = defaultdict(list)
    for result, name in zip(results, names, strict=True):
        has_collapsed[name].append(bool(result.collapsed))
    found = [name for name, seeds in has_collapsed.items() if all(seeds)]
    if found:
        yield (
            "every run collapsed to one class; train longer, or change the learning rate:"
            f" {abbreviate(found)}"
        )


def _on_best_epochs(results: Sequence[RunResult], names: Sequence[str]) -> Iterator[str]:
    """Name the methods whose best epoch is the last one in each of several seeds."""
    is_last: dict[str, list[bool]] = defaultdict(list)
    for result, name in zip(results, names, strict=True):
        epochs = result.epochs
        if epochs and epochs.total > 1:
            is_last[name].append(epochs.best == epochs.total)
    found = [name for name, seeds in is_last.items() if len(seeds) > 1 and all(seeds)]
    if found:
        yield f"the best epoch is the last one in every seed, and more epochs may score higher: {abbreviate(found)}"


def _on_classes(results: Sequence[RunResult], names: Sequence[str]) -> Iterator[str]:
    """Name the classes that no row is predicted to have; a collapsed run predicts one, and says so itself."""
    missing: Counter[str] = Counter()
    for result, name in zip(results, names, strict=True):
        if result.classes is None or result.collapsed:
            continue
        for word, rows in result.classes.labels.items():
            if rows and not result.classes.predicted[word]:
                missing[f"{name} ({word})"] += 1
    if missing:
        yield f"a class is never predicted: {abbreviate([*missing])}"


def _on_losses(results: Sequence[RunResult], names: Sequence[str]) -> Iterator[str]:
    """Name the runs whose training loss did not fall."""
    seeds: dict[str, list[int]] = defaultdict(list)
    for result, name in zip(results, names, strict=True):
        losses = result.losses
        if losses is None:
            continue
        if losses.first - losses.last < _LEAST_FALL * abs(losses.first):
            seeds[name].append(result.seed)
    if seeds:
        found = [f"{name} ({_seeds_text(numbers)})" for name, numbers in seeds.items()]
        yield f"the training loss fell by less than {100 * _LEAST_FALL:g} %: {abbreviate(found)}"


def _seeds_text(seeds: Sequence[int]) -> str:
    """Name the seeds of a method: `seed 1`, `seeds 1, 2, 3 and 4 more`."""
    different = sorted(set(seeds))
    noun = "seed" if len(different) == 1 else "seeds"
    return f"{noun} {abbreviate([str(seed) for seed in different])}"


def _on_shares(results: Sequence[RunResult], labels: "_Labels") -> Iterator[str]:
    """Yield what share of the reported rows each class has, by task, and which class F1 counts."""
    shares: dict[str, str] = {}
    with_classes = []
    for result in results:
        # Without rows there are no shares.
        if result.classes is not None and any(result.classes.labels.values()):
            with_classes.append(result)
    # The last run of a task speaks for it.
    last_of_tasks = {result.task: result for result in with_classes}
    for result in last_of_tasks.values():
        assert result.classes is not None
        rows = result.classes.labels
        positive = ""
        if OF_SECOND_CLASS.intersection(result.metrics) and len(rows) > 1:
            positive = [*rows][1]
        total = sum(rows.values())
        most_first = sorted(rows, key=lambda word: -rows[word])
        texts = []
        for word in most_first:
            share = f"{format_number(100 * rows[word] / total, '.0f')} %"
            counted = " (F1 is of this class)" if word == positive else ""
            texts.append(f"{word} {share}{counted}")
        if len(texts) > _MOST_CLASSES:
            texts = [texts[0], f"{len(texts) - 2} more classes", texts[-1]]
        shares[labels.tasks[result.task]] = ", ".join(texts)
    if shares:
        by_task = "; ".join(f"{task}: {text}" for task, text in shares.items())
        yield f"rows of each class: {by_task}"


class _Labels:
    """The labels of methods and tasks, by their names in records.

    Args:
        results: the records of the runs.
        methods: names that may carry the user's own YAML.
        tasks: likewise.
    """

    def __init__(
        self, results: Sequence[RunResult], methods: Iterable[str], tasks: Iterable[str]
    ) -> None:
        # A label is read from a YAML, and thousands of runs share it.
        used_methods = {result.method for result in results}
        used_tasks = {result.task for result in results}
        self.methods = _labels("methods", used_methods, methods)
        self.tasks = _labels("tasks", used_tasks, tasks)

    def of_runs(self, results: Sequence[RunResult]) -> list[str]:
        """Return each run's method and task, with its encoder where there are several."""
        has_several = len({result.backbone for result in results}) > 1
        names = []
        for result in results:
            name = self.methods[result.method]
            if result.variant:
                name += f"/{result.variant}"
            name += f" on {self.tasks[result.task]}"
            if has_several:
                name += f" with {result.backbone}"
            names.append(name)
        return names


def _labels(kind: str, names: Iterable[str], with_files: Iterable[str]) -> dict[str, str]:
    """Return labels by plain names, of which some are known with the user's own file."""
    own = {str(name): name for name in with_files if own_file(name)}
    return {name: label_of(kind, own.get(name, name)) for name in names}
