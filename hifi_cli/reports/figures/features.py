"""Features: how far fine-tuning moves them, and how heads lay them out (EH-FT, figures 1 and 4)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.style import Frame, Meta


def features(frame: Frame, meta: Meta) -> Figure:
    """A bar per method, the number beside it: mean over seeds of the mean L2 change (EH-FT, figure 1)."""
    tasks = list(frame["task"].unique())
    bars = frame["method"].nunique()
    figure, axes = style.grid(len(tasks), columns=2, height=0.6 + 0.24 * bars, width=style.WIDE if len(tasks) > 1 else 4.6)
    for place, task in zip(axes, tasks, strict=True):
        found = [
            (label, *style.mean_and_std(runs["mean"]))
            for label, runs in frame[frame["task"] == task].groupby("label", sort=False)
        ]
        labels, means, deviations = zip(*found, strict=True)
        spread = deviations if any(deviations) else None
        place.barh(labels, means, xerr=spread, color="#6f9fc8", edgecolor="black", linewidth=0.6, capsize=2)
        for row, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
            place.text(mean + deviation, row, f" {mean:.2f}", va="center", fontsize=7)
        place.invert_yaxis()
        place.margins(x=0.15)
        style.name_task(place, meta, task)
        place.set_xlabel("$L_2$ change of the features")
    return figure


def tsne(frame: Frame, meta: Meta) -> Figure:
    """A column per head, training examples above, development examples below (EH-FT, figure 4)."""
    tasks, heads, splits = (list(frame[name].unique()) for name in ("task", "head", "split"))
    rows = [(task, split) for task in tasks for split in splits]
    figure, axes = style.grid(len(rows) * len(heads), columns=len(heads), height=2.0, sharex="col", sharey="col")
    for row, (task, split) in enumerate(rows):
        labels = sorted(frame[frame["task"] == task]["label"].unique())
        for column, head in enumerate(heads):
            place = axes[row * len(heads) + column]
            inside = frame[(frame["task"] == task) & (frame["split"] == split) & (frame["head"] == head)]
            for number, label in enumerate(labels):
                points = inside[inside["label"] == label]
                place.scatter(points["x"], points["y"], s=9, alpha=0.75, linewidths=0.3, label=label, **style.mark(number))
            score, apart = inside[["score", "silhouette"]].iloc[0]
            numbers = f"{inside['metric'].iloc[0]} {100 * score:.0f}, silhouette {apart:.2f}"
            place.set_title(f"{head} head, {split}\n{numbers}", fontsize=7)
            place.set_xticks([])
            place.set_yticks([])
    style.legend_above(figure, axes[0])
    meta.notes.append("silhouette: of the labels in all hidden dimensions, from -1 to 1; 0 is no separation")
    return figure
