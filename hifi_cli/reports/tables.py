"""Tables of finished runs: a method per row, a task per column, mean and standard deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.
"""

import math
from collections import Counter
from collections.abc import Collection
from itertools import product
from typing import Any

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.config.sources import stored_name
from hifi_cli.errors import UsageError
from hifi_cli.records.signs import signs_of
from hifi_cli.records.study import TABLE_KEYS, Study
from hifi_cli.reports import comparable
from hifi_cli.reports.calibration import MEASURES, classes_of
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import (
    NO_TABLE,
    ColumnSpec,
    PublishedTable,
    RowSpec,
    TableSpec,
    load_published,
    shots_of,
)
from hifi_cli.tasks.metrics import heading_of, is_lower_better
from hifi_cli.text import counted_noun

EPOCHS = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
FRACTIONS = {"trainable_percent": "Trained %", "trainable_backbone_percent": "Backbone %"}


def specs_of(study: Study, **only: str | None) -> list[TableSpec]:
    """One table for each protocol, backbone and number of shots that was run: they never share a table.

    Args:
        only: only this `protocol`, `backbone`, or number of `shots`.
    """
    keys = comparable.table_keys(comparable.select_runs(study.runs, **only)).drop_duplicates()
    specs: list[TableSpec] = []
    for record in keys.sort_values(TABLE_KEYS).to_dict("records"):
        shots = record["shots"]
        specs.append(
            TableSpec(
                protocol=record["protocol"],
                backbone=record["backbone"],
                shots="full" if shots == "full" else int(shots),
            )
        )
    return specs


def build(
    spec: TableSpec,
    study: Study,
    *,
    score: EpochChoice | None = None,
    included: Collection[str] = comparable.INCLUDED_BY_DEFAULT,
    show_published: bool = False,
    grid: str = "",
) -> Table:
    """Build a table of scores from finished runs.

    Args:
        score: `best`, `last` or `max`; None: the one that each protocol reports.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included in the means.
        show_published: whether the paper's numbers are shown.
        grid: the command that makes the table's runs; empty: no run is missing, as the table shows
            what there is.
    """
    backbone = None if spec.backbones else spec.backbone
    of_protocol = comparable.select_runs(study.runs, protocol=spec.protocol, backbone=backbone)
    few, shots = (
        str(spec.shots or shots_of(spec.protocol)),
        comparable.table_keys(of_protocol)["shots"],
    )
    runs, other_shots = of_protocol[shots == few], shots[shots != few]
    spec = _with_defaults(spec, runs)
    chosen = runs[runs["method"].isin(spec.methods) & runs["task"].isin(spec.tasks)]
    chosen = comparable.with_exclusions(
        chosen[chosen["seed"].isin(spec.seeds or chosen["seed"])], included
    )
    title = _title(spec, few, score, runs)
    if spec.backbones:
        spec, chosen = _by_backbone(spec, chosen)
    paper = load_published(spec.published)[1] if spec.published else NO_TABLE
    metrics = _metrics(spec, runs, paper)
    scores, notes_of, not_ranked = _scores(spec, study, chosen, metrics, score)
    ours = _means(spec, scores, metrics)
    filled = ours[[*metrics]].notna().drop_duplicates().any(axis=1)  # kinds of rows with scores
    # means over other columns are not compared; in a paper's table, its own stand beside them
    has_average = (
        spec.average
        and len(spec.columns) > 1
        and not spec.metrics
        and (filled.sum() <= 1 or {column.published for column in spec.columns} <= {*paper.columns})
    )
    keys = [*metrics, *(["average"] if has_average else [])]
    theirs = _printed(spec, paper if show_published else NO_TABLE, metrics)
    rounded = (ours[keys] + 1e-9).round(spec.decimals)
    difference = (rounded - theirs.reindex(columns=keys)).round(spec.decimals)
    labels = _distinct(
        [row.label or label_of("methods", row.method or "") for row in spec.rows],
        [str(row.method) for row in spec.rows],
    )
    lines: list[dict[str, Any]] = []
    footnotes: dict[Place, list[str]] = {}
    for at, row in enumerate(spec.rows):
        line = {"method": row.method, "label": labels[at]}
        if row.method:
            footnotes |= {(len(lines), key): notes_of.get((row.method, key), []) for key in keys}
            lines.append({**line, "source": "runs", **ours.loc[at]})
        if at in theirs.index:
            notes = _notes_on_row(spec, row, paper)
            footnotes |= {(len(lines), key): [note] for key, note in notes.items() if note}
            label = row.label or paper.rows[str(row.published)].label or labels[at]
            lines.append({**line, "label": label, "source": "published", **theirs.loc[at]})
        if difference.loc[at].notna().any():
            lines.append({**line, "source": "difference", **difference.loc[at]})
    frame = pd.DataFrame(lines, columns=["method", "label", "source", *ours])
    parts = [[f"{key}_std", f"{key}_seeds"] for key in metrics]
    empty = [name for names in parts if not frame[names].fillna(0).any(axis=None) for name in names]
    frame = frame.drop(columns=[*empty, *({"average"} - {*keys})])
    fractions = {key: heading for key, heading in FRACTIONS.items() if frame[key].notna().any()}
    measures = {key: metric for key, metric in metrics.items() if metric in MEASURES}
    table = Table(
        title=title,
        frame=frame.astype({name: "Int64" for name in frame if name.endswith("_seeds")}),
        headings=_headings(spec.columns, metrics)
        | dict.fromkeys(keys[len(metrics) :], "Avg.")
        | fractions,
        index_title="Backbone" if spec.backbones else "Method",
        formats=dict.fromkeys(keys, f"z.{spec.decimals}f")
        | dict.fromkeys(fractions, "z.2f")
        | dict.fromkeys(measures, "z.3f"),
        footnotes={place: texts for place, texts in footnotes.items() if texts},
        notes=[
            *([_note_on_paper(spec, runs)] if theirs.size else []),
            *_notes(spec, study, runs, other_shots, scores),
            *_notes_on_scores(scores),
            *_signs(spec, study, scores),
            *(
                f"{heading_of(metric)}: {MEASURES[metric]}; lower is better"
                for metric in dict.fromkeys(measures.values())
            ),
        ],
        missing=_missing(spec, chosen, grid) if grid else [],
        own_texts=frozenset(row.label for row in spec.rows if row.label),
        scores=scores.reindex(columns=["method", "column", "seed", "score", "path"]),
    )
    for key in keys:
        table.rank(
            key,
            lower_is_better=is_lower_better(metrics.get(key)),
            not_ranked=not_ranked.get(key, []),
        )
    return table


def _with_defaults(spec: TableSpec, runs: pd.DataFrame) -> TableSpec:
    """A table with rows and columns: those of the runs where it names none, and those of metrics.

    What is measured on classes has a column only for tasks that have some.
    """
    order = runs.sort_values(["trainable", "method"], ascending=[False, True])["method"].unique()
    rows = spec.rows or [RowSpec(method=method) for method in order]
    columns = spec.columns or [ColumnSpec(task=task) for task in sorted(runs["task"].unique())]
    if spec.metrics:
        columns = [
            ColumnSpec(task=task, metric=None if metric == "score" else metric)
            for task in dict.fromkeys(column.task for column in columns)
            for metric in spec.metrics
            if metric not in MEASURES or classes_of(task)
        ]
    return spec.model_copy(update={"rows": rows, "columns": columns})


def _by_backbone(spec: TableSpec, runs: pd.DataFrame) -> tuple[TableSpec, pd.DataFrame]:
    """The table with backbones as rows, and their runs, which are told apart as methods are.

    Raises:
        UsageError: the table has several methods.
    """
    if len(spec.methods) != 1:
        raise UsageError("backbones stand beside one another under one method: --method full-ft")
    names = [stored_name("backbones", backbone) for backbone in spec.backbones]
    spec = spec.model_copy(update={"rows": [RowSpec(method=name) for name in names]})
    runs = runs.assign(method=runs["backbone"], weights="")
    return spec, runs[runs["backbone"].isin(names)]


def _metrics(spec: TableSpec, runs: pd.DataFrame, paper: PublishedTable) -> dict[str, str | None]:
    """The metric of each column: its own, else the paper's, else the primary one of the runs."""
    primary, printed = runs.groupby("task")["metric"].first(), paper.columns
    return {
        column.name: column.metric or printed.get(column.published) or primary.get(column.task)
        for column in spec.columns
    }


def _scores(
    spec: TableSpec,
    study: Study,
    runs: pd.DataFrame,
    metrics: dict[str, str | None],
    score: EpochChoice | None,
) -> tuple[pd.DataFrame, comparable.Notes, dict[str, list[str]]]:
    """The scores of the runs that may be averaged, and what a reader must know of them.

    Args:
        runs: those of the table, from `with_exclusions`.

    Returns:
        A line for each method, column and seed: `score` in percent, and the columns of its run.
        Footnotes by method and column.
        By column, the methods that are not compared with the others.
    """
    usable, notes_on = runs[runs["excluded_because"] == ""], comparable.notes_on(runs)
    parts, notes_of = [usable[:0].assign(column="", score=0.0)], comparable.Notes()
    not_ranked: dict[str, list[str]] = {}
    for column in spec.columns:
        of_task, metric = usable[usable["task"] == column.task], metrics[column.name]
        of_task = comparable.scored(study, of_task, score, metric).assign(column=column.name)
        parts.append(of_task)
        of_methods = of_task.drop_duplicates("method")
        mismatches_with_majority = {
            of_methods["method"][index]: f"differ in {' and '.join(names)}"
            for index, names in comparable.mismatches_with_majority(of_methods).items()
        }
        not_ranked[column.name] = [*mismatches_with_majority]
        most = len(spec.seeds) or of_task["method"].value_counts().max()
        for method in spec.methods:
            cell = of_task["score"][of_task["method"] == method]
            notes = [*notes_on.get((method, column.task), [])]
            found = int(cell.count())
            if len(cell) and found < most:
                why = (
                    "churn needs two seeds"
                    if metric == "churn" and len(cell) == 1
                    else f"no {metric} stored for this score"
                )
                lacking = f": {why}" if found < len(cell) else ""
                notes.append(f"{found} of {most} seeds{lacking}")
            if method in mismatches_with_majority:
                notes.append(
                    f"not compared with the column's other runs, which {mismatches_with_majority[method]}"
                )
            notes_of[method, column.name] = notes
    not_ranked["average"] = [method for methods in not_ranked.values() for method in methods]
    return pd.concat(parts).dropna(subset="score"), notes_of, not_ranked


def _means(spec: TableSpec, scores: pd.DataFrame, metrics: dict[str, str | None]) -> pd.DataFrame:
    """Mean, standard deviation, number of seeds and average of every row, and its trained shares."""
    methods = [row.method for row in spec.rows]
    cells = scores.groupby(["method", "column"])["score"].agg(["mean", "std", "count"])
    means, deviations, seeds = (
        cells[statistic].unstack("column").reindex(index=methods, columns=[*metrics])
        for statistic in ("mean", "std", "count")
    )
    # two seeds disagree with each other equally often, which is no spread of 0
    deviations[[name for name, metric in metrics.items() if metric == "churn"]] = math.nan
    parts = [means, deviations.add_suffix("_std"), seeds.fillna(0).add_suffix("_seeds")]
    order = [f"{name}{ending}" for name in metrics for ending in ("", "_std", "_seeds")]
    frame = pd.concat(parts, axis=1)[order].assign(average=means.mean(axis=1, skipna=False))
    runs = scores.drop_duplicates("method").set_index("method").reindex(methods)
    for key in FRACTIONS:
        frame[key] = 100 * runs[key.removesuffix("_percent")] / runs["total"]
    return frame.reset_index(drop=True)


def _printed(
    spec: TableSpec, paper: PublishedTable, metrics: dict[str, str | None]
) -> pd.DataFrame:
    """What a paper prints in each row that it has; nothing in a column of another metric.

    Where the table shows other columns, the average is the mean of the cells shown.
    """
    shown = {
        column.name: column.published
        for column in spec.columns
        if paper.columns.get(column.published) == metrics[column.name]
    }
    rows = {
        at: {key: paper.mean(row.published, column) for key, column in shown.items()}
        | {f"{key}_std": paper.deviation(row.published, column) for key, column in shown.items()}
        | {"average": paper.rows[row.published].average}
        for at, row in enumerate(spec.rows)
        if row.published in paper.rows
    }
    columns = [*metrics, *(f"{name}_std" for name in metrics), "average"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame = frame.apply(pd.to_numeric, errors="coerce")
    if not spec.has_columns_of(paper):
        mean = frame[[*metrics]].mean(axis=1, skipna=False)
        frame["average"] = mean.where(frame["average"].notna())
    return frame


def _notes_on_row(spec: TableSpec, row: RowSpec, paper: PublishedTable) -> dict[str, str | None]:
    """Footnotes on what a paper prints in a row, by column; on the row as a whole: of column ""."""
    printed = paper.rows[str(row.published)]
    columns = {column.name: column.published for column in spec.columns}
    columns |= {"average": "average"} if spec.has_columns_of(paper) else {}
    notes = {key: printed.cell_notes.get(column) for key, column in columns.items()}
    return {"": printed.note, **notes}


def _headings(columns: list[ColumnSpec], metrics: dict[str, str | None]) -> dict[str, str]:
    labels = _distinct(
        [column.label or label_of("tasks", column.task) for column in columns],
        [column.label or column.task for column in columns],
    )
    return {
        key: f"{label} ({heading_of(metric)})" if metric else label
        for (key, metric), label in zip(metrics.items(), labels, strict=True)
    }


def _notes_on_scores(scores: pd.DataFrame) -> list[str]:
    """Over which seeds the means are, and of which epochs."""
    of_cells = scores.groupby(["method", "column"])["seed"].agg(lambda seeds: tuple(sorted(seeds)))
    fewest, most = of_cells.map(len).min(), of_cells.map(len).max()
    over = (
        f"seeds {', '.join(map(str, of_cells.iloc[0]))}"
        if of_cells.nunique() == 1
        else f"{most} seeds"
        if fewest == most
        else f"{fewest} to {most} seeds"
    )
    spread = [f"mean ± standard deviation over {over}"] if most > 1 else []
    return [*spread, *comparable.note_on_epochs(scores)]


def _signs(spec: TableSpec, study: Study, scores: pd.DataFrame) -> list[str]:
    """What speaks against the scores; a table of measures of predictions stands beside one of scores."""
    if spec.metrics:
        return []
    return signs_of([study.results[path] for path in scores["path"].unique()], with_selection=False)


def _notes(
    spec: TableSpec, study: Study, runs: pd.DataFrame, other_shots: pd.Series, scores: pd.DataFrame
) -> list[str]:
    """What was left out, and what was cut."""
    notes = [
        f"{counted_noun(count, f'{name}-shot run')} not in this table (--shots {name} shows them)"
        for name, count in other_shots.value_counts().items()
    ]
    if spec.seeds and (others := int((~runs["seed"].isin(spec.seeds)).sum())):
        notes.append(
            f"{counted_noun(others, 'run')} with other seeds left out (--seeds includes them)"
        )
    notes += comparable.note_on_variants(study, spec.protocol, spec.backbone, spec.tasks)
    cut = scores[(scores[["truncated_train", "truncated_reported"]].astype(float) > 0).any(axis=1)]
    parts = [
        f"{label_of('tasks', run.task)} {run.truncated_train:,.0f} of {run.train_rows:,} train and"
        f" {run.truncated_reported:,.0f} of {run.reported_rows:,} reported rows"
        for run in cut.drop_duplicates("task").itertuples()
    ]
    return [*notes, *([f"longer than max_length and cut: {'; '.join(parts)}"] if parts else [])]


def _note_on_paper(spec: TableSpec, runs: pd.DataFrame) -> str:
    """Whose the published numbers are, and what ours are of where that differs."""
    name, paper = load_published(str(spec.published))
    theirs = {word for word in (paper.split, paper.backbone) if word}
    ours = {*runs["split"], spec.backbone}
    seeds = [counted_noun(paper.seeds, "seed")] if paper.seeds else []
    note = f"published: {name}, table {paper.number} ({', '.join([*sorted(theirs), *seeds])})"
    note += f"; ours: {', '.join(sorted(ours - theirs))}" if ours - theirs else ""
    return note + ("" if spec.has_columns_of(paper) else "; Avg.: of the columns shown")


def _missing(spec: TableSpec, runs: pd.DataFrame, grid: str) -> list[str]:
    """How many runs the table lacks, and the command that makes them; of backbones, one for each."""
    seeds = spec.seeds or sorted(runs["seed"].unique()) or [1]
    finished = {
        *runs.loc[runs["excluded_because"] == "", ["method", "task", "seed"]].itertuples(
            index=False, name=None
        )
    }
    words = zip(spec.methods, spec.backbones, strict=False)
    commands = {name: f"{grid} --backbone {backbone}" for name, backbone in words}
    lacking = Counter(
        commands.get(method, grid)
        for method, *others in product(spec.methods, spec.tasks, seeds)
        if (method, *others) not in finished
    )
    return [f"{counted_noun(count, 'run')}: {command}" for command, count in lacking.items()]


def _title(spec: TableSpec, few: str, score: EpochChoice | None, runs: pd.DataFrame) -> str:
    shots = [] if few == "full" else [f"{few}-shot"]
    epochs = [EPOCHS[name] for name in ([score] if score else sorted(runs["report"].unique()))]
    constant = f"method {spec.methods[0]}" if spec.backbones else f"backbone {spec.backbone}"
    conditions = [f"protocol {spec.protocol}", constant, *shots, *epochs]
    return f"{spec.description or 'Finished runs'} ({', '.join(conditions)})"


def _distinct(labels: list[str], names: list[str]) -> list[str]:
    """The labels, where several names share one the names: a copy of a task or method keeps the original's label."""
    shared = [label for label, _ in {*zip(labels, names, strict=True)}]
    return [
        name if shared.count(label) > 1 else label
        for label, name in zip(labels, names, strict=True)
    ]
