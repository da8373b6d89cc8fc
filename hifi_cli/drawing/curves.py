"""Scores and training losses while runs trained, a line and a band per method."""

from collections.abc import Mapping
from math import ceil, inf

from matplotlib.figure import Figure

from hifi_cli.config.registry import label_of
from hifi_cli.drawing import style
from hifi_cli.drawing.looks import Look


def draw_curves(data: style.Frame, looks: Mapping[str, Look] | None = None) -> Figure:
    """Draw a panel per task and curve.

    Args:
        data: columns `task`, `metric`, `method`, `label`, `curve` (`score` or `loss`), `x`, `mean`
            and `std`, as `reports.curves.curves` yields them.
        looks: of the methods; None: those of a picture that has no other panels.
    """
    tasks = data["task"].map(lambda task: label_of("tasks", task))
    is_score = data["curve"] == "score"
    named = (tasks + ", " + data["metric"] + " [%]").where(is_score, tasks + ", training loss")
    # The legend of a narrow figure has two columns, and takes no height from the panel.
    legend_rows = 0
    if named.nunique() == 1:
        legend_rows = ceil(data["label"].nunique() / 2)
    # The losses of a task stand beside its scores.
    has_losses = not is_score.all()
    # A mean and its deviation may lie beyond what a score can be; a loss has no highest value.
    lowest, highest = style.score_limits(data["metric"])
    limits = (lowest.where(is_score, -inf), highest.where(is_score, inf))
    figure = style.line_panels(
        data.assign(panel=named),
        "x",
        "mean",
        by="label",
        spread="std",
        limits=limits,
        labels=("", ""),
        looks=looks,
        height=2.2 + 0.13 * max(0, legend_rows - 2),
        columns=2 if has_losses else 3,
        rows_are_full=False,
    )
    for ax in figure.axes:
        if "training loss" in ax.get_title():
            ax.set_xlabel("optimizer step; mean loss since the point before")
        else:
            ax.set_xlabel("epoch")
    return figure
