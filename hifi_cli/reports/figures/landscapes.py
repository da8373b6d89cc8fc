"""Loss contours and training trajectories (HiFi, figure 7)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.style import Floats, Frame, Meta

_LEVELS = 14


def landscape(frame: Frame, meta: Meta) -> Figure:
    """A panel per regime (rows) and method (columns): contours of the loss in one scale, the trajectory over them."""
    places = frame[["method", "label", "moved"]].drop_duplicates()
    columns = [tuple(row) for row in places.itertuples(index=False)]
    rows = list(frame[["task", "regime"]].drop_duplicates().itertuples(index=False))
    figure, axes = style.grid(len(rows) * len(columns), columns=len(columns), height=2.3)
    contour = frame[frame["part"] == "contour"]
    low, high = float(contour["loss"].min()), float(np.quantile(contour["loss"], 0.98))
    levels = np.linspace(low, max(high, low + 1e-6), _LEVELS)
    random = not (frame["part"] == "trajectory").any()
    image = None
    for row, (task, regime) in enumerate(rows):
        for column, (method, label, moved) in enumerate(columns):
            place = axes[row * len(columns) + column]
            inside = frame[(frame["task"] == task) & (frame["regime"] == regime) & (frame["method"] == method)]
            inside = inside[inside["moved"] == moved]
            image = _contours(place, inside[inside["part"] == "contour"], levels)
            _way(place, inside[inside["part"] == "trajectory"])
            words = [f"{label}, {regime}", *([meta.tasks[task]] if len(meta.tasks) > 1 else [])]
            which = f"\n{'all' if moved == 'all' else 'tuned'} weights moved" if random else ""
            place.set_title(", ".join(words) + which, fontsize=7)
    assert image is not None
    figure.colorbar(image, ax=axes, label="training loss", fraction=0.03, pad=0.02, aspect=35, format="%.2f")
    return figure


def _contours(place: Axes, points: Frame, levels: Floats) -> ContourSet:
    table = points.pivot(index="y", columns="x", values="loss")
    filled = place.contourf(table.columns, table.index, table, levels=levels, cmap=style.MAP, extend="both")
    place.contour(table.columns, table.index, table, levels=levels, colors="#202020", linewidths=0.3)
    if "share_x" in points and points["share_x"].notna().all():
        place.set_xlabel(f"first principal direction ({100 * points['share_x'].iloc[0]:.0f} %)")
        place.set_ylabel(f"second ({100 * points['share_y'].iloc[0]:.0f} %)")
    else:
        place.set_xlabel("random direction")
        place.set_ylabel("another, both filter-normalized")
    return filled


def _way(place: Axes, points: Frame) -> None:
    if points.empty:
        place.plot(0, 0, marker="*", color="white", markeredgecolor="black", markersize=8)
        return
    place.plot(points["x"], points["y"], color="white", linewidth=2.2)
    place.plot(points["x"], points["y"], color="#D55E00", marker="o", markersize=2.5, linewidth=1.0)
    place.plot(points["x"].iloc[0], points["y"].iloc[0], marker="s", color="white", markeredgecolor="black", markersize=6)
    place.plot(points["x"].iloc[-1], points["y"].iloc[-1], marker="*", color="white", markeredgecolor="black", markersize=9)
