"""The hidden features of differently initialized task heads, in two dimensions (EH-FT, figure 4)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a column per task head, training examples above, development examples below.

    The map is that of the first seed; score and silhouette are means over all seeds.
    """
    means = (
        frame.drop_duplicates(["task", "split", "head", "seed"])
        .groupby(["task", "split", "head"])[["score", "silhouette"]]
        .mean()
    )
    seeds, frame = frame["seed"].unique(), frame.dropna(subset="x")
    tasks, heads, splits = (list(frame[name].unique()) for name in ("task", "head", "split"))
    rows = [(task, split) for task in tasks for split in splits]
    figure, axes = style.grid(len(rows) * len(heads), columns=len(heads), height=2.0, sharex="col", sharey="col")
    for row, (task, split) in enumerate(rows):
        labels = sorted(frame[frame["task"] == task]["label"].unique())
        for column, head in enumerate(heads):
            ax = axes[row * len(heads) + column]
            panel = frame[(frame["task"] == task) & (frame["split"] == split) & (frame["head"] == head)]
            for number, label in enumerate(labels):
                points = panel[panel["label"] == label]
                ax.scatter(points["x"], points["y"], s=9, alpha=0.75, linewidths=0.3, label=label, **style.marker(number))
            score, silhouette = means.loc[(task, split, head)]
            numbers = f"{panel['metric'].iloc[0]} {100 * score:.0f} %, silhouette {silhouette:.2f}"
            ax.set_title(f"{head} head, {split}\n{numbers.replace('-', style.MINUS)}", fontsize=7)
            ax.set_xticks([])
            ax.set_yticks([])
    style.shared_legend(figure, axes)
    if len(seeds) > 1:
        metadata.notes.append(f"the maps are those of seed {seeds[0]}, the numbers means over {len(seeds)} seeds")
    metadata.notes.append("silhouette: separation of the labels in all hidden dimensions, from -1 to 1; 0 is no separation")
    return figure
