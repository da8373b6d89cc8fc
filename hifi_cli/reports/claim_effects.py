"""The picture of claims: our effects with intervals and what is required, the published effects beside them."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from hifi_cli.reports.claims import ClaimResult, Finding

Colors = Mapping[str, str]
_MARKERS = {"reproduced": "o", "undecided": "o", "not reproduced": "X"}
_LINE = "smallest difference that counts"
_ROW_INCHES, _PANEL_INCHES = 0.2, 0.42
_THREE_COLUMNS = 5.4  # inches: below it the legend has no place for three columns


def draw(figure: Figure, results: Sequence[ClaimResult], colors: Colors) -> None:
    """Draw a panel per unit and a row per claim into a figure, whose height is set.

    Of several comparisons the one that decides is shown. Of other units than points, only claims with a number of ours are.
    """
    shown = [
        result
        for result in results
        if result.finding.effect is not None or (result.unit == "points" and result.finding.published.value is not None)
    ]
    units = sorted({result.unit for result in shown}, key=lambda unit: (unit != "points", unit))
    panels = [[result for result in shown if result.unit == unit] for unit in units]
    heights = [_ROW_INCHES * len(panel) + _PANEL_INCHES for panel in panels]
    width = figure.get_size_inches()[0]
    wide = width > _THREE_COLUMNS
    figure.set_size_inches(width, sum(heights) + (0.6 if wide else 1.2))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for ax, panel, unit in zip(axes.flat, panels, units, strict=True):
        _draw_panel(ax, panel, colors)
        ax.set_xlabel(unit or "number", labelpad=1)
    unique = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=3 if wide else 1)


def _draw_panel(ax: Axes, panel: Sequence[ClaimResult], colors: Colors) -> None:
    if panel[0].unit == "ratio":
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    low, high = _limits(panel, ratio=panel[0].unit == "ratio")
    ax.set_xlim(low, high)
    for row, result in enumerate(panel):
        finding = result.finding
        start, end = (float(np.clip(bound, low, high)) for bound in finding.region.required)
        ax.barh(row, end - start, left=start, height=0.86, color=colors["band"], label="required", zorder=0)
        for bound, required in zip(finding.region.possible, finding.region.required, strict=True):
            if bound != required and np.isfinite(bound):
                ax.plot([bound, bound], [row - 0.43, row + 0.43], ":", color=colors["soft"], linewidth=0.9, label=_LINE)
        if finding.published.value is not None:
            ax.errorbar(
                finding.published.value, row + 0.2, xerr=finding.published.half_width, fmt="D", color=colors["paper"],
                markersize=3.5, elinewidth=0.8, capsize=1.5, label="published (bar: printed stds)",
            )  # fmt: skip
        if finding.effect is not None:
            _draw_ours(ax, row, result, finding, colors)
    ax.set_yticks(range(len(panel)), [result.name for result in panel], color=colors["ink"], fontsize=6.5)
    ax.set_ylim(len(panel) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    if low < 0 < high:
        ax.axvline(0, color=colors["soft"], linewidth=0.6, zorder=1)


def _draw_ours(ax: Axes, row: int, result: ClaimResult, finding: Finding, colors: Colors) -> None:
    assert finding.effect is not None
    ends = finding.interval or (finding.effect, finding.effect)
    errors = [[max(0.0, finding.effect - ends[0])], [max(0.0, ends[1] - finding.effect)]]
    filled = result.verdict != "undecided"
    ax.errorbar(
        finding.effect, row - 0.16, xerr=errors, fmt=_MARKERS.get(result.verdict, "o"), color=colors["ours"], markersize=4.5,
        markerfacecolor=colors["ours"] if filled else "none", elinewidth=1, capsize=2, label=f"ours, {result.verdict}",
    )  # fmt: skip


def _limits(panel: Sequence[ClaimResult], *, ratio: bool) -> tuple[float, float]:
    """Return the range of a panel: every number, interval and finite bound, with a margin."""
    numbers = [1.0] if ratio else [0.0] if panel[0].unit == "points" else []
    for result in panel:
        finding = result.finding
        half = finding.published.half_width or 0.0
        published = [] if finding.published.value is None else [finding.published.value - half, finding.published.value + half]
        ours = [] if finding.effect is None else [finding.effect, *(finding.interval or ())]
        numbers += [*published, *ours, *(bound for bound in finding.region.required if np.isfinite(bound))]
    if ratio:
        positive = [number for number in numbers if number > 0]
        return min(positive) / 1.2, max(positive) * 1.2
    low, high = min(numbers), max(numbers)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin
