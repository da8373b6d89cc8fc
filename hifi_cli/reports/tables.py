"""Tables of finished runs: a method per row, a task per column, mean and standard deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import UsageError
from hifi_cli.reports import pairs, published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.render import Table, rounded
from hifi_cli.reports.server_scores import ServerScores
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec, shots_of
from hifi_cli.results.study import Study
from hifi_cli.wording import counted_noun, first_of

METRIC_NAMES = {
    "accuracy": "Acc.", "accuracy_mismatched": "Acc.", "f1": "F1", "span_f1": "F1", "span_em": "EM",
    "f1_macro": "F1", "f1_micro": "micro F1", "f1a": "F1a", "question_em": "EM", "entity_f1": "F1", "entity_em": "EM",
    "ner_f1": "F1", "ner_precision": "Prec.", "ner_recall": "Rec.", "word_accuracy": "Acc.",
    "matthews_axb": "Matt.", "accuracy_axg": "Acc.", "gender_parity_axg": "Parity",
    "matthews": "Matt.", "spearman": "Spea.", "pearson": "Pear.",
}  # fmt: skip
EPOCHS = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
FRACTIONS = {"trainable": "Trained %", "trainable_backbone": "w/o head %"}


@dataclass(frozen=True)
class TableOptions:
    """What the command line says about a table of scores.

    Attributes:
        score: `best`, `last` or `max`; None: the one that each protocol reports.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included in the means.
        published: whether the paper's numbers are shown.
        server: test scores that stand in the cells instead of the runs' validation scores.
        grid: the command that makes the table's runs; empty: no run is missing, as the table shows what there is.
    """

    score: Score | None = None
    counted: frozenset[str] = pairs.COUNTED
    published: bool = False
    server: ServerScores | None = None
    grid: str = ""


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, in percent.

    Attributes:
        run: one of the runs, which stands for all; None: there is none.
    """

    mean: float | None = None
    deviation: float | None = None
    notes: list[str] = field(default_factory=list)
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)
    run: Any = None


def specs_of(study: Study, **only: str | None) -> list[TableSpec]:
    """One table for each protocol, backbone and number of shots that was run: they never share a table.

    Args:
        only: only this `protocol`, `backbone`, or number of `shots`.
    """
    runs = study.shown
    settings = {*zip(runs["protocol"], runs["backbone"], runs["shots"].map(_shots), strict=True)}
    ordered = sorted(settings, key=lambda setting: (setting[:2], setting[2] != "full", len(setting[2]), setting[2]))
    named = [dict(zip(("protocol", "backbone", "shots"), setting, strict=True)) for setting in ordered]
    return [
        TableSpec.model_validate(names) for names in named if all(value in (None, names[key]) for key, value in only.items())
    ]


def build(spec: TableSpec, study: Study, options: TableOptions) -> Table:
    """Build a table of scores from finished runs, with the paper's numbers where the options say so.

    Raises:
        UsageError: a column's metric is neither one of a task nor stored by a run.
    """
    return _ScoreTable(spec, study, options).build()


def build_all(specs: Sequence[TableSpec], study: Study, options: TableOptions) -> list[Table]:
    """Build several tables of scores."""
    return [build(spec, study, options) for spec in specs]


def build_under_all_scores(specs: Sequence[TableSpec], study: Study, options: TableOptions) -> list[Table]:
    """Build three tables for each specification; a note under the third says where they differ most."""
    tables = []
    for spec in specs:
        group = [build(spec, study, replace(options, score=score)) for score in get_args(Score)]
        tables += group
        last, maximum = (group[get_args(Score).index(score)].frame for score in ("last", "max"))
        keys = [*group[0].best]
        spread = (maximum[keys].astype(float) - last[keys].astype(float))[last["source"] == "runs"].stack()
        if len(spread) and spread.max() > 0:
            row, key = spread.idxmax()
            where = f"{spread.max():.{spec.decimals}f} ({last['label'][row]}, {group[0].headings[key]})"
            group[-1].notes.append(f"the choice of the score changes a cell by up to {where}, from last to max")
    return tables


class _ScoreTable:
    """A table while it is built: rows are added one by one, with the texts and footnotes of their cells."""

    def __init__(self, spec: TableSpec, study: Study, options: TableOptions) -> None:
        self.spec, self.study, self.options = spec, study, options
        runs = study.shown
        self.of_setting = runs[(runs["protocol"] == spec.protocol) & (runs["backbone"] == spec.backbone)]
        self.shots = str(spec.shots or shots_of(spec.protocol))
        self.runs = self.of_setting[self.of_setting["shots"].map(_shots) == self.shots]
        self.by_cell = dict(iter(self.runs.groupby(["method", "task"])))
        order = self.runs.sort_values(["trainable", "method"], ascending=[False, True])["method"].unique()
        self.row_specs = spec.rows or [RowSpec(method=method) for method in order]
        self.columns = spec.columns or [ColumnSpec(task=task) for task in sorted(self.runs["task"].unique())]
        self.metrics = [column.metric or self._primary(column.task) for column in self.columns]
        self.average = spec.average and len(self.columns) > 1
        self.paper = published.load(spec.published) if options.published and spec.published else None
        self.rows: list[dict[str, Any]] = []
        self.cells: dict[tuple[int, str], Cell] = {}
        self.texts: dict[tuple[int, str], str] = {}
        self.footnotes: dict[tuple[int, str], list[str]] = {}
        self.missing: dict[str, dict[tuple[str, str], int]] = {}  # numbers of runs by row, and by method and task

    def build(self) -> Table:
        """Add every row, then what is known only from all of them."""
        self._refuse_unknown_metrics()
        labels = [row.label or (label_of("methods", row.method) if row.method else "") for row in self.row_specs]
        labels = _distinct(labels, [row.label or row.method or "" for row in self.row_specs])
        for row, label in zip(self.row_specs, labels, strict=True):
            ours = self._add_our_row(row, label) if row.methods else None
            if self.paper and (row.published_name in self.paper[1].rows):
                self._add_paper_rows(row, label, ours, self.paper[1])
        task_labels = _distinct(
            [column.label or label_of("tasks", column.task) for column in self.columns],
            [column.label or column.task for column in self.columns],
        )
        headings = {
            column.name: f"{label} ({METRIC_NAMES.get(metric, metric)})" if metric else label
            for column, label, metric in zip(self.columns, task_labels, self.metrics, strict=True)
        }
        keys = [*headings]
        if self.average:
            headings["average"], keys = "Avg.", [*keys, "average"]
        fractions = {f"{key}_percent": heading for key, heading in FRACTIONS.items()}
        names = ["method", "label", "source"]
        for column in self.columns:
            names += [column.name, *(f"{column.name}_{part}" for part in ("std", "seeds") if self._has_seeds(column.name))]
        frame = pd.DataFrame(self.rows, columns=[*names, *(["average"] if self.average else []), *fractions])
        if "varies" not in self.texts.values():
            fractions = {key: heading for key, heading in fractions.items() if frame[key].notna().any()}
        frame = frame.astype({name: "Int64" for name in frame if name.endswith("_seeds")})
        if not self.spec.seeds:
            self._note_fewer_seeds()
        apart = self._note_disagreements()
        scores = [cell.scores.assign(row=row, column=key) for (row, key), cell in self.cells.items() if len(cell.scores)]
        return Table(
            title=self._title(),
            frame=frame,
            headings=headings | fractions,
            decimals={**dict.fromkeys(keys, self.spec.decimals), **{key: decimals_for(frame[key]) for key in fractions}},
            best=keys,
            apart=apart,
            texts=self.texts,
            footnotes={place: texts for place, texts in self.footnotes.items() if texts},
            notes=self._notes(),
            missing=self._missing() if self.options.grid and not self.options.server else [],
            scores=pd.concat(scores) if scores else pd.DataFrame(),
        )

    def _has_seeds(self, key: str) -> bool:
        return any(row.get(f"{key}_seeds") or pd.notna(row.get(f"{key}_std")) for row in self.rows)

    def _add_our_row(self, row: RowSpec, label: str) -> int:
        number, shown = len(self.rows), set()
        source = "test server" if self.options.server else "runs"
        content: dict[str, Any] = {"method": row.method, "label": label, "source": source}
        means = []
        for column, metric in zip(self.columns, self.metrics, strict=True):
            found = {method: self._cell(method, column.task, metric, label) for method in row.methods}
            best, cell, notes = _best(found)
            if cell.run is not None:
                shown.add(best)
            means.append(cell.mean)
            self.cells[number, column.name] = cell
            self.footnotes[number, column.name] = notes
            content |= {column.name: cell.mean, f"{column.name}_std": cell.deviation}
            content |= {f"{column.name}_seeds": len(cell.scores)}
        known = [mean for mean in means if mean is not None]
        content["average"] = statistics.fmean(known) if known and len(known) == len(means) else None
        runs = [self.cells[number, column.name].run for column in self.columns]
        first = next((run for run in runs if run is not None), None)
        for key in FRACTIONS:
            content[f"{key}_percent"] = 100 * first[key] / first["total"] if first is not None and len(shown) == 1 else None
            if len(shown) > 1:
                self.texts[number, f"{key}_percent"] = "varies"
        self.rows.append(content)
        return number

    def _cell(self, method: str, task: str, metric: str | None, label: str) -> Cell:
        if self.options.server:
            return _of_seeds(*self.options.server.scores_of(method, task, metric, self.spec.seeds))
        finished = self.by_cell.get((method, task), self.runs.iloc[:0])
        runs, notes = pairs.averaged(self.study, finished, self.spec.seeds, self.options.counted)
        seeds = self.spec.seeds or sorted(self.runs["seed"].unique())
        if absent := len({*seeds} - {*runs["seed"]}):
            self.missing.setdefault(label, {})[method, label_of("tasks", task)] = absent
        if runs.empty or metric is None:
            return Cell(notes=notes)
        scores = self.study.scores(runs, self.options.score, metric)
        if lost := int(scores.isna().sum()):
            notes.append(f"{counted_noun(lost, 'run')} left out: no {metric} stored for this score")
        of_seeds = pd.DataFrame({"seed": runs["seed"], "score": 100 * scores, "path": runs["path"]})[scores.notna()]
        cell = _of_seeds(of_seeds, notes)
        return replace(cell, run=runs.loc[of_seeds.index[0]]) if len(of_seeds) else cell

    def _add_paper_rows(self, row: RowSpec, label: str, ours: int | None, paper: PublishedTable) -> None:
        """Add what the paper prints, and ours minus that where both have a number of the same metric."""
        name, number = str(row.published_name), len(self.rows)
        printed = paper.rows[name]
        content: dict[str, Any] = {"method": row.method, "label": row.label or printed.label or label, "source": "published"}
        self.footnotes[number, ""] = [printed.note] if printed.note else []
        for column in self.columns:
            mean, spread = paper.mean(name, column.published_name), paper.deviation(name, column.published_name)
            content[column.name] = mean if isinstance(mean, float) else None
            content[f"{column.name}_std"] = spread if isinstance(spread, float) else None
            self.texts |= {(number, column.name): "?"} if mean == "illegible" else {}
            self.footnotes[number, column.name] = list(published.cell_notes(paper, name, column.published_name))
        means = [content[column.name] for column in self.columns]
        is_whole = [column.published_name for column in self.columns] == list(paper.columns)
        if self.average and is_whole:
            content["average"] = printed.average
            note = published.average_note(paper, name)
            self.footnotes[number, "average"] = [note] if note else []
        elif self.average and printed.average is not None and None not in means:
            content["average"] = sum(means) / len(means)
            note = f"mean of the {len(means)} columns shown; the paper's average has {len(paper.columns)} columns"
            self.footnotes[number, "average"] = [note]
        self.texts |= {(number, f"{key}_percent"): "" for key in FRACTIONS}
        self.rows.append(content)
        if ours is not None:
            self._add_difference(row, self.rows[ours], content, paper, is_whole=is_whole)

    def _add_difference(
        self, row: RowSpec, ours: dict[str, Any], theirs: dict[str, Any], paper: PublishedTable, *, is_whole: bool
    ) -> None:
        """Add ours minus the paper's, both as printed; the mean of the printed cells where the printed average is wrong."""
        number = len(self.rows)
        content: dict[str, Any] = {}
        for column, metric in zip(self.columns, self.metrics, strict=True):
            of_paper = paper.columns.get(column.published_name)
            if metric and of_paper and metric != of_paper:
                note = f"no difference: our metric is {metric}, the paper's is {of_paper}"
                self.footnotes[number, column.name] = [note]
            else:
                content[column.name] = self._minus(ours[column.name], theirs[column.name])
        average = theirs.get("average")
        check = published.check_average(paper, str(row.published_name))
        if is_whole and check.verdict == "mismatch" and check.recomputed is not None and ours["average"] is not None:
            average = float(check.recomputed)
            self.footnotes[number, "average"] = ["difference from the mean of the printed cells"]
        content["average"] = self._minus(ours["average"], average) if self.average else None
        if any(value is not None for value in content.values()) or any(at == number for at, _ in self.footnotes):
            self.texts |= {(number, f"{key}_percent"): "" for key in FRACTIONS}
            self.rows.append({"method": row.method, "label": ours["label"], "source": "difference", **content})

    def _minus(self, ours: float | None, theirs: float | None) -> float | None:
        if ours is None or theirs is None:
            return None
        return float(rounded(ours, self.spec.decimals) - rounded(theirs, self.spec.decimals))

    def _note_fewer_seeds(self) -> None:
        """Say where a mean is over fewer seeds than others of its column."""
        for column in self.columns:
            counts = {row: len(cell.scores) for (row, key), cell in self.cells.items() if key == column.name}
            for row, count in counts.items():
                if 0 < count < max(counts.values()):
                    note = f"{counted_noun(count, 'seed')}, others have up to {max(counts.values())}"
                    self.footnotes[row, column.name].append(note)

    def _note_disagreements(self) -> set[tuple[int, str]]:
        """Find the cells whose runs cannot be compared with most of their column, and the averages of these rows."""
        apart: set[tuple[int, str]] = set()
        for column in self.columns:
            of_column = {row: cell.run for (row, key), cell in self.cells.items() if key == column.name}
            runs = {row: run for row, run in of_column.items() if run is not None}
            score = self.options.score
            agreeing = {
                row: sum(not pairs.disagreement(self.study, run, other, score) for other in runs.values())
                for row, run in runs.items()
            }
            usual = runs[max(agreeing, key=lambda row: agreeing[row])] if agreeing else None
            for row, run in runs.items():
                if difference := pairs.disagreement(self.study, run, usual, score):
                    note = f"not compared with the column's other runs, which differ in {difference}"
                    self.footnotes[row, column.name].append(note)
                    apart |= {(row, column.name), (row, "average")}
        return apart

    def _notes(self) -> list[str]:
        spec, server = self.spec, self.options.server
        notes = self._notes_on_paper() if self.options.published else []
        if server:
            notes.append(f"our scores are test scores, which the GLUE server returned ({server.path.name})")
            if others := [method for method in server.methods if not any(method in row.methods for row in self.row_specs)]:
                notes.append(f"submissions without a row in this table: {', '.join(others)}")
            return notes
        elsewhere = self.of_setting["shots"].map(_shots)
        for name, count in elsewhere[elsewhere != self.shots].value_counts().items():
            notes.append(f"{counted_noun(count, f'{name}-shot run')} not in this table (--shots {name} shows them)")
        runs = self.study.runs
        of_setting = (runs["protocol"] == spec.protocol) & (runs["backbone"] == spec.backbone)
        if variants := int((of_setting & runs["variant"].notna()).sum()):
            notes.append(f"{counted_noun(variants, 'run')} of searches and other variants left out (hifi table search)")
        notes += self._truncation_notes()
        return notes

    def _notes_on_paper(self) -> list[str]:
        """What a reader needs to interpret the difference."""
        if not self.paper:
            return ["published: no paper's numbers are known for this table"]
        name, table = self.paper
        described = [table.split, table.backbone, counted_noun(table.seeds, "seed") if table.seeds else None]
        own_split = table.split if self.options.server else next(iter(self.runs["split"]), None)
        ours = {"backbone": (self.spec.backbone, table.backbone), "split": (own_split, table.split)}
        differing = [f"our {key} is {own}" for key, (own, other) in ours.items() if own and other and own != other]
        differing += ["the difference also comes from that"] if differing else []
        words = "; ".join([", ".join(filter(None, described)), *differing])
        return [f"published: {name}, table {table.number} ({words})"]

    def _truncation_notes(self) -> list[str]:
        counts = {}
        for run in (cell.run for cell in self.cells.values() if cell.run is not None):
            if run["truncated_train"] or run["truncated_reported"]:
                parts = [f"{run[f'truncated_{part}']:,.0f} of {run[f'{part}_rows']:,} {part}" for part in ("train", "reported")]
                counts[run["task"]] = f"{label_of('tasks', run['task'])} {' and '.join(parts)} rows"
        return [f"longer than max_length and cut: {'; '.join(counts.values())}"] if counts else []

    def _missing(self) -> list[str]:
        """What the table lacks in one sentence, and the command that makes it."""
        count = sum(sum(runs.values()) for runs in self.missing.values())
        every = {label_of("tasks", column.task) for column in self.columns}
        by_row = {label: dict.fromkeys(task for _, task in runs) for label, runs in self.missing.items()}
        rows = [label if {*tasks} == every else f"{label} on {', '.join(tasks)}" for label, tasks in by_row.items()]
        return [f"{counted_noun(count, 'run')} ({first_of(rows, '; ')}): {self.options.grid}"] if count else []

    def _title(self) -> str:
        server = self.options.server
        reported = [self.options.score] if self.options.score else sorted(self.runs["report"].unique())
        which = "GLUE test server scores" if server else ", ".join(EPOCHS[name] for name in reported)
        few = "" if self.shots == "full" else f"{self.shots}-shot"
        setting = [f"protocol {self.spec.protocol}", f"backbone {self.spec.backbone}", few, which]
        return f"{self.spec.description or 'Finished runs'} ({', '.join(filter(None, setting))})"

    def _primary(self, task: str) -> str | None:
        known = self.runs[self.runs["task"] == task]["metric"]
        if known.empty and task in registry.names("tasks"):
            return str(registry.load("tasks", task)["primary"]) if registry.load("tasks", task).get("primary") else None
        return None if known.empty else str(known.iloc[0])

    def _refuse_unknown_metrics(self) -> None:
        """Refuse a metric that no task has; one of `evaluate` is known from runs, one of a further split by its beginning."""
        stored = {*METRIC_NAMES, *(name for metrics in self.study.shown["metrics"] for name in metrics)}
        for column in self.spec.columns:
            own = registry.user_file("tasks", column.task)
            content = registry.read_yaml(own) if own else {}
            known, metric = {*stored, *content.get("metrics", [])}, column.metric
            if metric and not content.get("evaluate") and not any(f"{metric}_".startswith(f"{name}_") for name in known):
                suggestion = registry.nearest(metric, known)
                raise UsageError(f"column {column.task}: unknown metric '{metric}'{suggestion} (hifi ls TASK lists a task's)")


def _of_seeds(scores: pd.DataFrame, notes: list[str]) -> Cell:
    values = [*scores["score"]]
    return Cell(
        mean=statistics.fmean(values) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        notes=notes,
        scores=scores,
    )


def _best(found: dict[str, Cell]) -> tuple[str, Cell, list[str]]:
    """The method and cell with the best mean; a note names the methods and says that the choice favors the row."""
    means = {method: cell.mean for method, cell in found.items() if cell.mean is not None}
    best = max(means, key=lambda method: means[method]) if means else next(iter(found))
    if len(found) == 1 or not means:
        return best, found[best], found[best].notes
    without = [method for method in found if method not in means]
    lacking = f"; no run of {', '.join(without)}" if without else ""
    note = f"{best}, the best of {', '.join(found)} by the scores shown, which makes it look too good{lacking}"
    return best, found[best], [*found[best].notes, note]


def decimals_for(values: pd.Series) -> int:
    """The decimals with which the smallest number of a column keeps two digits; at least one, at most six."""
    known = values.dropna().abs()
    smallest = known[known > 0].min()
    return next((places for places in range(1, 6) if smallest * 10**places >= 10), 6) if pd.notna(smallest) else 1


def _shots(value: int | None) -> str:
    return "full" if value is None else str(value)


def _distinct(labels: list[str], names: list[str]) -> list[str]:
    """The labels, where several are the same the names: a copy of a task or method keeps the original's label."""
    return [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]
