"""The HTML report: tables, comparisons and claims in words, figures and learning curves, in one file that loads nothing."""

import base64
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hifi_cli._version import __version__
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.errors import MissingError
from hifi_cli.records.study import Study
from hifi_cli.reports import comparable
from hifi_cli.reports import compare as compare_runs
from hifi_cli.reports.render import Table, as_html

REFERENCE = "full-ft"  # both papers ask whether a method reaches full fine-tuning


def render(study: Study, tables: Sequence[Table]) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("hifi_cli.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(table_html=lambda table: Markup(as_html(table)))
    runs = study.runs[["path", "status", "metric", "last", "best", "max", "epoch_last", "weights"]]
    runs = runs.assign(weights=runs["weights"].str[:8]).rename(
        columns={"epoch_last": "epochs", "weights": "encoder"}
    )
    return environment.get_template("report.html.j2").render(
        version=__version__,
        tables=tables,
        notes=study.notes_on_damage,
        figures=[
            (path.stem, png(path.read_bytes()))
            for path in sorted((study.directory / "figures").glob("*.png"))
        ],
        curves=[*learning_curves(study)],
        runs=Markup(runs.to_html(index=False, border=0, na_rep="-", float_format="{:.2%}".format)),
    )


def comparisons(
    study: Study,
    *,
    score: EpochChoice | None = None,
    included: Collection[str] = comparable.INCLUDED_BY_DEFAULT,
) -> Iterator[Table]:
    """Yield the comparison of Full-FT with each method that shares runs with it, under every protocol, on every backbone."""
    for keys in comparable.table_keys(study.table_runs).drop_duplicates().to_dict("records"):
        runs = comparable.select_runs(study.runs, **keys)
        others = sorted({*runs["method"]} - {REFERENCE})
        with suppress(MissingError):  # none shares any
            yield from compare_runs.compare(
                study, runs, [REFERENCE, *others], score=score, included=included
            )


def learning_curves(study: Study) -> Iterator[tuple[str, Markup]]:
    """Yield a picture for each task of each table: the primary metric after each epoch, a line per method, mean over seeds."""
    from matplotlib import style  # takes long, and tables and claims do without
    from matplotlib.figure import Figure

    runs = study.table_runs.assign(shots=comparable.table_keys(study.table_runs)["shots"])
    for (task, *keys), cells in runs.groupby(["task", "protocol", "backbone", "shots"]):
        metric = cells["metric"].iloc[0]
        epochs = [
            {**line, "method": run.method}
            for run in cells[cells["limit"].isna()].itertuples()
            for line in study.records[run.path]["epoch_metrics"]
        ]
        frame = pd.DataFrame(epochs, columns=["epoch", "method", metric])
        if len(frame):
            figure = Figure(figsize=(5, 3.6), layout="constrained")
            curves = 100 * frame.pivot_table(index="epoch", columns="method", values=metric)
            with style.context("seaborn-v0_8-colorblind"):
                axes = figure.subplots()
            curves.rename(columns=lambda name: label_of("methods", name)).plot(
                ax=axes, marker=".", ylabel=f"{metric} [%]", legend=False
            )
            figure.legend(loc="outside upper center", ncols=3, frameon=False)
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=110)
            yield f"{label_of('tasks', str(task))} ({', '.join(keys)})", png(image.getvalue())


def png(content: bytes) -> Markup:
    """Return a picture as an element of the page."""
    return Markup('<img alt="" src="data:image/png;base64,{}">').format(
        base64.b64encode(content).decode()
    )
