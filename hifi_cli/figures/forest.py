"""The differences of methods from one method with their intervals, a panel per task and one for all tasks."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.drawing import style
from hifi_cli.drawing.forest import draw_forest
from hifi_cli.errors import MissingError, logger
from hifi_cli.figures.figure import FigureRequest, Row
from hifi_cli.figures.finished_runs import OfFinishedRuns, comparable_runs
from hifi_cli.records.study import Study
from hifi_cli.reports.pairs import FULL_FT, difference_rows, pair


class Forest(OfFinishedRuns):
    """Differences of methods, with intervals."""

    reference: str | None = None
    """The method that the others are compared with; null: the first of the figure's methods, or
    full-ft where it names none."""
    score: EpochChoice | None = None
    """Which epoch's score; null: the one that the protocol reports."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the difference in points of each method, on each task and as the mean over tasks.

        Columns: those of `reports.pairs.difference_rows`.

        Raises:
            MissingError: no method shares a task and seed with the reference.
        """
        study = Study(request.workspace.results_dir)
        named = request.spec.methods
        reference = self.reference or FULL_FT
        methods: list[str] = []
        if named:
            reference = self.reference or named[0]
            # Each method once, the reference first.
            methods = list(dict.fromkeys([reference, *named]))
        runs = comparable_runs(request, study, self.score, methods)
        present = set(runs.usable["method"])
        names = named or sorted(present)
        others = [method for method in names if method in present and method != reference]
        said = runs.notes_in_words()
        # A method may have no pair with the reference; only if none has any, there is no figure.
        is_empty = True
        for method in others:
            pairs = pair(runs, method, reference)
            for note in pairs.notes:
                # Notes on single runs were said when the runs were judged.
                if note not in said:
                    logger.warning(f"note: {note}")
            is_empty = is_empty and pairs.frame.empty
            yield from difference_rows(pairs)
        if is_empty:
            raise MissingError(
                f"no method shares a task and seed with {reference}, which the others are compared with"
            )

    def explanation(self, data: style.Frame) -> str:
        """Say what marks and lines are."""
        drawn = "mean"
        # A single pair has no interval.
        if data["low"].notna().any():
            drawn = "mean and 95 % t-interval for new seeds on these tasks"
        return f"Runs are paired by seed: {drawn}. hifi compare has the tests and verdicts."

    def draw(self, data: style.Frame) -> Figure:
        """Draw a row per method, the highest difference at the top, and a panel per task."""
        return draw_forest(data)
