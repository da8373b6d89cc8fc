"""The HTML report: tables, comparisons and claims in words, figures and learning curves.

One file that loads nothing.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hifi_cli._version import __version__
from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError
from hifi_cli.records.study import Study
from hifi_cli.reports.compare import compare
from hifi_cli.drawing.looks import looks_of
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.render import as_html
from hifi_cli.reports.selection import select_runs, table_keys
from hifi_cli.reports.table import Table

# Both papers ask whether a method reaches full fine-tuning.
REFERENCE = "full-ft"


def render(study: Study, tables: Sequence[Table]) -> str:
    """Return the page.

    Args:
        study: its figures, learning curves and list of runs are shown.
        tables: in the order of the page.
    """
    environment = Environment(
        loader=PackageLoader("hifi_cli.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(table_html=lambda table: Markup(as_html(table)))
    figures = []
    for path in sorted((study.directory / "figures").glob("*.png")):
        figures.append((path.stem, png(path.read_bytes())))
    return environment.get_template("report.html.j2").render(
        version=__version__,
        tables=tables,
        notes=study.notes_on_damage,
        figures=figures,
        curves=[*learning_curves(study)],
        runs=_list_of_runs(study),
    )


def _list_of_runs(study: Study) -> Markup:
    """Every run with its scores and the first letters of its encoder's digest."""
    runs = study.runs[["path", "status", "metric", "last", "best", "max", "epoch_last", "weights"]]
    runs = runs.assign(weights=runs["weights"].str[:8])
    runs = runs.rename(columns={"epoch_last": "epochs", "weights": "encoder"})
    percent = "{:.2%}".format
    return Markup(runs.to_html(index=False, border=0, na_rep="-", float_format=percent))


def comparisons(study: Study, options: ReportOptions) -> Iterator[Table]:
    """Yield the comparison of Full-FT with each method that shares runs with it.

    There is one for every protocol, backbone and number of shots.

    Args:
        study: all runs.
        options: which epoch's score is meant, and which runs count.
    """
    for keys in table_keys(study.table_runs).drop_duplicates().to_dict("records"):
        runs = select_runs(study.runs, **keys)
        others = sorted(set(runs["method"]) - {REFERENCE})
        # No method may share a run with Full-FT.
        with suppress(MissingError):
            yield from compare(study, runs, [REFERENCE, *others], options)


def learning_curves(study: Study) -> Iterator[tuple[str, Markup]]:
    """Yield title and picture for each task of each table.

    A picture has the primary metric after each epoch, a line per method, mean over seeds.
    """
    runs = study.table_runs
    runs = runs.assign(shots=table_keys(runs)["shots"])
    for (task, *keys), of_task in runs.groupby(["task", "protocol", "backbone", "shots"]):
        metric = of_task["metric"].iloc[0]
        scores = _scores_by_epoch(study, of_task, metric)
        if scores.empty:
            continue
        title = f"{label_of('tasks', str(task))} ({', '.join(keys)})"
        yield title, png(_drawn_curves(scores, metric))


def _scores_by_epoch(study: Study, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The metric of runs with all rows after each epoch, a fraction of 1.

    Columns: `epoch`, `method`, and one named like the metric.
    """
    lines = []
    for run in runs[runs["limit"].isna()].itertuples():
        for line in study.results[run.path].epoch_metrics:
            lines.append({**line.metrics, "epoch": line.epoch, "method": run.method})
    return pd.DataFrame(lines, columns=["epoch", "method", metric])


def _drawn_curves(scores: pd.DataFrame, metric: str) -> bytes:
    """A PNG file of the mean over seeds, a line per method, in percent."""
    # matplotlib takes long to load, and tables and claims do without it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    curves = 100 * scores.pivot_table(index="epoch", columns="method", values=metric)
    axes = figure.subplots()
    axes.set(xlabel="epoch", ylabel=f"{metric} [%]")
    for method, look in looks_of(curves.columns).items():
        axes.plot(
            curves[method],
            label=label_of("methods", method),
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            markersize=4,
        )
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()


def png(content: bytes) -> Markup:
    """Return a picture as an element of the page."""
    text = base64.b64encode(content).decode()
    return Markup('<img alt="" src="data:image/png;base64,{}">').format(text)
