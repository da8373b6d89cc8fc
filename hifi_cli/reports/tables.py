"""Tables of finished runs: a method per row, a task per column, mean and standard deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.reports import pairs, published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec, shots_of
from hifi_cli.results.study import Study
from hifi_cli.wording import counted_noun

METRIC_NAMES = {
    "accuracy": "Acc.", "accuracy_mismatched": "Acc.", "f1": "F1", "span_f1": "F1", "span_em": "EM",
    "f1_macro": "F1", "f1_micro": "micro F1", "f1a": "F1a", "question_em": "EM", "entity_f1": "F1", "entity_em": "EM",
    "ner_f1": "F1", "ner_precision": "Prec.", "ner_recall": "Rec.", "word_accuracy": "Acc.",
    "matthews_axb": "Matt.", "accuracy_axg": "Acc.", "gender_parity_axg": "Parity",
    "matthews": "Matt.", "spearman": "Spea.", "pearson": "Pear.",
}  # fmt: skip
EPOCHS = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
FRACTIONS = {"trainable_percent": "Trained %", "trainable_backbone_percent": "w/o head %"}


# The columns of the GLUE server's score page: task, and the metrics in the page's order
SERVER_COLUMNS = {
    "CoLA": ("cola", "matthews"),
    "SST-2": ("sst2", "accuracy"),
    "MRPC": ("mrpc", "f1/accuracy"),
    "STS-B": ("stsb", "pearson/spearman"),
    "QQP": ("qqp", "f1/accuracy"),
    "MNLI-m": ("mnli", "accuracy"),
    "MNLI-mm": ("mnli", "accuracy_mismatched"),
    "QNLI": ("qnli", "accuracy"),
    "RTE": ("rte", "accuracy"),
    "WNLI": ("wnli", "accuracy"),
    "AX": ("ax", "matthews"),
}


@dataclass(frozen=True)
class TableOptions:
    """What the command line says about a table of scores.

    Attributes:
        score: `best`, `last` or `max`; None: the one that each protocol reports.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included in the means.
        published: whether the paper's numbers are shown.
        server: file with test scores that stand in the cells instead of the runs' validation scores.
        grid: the command that makes the table's runs; empty: no run is missing, as the table shows what there is.
    """

    score: Score | None = None
    counted: frozenset[str] = pairs.COUNTED
    published: bool = False
    server: Path | None = None
    grid: str = ""


def specs_of(study: Study, **only: str | None) -> list[TableSpec]:
    """One table for each protocol, backbone and number of shots that was run: they never share a table.

    Args:
        only: only this `protocol`, `backbone`, or number of `shots`.
    """
    settings = pairs.settings(pairs.of_setting(study.runs, **only)).drop_duplicates().to_dict("records")
    settings.sort(key=lambda names: (names["protocol"], names["backbone"], names["shots"] != "full", names["shots"].zfill(9)))
    return [TableSpec.model_validate(names) for names in settings]


def server_scores(path: Path) -> pd.DataFrame:
    """Read the scores that the GLUE server returned: method, seed, task, metric and score in percent.

    A CSV with a line per submission: method, seed, and columns of the score page. Two metrics stand in one cell, as on
    the page: 89.3/85.4. An empty cell or a dash: not submitted.

    Raises:
        MissingError: there is no such file.
        UsageError: an unknown column, or a value that is no score.
    """
    if not path.is_file():
        raise MissingError(f"{path} does not exist; save the server's scores as CSV first")
    try:
        table = pd.read_csv(path, dtype=str, na_values=["-"]).dropna(subset=["method", "seed"])
        rows = []
        for line in table.melt(["method", "seed"], var_name="column", value_name="cell").dropna().itertuples():
            task, metrics = SERVER_COLUMNS[line.column]
            parts = zip(metrics.split("/"), map(float, line.cell.split("/")), strict=True)
            rows += [(line.method, int(line.seed), task, metric, score) for metric, score in parts]
    except (KeyError, ValueError) as error:
        columns = f"method, seed and {', '.join(SERVER_COLUMNS)}"
        raise UsageError(f"{path}: {error}; expected are the columns {columns}, with scores as on the page") from None
    return pd.DataFrame(rows, columns=["method", "seed", "task", "metric", "score"])


def build(spec: TableSpec, study: Study, options: TableOptions) -> Table:
    """Build a table of scores from finished runs, with the paper's numbers where the options say so."""
    return _ScoreTable(spec, study, options).table()


class _ScoreTable:
    """A table while it is built: our scores first, then row by row what stands in it.

    Attributes:
        scores: a line for each method, column and seed: `score` in percent, and the columns of its run.
        means: `mean`, `std` and `count` of these by method and column.
        notes_of: footnotes by method and column.
    """

    def __init__(self, spec: TableSpec, study: Study, options: TableOptions) -> None:
        self.spec, self.study, self.options = spec, study, options
        of_protocol = pairs.of_setting(study.runs, protocol=spec.protocol, backbone=spec.backbone)
        self.shots, self.shots_of_runs = str(spec.shots or shots_of(spec.protocol)), pairs.settings(of_protocol)["shots"]
        self.runs = of_protocol[self.shots_of_runs == self.shots]
        order = self.runs.sort_values(["trainable", "method"], ascending=[False, True])["method"].unique()
        self.row_specs = spec.rows or [RowSpec(method=method) for method in order]
        self.columns = spec.columns or [ColumnSpec(task=task) for task in sorted(self.runs["task"].unique())]
        self.metrics = {column.name: column.metric or self._primary(column.task) for column in self.columns}
        self.keys = [*self.metrics, *(["average"] if spec.average and len(self.columns) > 1 else [])]
        self.rows: list[dict[str, Any]] = []
        self.notes_of: dict[tuple[str, str], list[str]] = {}
        self.footnotes: dict[Place, list[str]] = {}
        self.apart: set[tuple[str, str]] = set()  # methods and columns that are not compared with the others
        self.scores = self._scores_of_server(options.server) if options.server else self._scores()
        self.means = self.scores.groupby(["method", "column"])["score"].agg(["mean", "std", "count"])

    def table(self) -> Table:
        """Add every row, then what is known only from all of them."""
        paper = published.load(self.spec.published) if self.options.published and self.spec.published else None
        labels = [row.label or (label_of("methods", row.method) if row.method else "") for row in self.row_specs]
        for row, label in zip(self.row_specs, _distinct(labels, [str(row.method) for row in self.row_specs]), strict=True):
            ours = self._add_our_row(row, label) if row.method else None
            if paper and row.published_name in paper[1].rows:
                self._add_paper_rows(row, label, ours, paper[1])
        labels = [column.label or label_of("tasks", column.task) for column in self.columns]
        labels = _distinct(labels, [column.label or column.task for column in self.columns])
        headings = {
            key: f"{label} ({METRIC_NAMES.get(metric, metric)})" if metric else label
            for label, (key, metric) in zip(labels, self.metrics.items(), strict=True)
        }
        headings |= {"average": "Avg."} if "average" in self.keys else {}
        frame = pd.DataFrame(self.rows, columns=["method", "label", "source", *self._columns_of_frame(), *FRACTIONS])
        frame = frame.astype({name: "Int64" for name in frame if name.endswith("_seeds")})
        fractions = {key: heading for key, heading in FRACTIONS.items() if frame[key].notna().any()}
        return Table(
            title=self._title(),
            frame=frame,
            headings=headings | fractions,
            formats=dict.fromkeys(self.keys, f"z.{self.spec.decimals}f") | dict.fromkeys(fractions, "z.2f"),
            best=self.keys,
            apart={
                (number, name)
                for number, row in enumerate(self.rows)
                for method, key in self.apart
                for name in (key, "average")
                if row["method"] == method
            },
            footnotes={place: texts for place, texts in self.footnotes.items() if texts},
            notes=[*(self._notes_on_paper(paper) if self.options.published else []), *self._notes()],
            missing=self._missing() if self.options.grid and not self.options.server else [],
            scores=self.scores.reindex(columns=["method", "column", "seed", "score", "path"]),
        )

    def _columns_of_frame(self) -> list[str]:
        """The columns of scores, each followed by those of standard deviations and seeds where a row has some."""
        names = []
        for key in self.metrics:
            parts = [f"{key}_std", f"{key}_seeds"]
            has_some = any(row.get(part) for row in self.rows for part in parts)
            names += [key, *(parts if has_some else [])]
        return [*names, *self.keys[len(self.metrics) :]]

    def _scores(self) -> pd.DataFrame:
        """The scores of the runs that may be averaged; what a reader must know of them is noted."""
        methods = {row.method for row in self.row_specs if row.method}
        tasks, seeds = {column.task for column in self.columns}, self.spec.seeds
        runs = self.runs[self.runs["method"].isin(methods) & self.runs["task"].isin(tasks)]
        runs = pairs.with_changes(self.study, runs[runs["seed"].isin(seeds)] if seeds else runs)
        usable, left_out = pairs.comparable(runs, self.options.counted)
        parts = []
        for column in self.columns:
            of_task, metric = usable[usable["task"] == column.task], self.metrics[column.name]
            scores = 100 * self.study.scores(of_task, self.options.score, metric) if metric else pd.Series(dtype=float)
            parts.append(of_task.assign(column=column.name, score=scores))
            of_methods = of_task.assign(report=self.options.score or of_task["report"]).drop_duplicates("method")
            unlike = pairs.unlike(of_methods)
            different = {of_task["method"][index]: names for index, names in unlike.items()}
            most = len(seeds) or of_task.groupby("method")["seed"].count().max()
            for method in methods:
                cell = of_task[of_task["method"] == method]
                notes = [*left_out.get((method, column.task), [])]
                for flag, where in (("collapsed", cell["collapsed"]), ("limited", cell["limit"].notna())):
                    notes += [f"{where.sum()} of {counted_noun(len(cell), 'run')} {flag}, included"] if where.any() else []
                if method in different:
                    notes.append(f"not compared with the column's other runs, which differ in {different[method]}")
                    self.apart.add((method, column.name))
                if lost := int(scores[cell.index].isna().sum()) if metric else 0:
                    notes.append(f"{counted_noun(lost, 'run')} left out: no {metric} stored for this score")
                notes += [f"{len(cell)} of {most} seeds"] if 0 < len(cell) < most else []
                self.notes_of[method, column.name] = notes
        return pd.concat(parts).dropna(subset="score") if parts else usable.assign(column="", score=0.0)

    def _scores_of_server(self, path: Path) -> pd.DataFrame:
        """The test scores of submissions, of the table's seeds."""
        columns = {(column.task, self.metrics[column.name]): column.name for column in self.columns}
        scores = server_scores(path)
        names = [columns.get(key) for key in zip(scores["task"], scores["metric"], strict=True)]
        scores = scores.assign(column=names).dropna(subset="column")
        return scores[scores["seed"].isin(self.spec.seeds)] if self.spec.seeds else scores

    def _add_our_row(self, row: RowSpec, label: str) -> int:
        number = len(self.rows)
        content: dict[str, Any] = {"method": row.method, "label": label}
        content["source"] = "test server" if self.options.server else "runs"
        for key in self.metrics:
            content[f"{key}_seeds"] = 0
            if (row.method, key) in self.means.index:
                mean, spread, count = self.means.loc[(row.method, key)]
                content |= {key: mean, f"{key}_std": spread, f"{key}_seeds": count}
            self.footnotes[number, key] = [*self.notes_of.get((str(row.method), key), [])]
        content["average"] = self._average(content)
        for run in self.scores[self.scores["method"] == row.method][:1].to_dict("records") if not self.options.server else ():
            content |= {key: 100 * run[key.removesuffix("_percent")] / run["total"] for key in FRACTIONS}
        self.rows.append(content)
        return number

    def _average(self, content: dict[str, Any]) -> float | None:
        means = [content.get(key) for key in self.metrics]
        return None if None in means or not means else sum(means) / len(means)  # type: ignore[arg-type]

    def _add_paper_rows(self, row: RowSpec, label: str, ours: int | None, paper: PublishedTable) -> None:
        """Add what the paper prints, and ours minus that, both as printed, where both have a number of the same metric."""
        name, number = str(row.published_name), len(self.rows)
        printed = paper.rows[name]
        theirs: dict[str, Any] = {"method": row.method, "label": row.label or printed.label or label, "source": "published"}
        self.footnotes[number, ""] = [printed.note] if printed.note else []
        for column in self.columns:
            mean, spread = paper.mean(name, column.published_name), paper.deviation(name, column.published_name)
            theirs[column.name] = mean if isinstance(mean, float) else None
            theirs[f"{column.name}_std"] = spread if isinstance(spread, float) else None
            self.footnotes[number, column.name] = paper.cell_notes(name, column.published_name)
        if [column.published_name for column in self.columns] == list(paper.columns):
            theirs["average"] = printed.average
            self.footnotes[number, "average"] = [note] if (note := paper.misprint(name)) else []
        elif printed.average is not None and (mean := self._average(theirs)) is not None:
            theirs["average"] = mean
            note = f"mean of the {len(self.columns)} columns shown; the paper's average has {len(paper.columns)} columns"
            self.footnotes[number, "average"] = [note]
        self.rows.append(theirs)
        if ours is None:
            return
        difference = {key: self._minus(self.rows[ours].get(key), theirs.get(key)) for key in self.keys}
        for column in self.columns:
            metric, of_paper = self.metrics[column.name], paper.columns.get(column.published_name)
            if metric and of_paper and metric != of_paper:
                difference[column.name] = None
                note = f"no difference: our metric is {metric}, the paper's is {of_paper}"
                self.footnotes[len(self.rows), column.name] = [note]
        if any(value is not None for value in difference.values()) or len(self.rows) in {row for row, _ in self.footnotes}:
            self.rows.append({"method": row.method, "label": self.rows[ours]["label"], "source": "difference", **difference})

    def _minus(self, ours: float | None, theirs: float | None) -> float | None:
        if ours is None or theirs is None:
            return None
        return round(round(ours + 1e-9, self.spec.decimals) - theirs, self.spec.decimals)

    def _notes(self) -> list[str]:
        spec = self.spec
        if self.options.server:
            return [f"our scores are test scores, which the GLUE server returned ({self.options.server.name})"]
        notes = [
            f"{counted_noun(count, f'{name}-shot run')} not in this table (--shots {name} shows them)"
            for name, count in self.shots_of_runs[self.shots_of_runs != self.shots].value_counts().items()
        ]
        if spec.seeds and (others := int((~self.runs["seed"].isin(spec.seeds)).sum())):
            notes.append(f"{counted_noun(others, 'run')} with other seeds left out (--seeds includes them)")
        notes += pairs.note_on_variants(self.study, spec.protocol, spec.backbone)
        cut = self.scores[(self.scores[["truncated_train", "truncated_reported"]].astype(float) > 0).any(axis=1)]
        parts = [
            f"{label_of('tasks', run.task)} {run.truncated_train:,.0f} of {run.train_rows:,} train and"
            f" {run.truncated_reported:,.0f} of {run.reported_rows:,} reported rows"
            for run in cut.drop_duplicates("task").itertuples()
        ]
        return [*notes, *([f"longer than max_length and cut: {'; '.join(parts)}"] if parts else [])]

    def _notes_on_paper(self, paper: tuple[str, PublishedTable] | None) -> list[str]:
        """What a reader needs to interpret the difference."""
        if not paper:
            return ["published: no paper's numbers are known for this table"]
        name, table = paper
        described = [table.split, table.backbone, counted_noun(table.seeds, "seed") if table.seeds else None]
        own_split = table.split if self.options.server else next(iter(self.runs["split"]), None)
        ours = {"backbone": (self.spec.backbone, table.backbone), "split": (own_split, table.split)}
        differing = [f"our {key} is {own}" for key, (own, other) in ours.items() if own and other and own != other]
        differing += ["the difference also comes from that"] if differing else []
        words = "; ".join([", ".join(filter(None, described)), *differing])
        return [f"published: {name}, table {table.number} ({words})"]

    def _missing(self) -> list[str]:
        """The number of runs that the table lacks, and the command that makes them."""
        seeds = self.spec.seeds or sorted(self.runs["seed"].unique()) or [1]
        wanted = product(dict.fromkeys(row.method for row in self.row_specs if row.method), self.spec.tasks, seeds)
        lacking = {*wanted} - {*zip(self.scores["method"], self.scores["task"], self.scores["seed"], strict=True)}
        return [f"{counted_noun(len(lacking), 'run')}: {self.options.grid}"] if lacking else []

    def _title(self) -> str:
        reported = [self.options.score] if self.options.score else sorted(self.runs["report"].unique())
        which = "GLUE test server scores" if self.options.server else ", ".join(EPOCHS[name] for name in reported)
        few = "" if self.shots == "full" else f"{self.shots}-shot"
        setting = [f"protocol {self.spec.protocol}", f"backbone {self.spec.backbone}", few, which]
        return f"{self.spec.description or 'Finished runs'} ({', '.join(filter(None, setting))})"

    def _primary(self, task: str) -> str | None:
        known = self.runs["metric"][self.runs["task"] == task]
        if known.empty and task in registry.names("tasks"):
            return registry.load("tasks", task).get("primary")
        return None if known.empty else str(known.iloc[0])


def _distinct(labels: list[str], names: list[str]) -> list[str]:
    """The labels, where several are the same the names: a copy of a task or method keeps the original's label."""
    return [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]
