"""Signs that the score of a run should not be believed, each as one line about many runs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from hifi_cli.config.registry import label_of
from hifi_cli.records.record import RunResult, StepMetrics, TrainingLosses
from hifi_cli.tasks.metrics import OF_SECOND_CLASS
from hifi_cli.text import abbreviate

CHOSEN_ON_REPORTED = (
    "each run's best epoch, chosen on the same rows: scores are too high; --score last has the last"
    " epoch"
)
_LEAST_FALL = 0.01  # of the training loss; a rate that trains nothing leaves the noise of dropout
_MOST_CLASSES = 3  # of which the share of each is said


def signs_of(results: Sequence[RunResult], *, with_selection: bool = True) -> list[str]:
    """Return what some runs show against their scores: at most one line of each kind.

    Args:
        with_selection: whether the line about the rows that choose the best epoch is wanted, which
            tables have among their notes.
    """
    done = [result for result in results if result.is_done]
    lines = [*_on_best_epochs(done), *_on_classes(done), *_on_losses(done), *_on_shares(done)]
    if with_selection and any(is_chosen_on_reported(result) for result in done):
        lines.append(CHOSEN_ON_REPORTED)
    return lines


def is_chosen_on_reported(result: RunResult) -> bool:
    """Whether the epoch of a run's score was chosen on the rows that the score is of."""
    return result.epoch_rule.is_chosen_on_reported


def losses_of(lines: Sequence[StepMetrics], steps_per_epoch: int) -> TrainingLosses | None:
    """Return the mean training loss of the first and of the last epoch, of the halves of a single one.

    Only epochs with a line of their own are known, and with one line nothing is.
    """
    sums: dict[int, float] = defaultdict(float)
    steps: dict[int, int] = defaultdict(int)
    before = 0
    for line in lines:
        epoch = (line.step - 1) // steps_per_epoch
        # A line's loss is the mean since the line before, or since its epoch began.
        begin = max(before, epoch * steps_per_epoch)
        sums[epoch] += line.loss * (line.step - begin)
        steps[epoch] += line.step - begin
        before = line.step
    means = [sums[epoch] / steps[epoch] for epoch in sorted(sums)]
    if len(means) < 2:
        half = len(lines) // 2
        if half == 0:
            return None
        means = [_mean_loss(lines[:half]), _mean_loss(lines[half:])]
    return TrainingLosses(first=means[0], last=means[-1])


def _mean_loss(lines: Sequence[StepMetrics]) -> float:
    """Return the mean of the losses of some lines."""
    return sum(line.loss for line in lines) / len(lines)


def _on_best_epochs(results: Sequence[RunResult]) -> Iterator[str]:
    """Methods whose best epoch is the last one in each of several seeds."""
    is_last: dict[str, list[bool]] = defaultdict(list)
    for result, name in zip(results, _names(results), strict=True):
        epochs = result.epochs
        if epochs and epochs.total > 1:
            is_last[name].append(epochs.best == epochs.total)
    found = [name for name, seeds in is_last.items() if len(seeds) > 1 and all(seeds)]
    if found:
        yield f"the best epoch is the last one in every seed, and more epochs may score higher: {abbreviate(found)}"


def _on_classes(results: Sequence[RunResult]) -> Iterator[str]:
    """Classes that no row is predicted to have; a collapsed run predicts one, and says so itself."""
    missing: Counter[str] = Counter()
    for result, name in zip(results, _names(results), strict=True):
        if result.classes is None or result.collapsed:
            continue
        for word, rows in result.classes.labels.items():
            if rows and not result.classes.predicted[word]:
                missing[f"{name} ({word})"] += 1
    if missing:
        yield f"a class is never predicted: {abbreviate([*missing])}"


def _on_losses(results: Sequence[RunResult]) -> Iterator[str]:
    """Runs whose training loss did not fall."""
    found: dict[str, None] = {}
    for result, name in zip(results, _names(results), strict=True):
        losses = result.losses
        if losses and losses.first - losses.last < _LEAST_FALL * abs(losses.first):
            found[name] = None
    if found:
        yield f"the training loss fell by less than {100 * _LEAST_FALL:g} %: {abbreviate([*found])}"


def _on_shares(results: Sequence[RunResult]) -> Iterator[str]:
    """The share of the reported rows that each class has, by task, and the class that F1 counts."""
    shares: dict[str, str] = {}
    with_classes = [result for result in results if result.classes is not None]
    # The last run of a task speaks for it.
    last_of_tasks = {result.task: result for result in with_classes}
    for result in last_of_tasks.values():
        assert result.classes is not None
        rows = result.classes.labels
        positive = ""
        if OF_SECOND_CLASS.intersection(result.metrics):
            positive = [*rows][1]
        total = sum(rows.values())
        ordered = sorted(rows, key=lambda word: -rows[word])
        texts = []
        for word in ordered if total else ():
            share = f"{100 * rows[word] / total:.0f} %"
            counted = " (F1 is of this class)" if word == positive else ""
            texts.append(f"{word} {share}{counted}")
        if len(texts) > _MOST_CLASSES:
            texts = [texts[0], f"{len(texts) - 2} others", texts[-1]]
        shares[label_of("tasks", result.task)] = ", ".join(texts)
    if shares:
        by_task = "; ".join(f"{task}: {text}" for task, text in shares.items())
        yield f"rows of each class: {by_task}"


def _names(results: Sequence[RunResult]) -> list[str]:
    """Return the labels of each run's method and task, with its encoder where there are several."""
    has_several = len({result.backbone for result in results}) > 1
    # Labels lie in files: each is read once, not for every run.
    # A label is read from a YAML, and thousands of runs share it.
    method_names = {result.method for result in results}
    methods = {name: label_of("methods", name) for name in method_names}
    task_names = {result.task for result in results}
    tasks = {name: label_of("tasks", name) for name in task_names}
    names = []
    for result in results:
        name = methods[result.method]
        if result.variant:
            name += f"/{result.variant}"
        name += f" on {tasks[result.task]}"
        if has_several:
            name += f" with {result.backbone}"
        names.append(name)
    return names
