"""The HTML report: tables, comparisons and claims in words, figures and learning curves, in one file that loads nothing."""

import base64
import io
from collections.abc import Collection, Iterator, Sequence

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.files import digest
from hifi_cli.reports import claims, compare, pairs
from hifi_cli.reports.claim_spec import ClaimsFile
from hifi_cli.reports.claims import ClaimResult
from hifi_cli.reports.render import Table, text_cell
from hifi_cli.results.study import Study
from hifi_cli.version import __version__

REFERENCE = "full-ft"  # both papers ask whether a method reaches full fine-tuning


def render(study: Study, tables: Sequence[Table], decided: Sequence[tuple[ClaimsFile, Sequence[ClaimResult]]]) -> str:
    """Return the page."""
    environment = Environment(loader=PackageLoader("hifi_cli.reports", "templates"), autoescape=True, undefined=StrictUndefined)
    environment.globals.update(table_html=table_html, sentence=claims.sentence)
    runs = study.runs[["path", "status", "metric", "last", "best", "max", "epochs", "weights"]].set_index("path")
    return environment.get_template("report.html.j2").render(
        version=__version__,
        tables=tables,
        claims=decided,
        figures=[(path.stem, png(path.read_bytes())) for path in sorted((study.directory / "figures").glob("*.png"))],
        curves=[*learning_curves(study)],
        runs=Markup(
            runs.style.set_uuid("runs").format(_number, na_rep="-", escape="html").format_index(escape="html").to_html()
        ),
    )


def comparisons(
    study: Study, reference: str, *, score: Score | None = None, counted: Collection[str] = pairs.COUNTED
) -> Iterator[Table]:
    """Yield the comparison of a method with each other that shares runs with it, under every protocol, backbone and shots."""
    for setting in pairs.settings(study.runs).drop_duplicates().itertuples(index=False):
        runs = pairs.of_setting(study.runs, **setting._asdict())
        methods = [reference]
        for other in sorted({*runs["method"]} - {reference}):
            paired = pairs.pair(study, runs, reference, other, score=score, counted=counted)
            methods += [] if paired.frame.empty else [other]
        if len(methods) > 1:
            compared = runs[runs["method"].isin(methods)]
            for table in compare.compare(study, compared, methods, score=score, counted=counted):
                yield table.converted()


def table_html(shown: Table) -> Markup:
    """Return a table by pandas's Styler, the best number of a column bold and the second underlined."""
    keys = [*shown.headings]
    cells = [[text_cell(shown, row, key) for key in keys] for row in range(len(shown.labels))]
    labels = [label + (f" [{marks}]" if (marks := shown.marks_of(row)) else "") for row, label in enumerate(shown.labels)]
    frame = pd.DataFrame(cells, [*range(len(labels))], [*range(len(keys))])
    places = {1: "font-weight: bold", 2: "text-decoration: underline"}
    styles = [[places.get(shown.places.get((row, key), 0), "") for key in keys] for row in range(len(labels))]
    styler = frame.style.set_uuid(digest(shown.title)[:8])
    styler.apply(lambda _: pd.DataFrame(styles, frame.index, frame.columns), axis=None).format(escape="html")
    styler.format_index(lambda number: str(escape(labels[number])))
    styler.format_index(lambda number: str(escape(shown.headings[keys[number]])), axis=1)
    return Markup(styler.to_html())


def learning_curves(study: Study) -> Iterator[tuple[str, Markup]]:
    """Yield a picture for each task and setting: the primary metric after each epoch, a line per method, mean over seeds."""
    runs = study.runs.merge(pairs.settings(study.runs)["shots"].rename("words"), left_index=True, right_index=True)
    runs = runs[runs["variant"].isna()].sort_values(["task", "protocol", "backbone", "words", "method"])
    for (task, *setting), cells in runs.groupby(["task", "protocol", "backbone", "words"]):
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        ax = figure.subplots()
        for method, of_method in cells.groupby("method"):
            epochs = [study.epochs(path) for path in of_method["path"] if study.records[path]["epoch_metrics"]]
            metric = of_method["metric"].iloc[0]
            curves = [100 * epoch[metric].dropna() for epoch in epochs if metric in epoch]
            if curves:
                mean = pd.concat(curves, axis=1, join="inner").mean(axis=1)
                ax.plot(mean.index, mean, marker=".", label=label_of("methods", str(method)))
        if ax.lines:
            ax.set_xlabel("epoch")
            ax.set_ylabel(f"{cells['metric'].iloc[0]} [%]")
            ax.legend(fontsize=7)
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=110)
            yield f"{label_of('tasks', str(task))} ({', '.join(setting)})", png(image.getvalue())


def png(content: bytes) -> Markup:
    """Return a picture as an element of the page."""
    return Markup('<img alt="" src="data:image/png;base64,{}">').format(base64.b64encode(content).decode())


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
