"""Loss contours and training trajectories (HiFi, figure 7)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.interpolate import PchipInterpolator

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Floats, Frame

_LEVELS = 16  # contour levels at most
_SMOOTH_POINTS = 121  # of a panel, in each direction


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a panel per regime (rows) and method (columns): contours of the loss in one scale, the trajectory over them.

    Contours are interpolated between the measured points, and their levels are round numbers. All panels are of the first seed.
    """
    seeds = frame["seed"].unique()
    frame = frame[frame["seed"] == seeds[0]]
    columns = list(frame[["method", "label", "moved"]].drop_duplicates().itertuples(index=False))
    rows = list(frame[["task", "regime"]].drop_duplicates().itertuples(index=False))
    figure, axes = style.grid(len(rows) * len(columns), columns=len(columns), height=2.3)
    contour = frame[frame["part"] == "contour"]
    low, high = float(contour["loss"].min()), float(np.quantile(contour["loss"], 0.98))
    levels = np.asarray(MaxNLocator(_LEVELS, steps=[1, 2, 5, 10]).tick_values(low, max(high, low + 1e-6)))
    random_plane = not (frame["part"] == "trajectory").any()
    image = None
    for row, (task, regime) in enumerate(rows):
        for column, (method, label, moved) in enumerate(columns):
            ax = axes[row * len(columns) + column]
            panel = frame[(frame["task"] == task) & (frame["regime"] == regime) & (frame["method"] == method)]
            panel = panel[panel["moved"] == moved]
            image = _contours(ax, panel[panel["part"] == "contour"], levels)
            _trajectory(ax, panel[panel["part"] == "trajectory"])
            words = [label, regime, *([metadata.tasks[task]] if len(metadata.tasks) > 1 else [])]
            weights = f"\n{'all' if moved == 'all' else 'tuned'} weights moved" if random_plane else ""
            ax.set_title(", ".join(words) + weights, fontsize=7)
    assert image is not None
    figure.colorbar(image, ax=axes, label="training loss", fraction=0.03, pad=0.02, aspect=35, ticks=levels[::2], format="%g")
    points = metadata.inputs.settings["points"]
    metadata.notes.append(f"seed {seeds[0]} of {len(seeds)}" if len(seeds) > 1 else "one seed")
    metadata.notes.append(f"contours: interpolated between {points} x {points} measured points")
    return figure


def _contours(ax: Axes, points: Frame, levels: Floats) -> ContourSet:
    surface = smooth_surface(points.pivot(index="y", columns="x", values="loss"))
    filled = ax.contourf(*surface, levels=levels, cmap=style.COLOR_MAP, extend="max")
    ax.contour(*surface, levels=levels, colors="#202020", linewidths=0.3)
    if "share_x" in points and points["share_x"].notna().all():
        ax.set_xlabel(f"first principal direction ({100 * points['share_x'].iloc[0]:.0f} %)")
        ax.set_ylabel(f"second direction ({100 * points['share_y'].iloc[0]:.0f} %)")
    else:
        ax.set_xlabel("first random direction")
        ax.set_ylabel("second random direction")
    return filled


def smooth_surface(table: Frame) -> tuple[Floats, Floats, Floats]:
    """Interpolate losses on a grid with monotone cubics, which pass through every point and add no minimum or maximum.

    Args:
        table: losses, rows by y and columns by x.

    Returns:
        x [points], y [points] and the losses [points of y, points of x].
    """
    x, y = (np.linspace(axis.min(), axis.max(), _SMOOTH_POINTS) for axis in (table.columns, table.index))
    along_x = PchipInterpolator(table.columns, table.to_numpy(), axis=1)(x)
    losses: Floats = PchipInterpolator(table.index, along_x, axis=0)(y)
    return x, y, losses


def _trajectory(ax: Axes, points: Frame) -> None:
    if points.empty:
        ax.plot(0, 0, marker="*", color="white", markeredgecolor="black", markersize=8)
        return
    ax.plot(points["x"], points["y"], color="white", linewidth=2.2)
    ax.plot(points["x"], points["y"], color="#D55E00", marker="o", markersize=2.5, linewidth=1.0)
    ax.plot(points["x"].iloc[0], points["y"].iloc[0], marker="s", color="white", markeredgecolor="black", markersize=6)
    ax.plot(points["x"].iloc[-1], points["y"].iloc[-1], marker="*", color="white", markeredgecolor="black", markersize=9)
