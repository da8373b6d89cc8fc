"""Scores and training losses of finished runs while they trained."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from hifi_cli.drawing import style
from hifi_cli.drawing.curves import draw_curves
from hifi_cli.errors import logger
from hifi_cli.figures.figure import FigureRequest, Row
from hifi_cli.figures.finished_runs import OfFinishedRuns, comparable_runs, in_order
from hifi_cli.records.study import Study
from hifi_cli.reports.curves import curves


class Curves(OfFinishedRuns):
    """Score by epoch and training loss by optimizer step, a line per method."""

    losses: bool = True
    """Whether the training loss is shown too, where the runs' own directories are there: a packed
    study has none."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the mean and deviation over seeds of each curve at each epoch or step.

        Columns: those of `reports.curves.curves`.
        """
        study = Study(request.workspace.results_dir)
        runs = in_order(request, comparable_runs(request, study))
        with_losses = self.losses and not study.is_packed
        if self.losses and study.is_packed:
            logger.warning("note: a packed study has no training losses; scores alone are shown")
        yield from curves(study, runs, with_losses=with_losses)

    def explanation(self, data: style.Frame) -> str:
        """Say what line and shade are."""
        return f"{style.over_seeds(data['seeds'], 'shade')}."

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and curve, with a line and a band per method."""
        return draw_curves(data)
