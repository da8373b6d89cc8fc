"""Tables of finished runs: a method per row, a task per column, mean and standard deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.
"""

import math
from collections.abc import Collection
from itertools import product
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import counted_noun
from hifi_cli.reports import pairs
from hifi_cli.reports.calibration import MEASURES, UNSCALED, classes_of, measure
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import (
    ColumnSpec,
    PublishedTable,
    RowSpec,
    TableSpec,
    load_published,
    shots_of,
)
from hifi_cli.results.study import Study

METRIC_NAMES = {
    "accuracy": "Acc.", "accuracy_mismatched": "Acc.", "f1": "F1", "span_f1": "F1", "span_em": "EM",
    "f1_macro": "F1", "f1_micro": "micro F1", "f1a": "F1a", "question_em": "EM", "entity_f1": "F1", "entity_em": "EM",
    "ner_f1": "F1", "ner_precision": "Prec.", "ner_recall": "Rec.", "word_accuracy": "Acc.",
    "matthews_axb": "Matt.", "accuracy_axg": "Acc.", "gender_parity_axg": "Parity",
    "matthews": "Matt.", "spearman": "Spea.", "pearson": "Pear.",
    "nll": "NLL", "brier": "Brier", "ece": "ECE", "churn": "Churn",
}  # fmt: skip
EPOCHS = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
FRACTIONS = {"trainable_percent": "Trained %", "trainable_backbone_percent": "w/o head %"}
Paper = tuple[str, PublishedTable]  # its name, and the table


def specs_of(study: Study, **only: str | None) -> list[TableSpec]:
    """One table for each protocol, backbone and number of shots that was run: they never share a table.

    Args:
        only: only this `protocol`, `backbone`, or number of `shots`.
    """
    settings = (
        pairs.settings(pairs.of_setting(study.runs, **only)).drop_duplicates().to_dict("records")
    )
    settings.sort(
        key=lambda names: (
            names["protocol"],
            names["backbone"],
            names["shots"] != "full",
            names["shots"].zfill(9),
        )
    )
    return [TableSpec.model_validate(names) for names in settings]


def build(
    spec: TableSpec,
    study: Study,
    *,
    score: Score | None = None,
    counted: Collection[str] = pairs.COUNTED,
    show_published: bool = False,
    grid: str = "",
) -> Table:
    """Build a table of scores from finished runs.

    Args:
        score: `best`, `last` or `max`; None: the one that each protocol reports.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included in the means.
        show_published: whether the paper's numbers are shown.
        grid: the command that makes the table's runs; empty: no run is missing, as the table shows what there is.
    """
    of_protocol = pairs.of_setting(study.runs, protocol=spec.protocol, backbone=spec.backbone)
    few, shots = str(spec.shots or shots_of(spec.protocol)), pairs.settings(of_protocol)["shots"]
    runs, other_shots = of_protocol[shots == few], shots[shots != few]
    order = runs.sort_values(["trainable", "method"], ascending=[False, True])["method"].unique()
    rows = spec.rows or [RowSpec(method=method) for method in order]
    columns = spec.columns or [ColumnSpec(task=task) for task in sorted(runs["task"].unique())]
    columns = _columns_of_metrics(columns, spec.metrics) if spec.metrics else columns
    spec = spec.model_copy(update={"rows": rows, "columns": columns})
    metrics = {column.name: column.metric or _primary(column.task, runs) for column in columns}
    keys = [
        *metrics,
        *(["average"] if spec.average and len(columns) > 1 and len(spec.metrics) < 2 else []),
    ]
    scores, notes_of, apart = _scores(spec, study, runs, metrics, score, counted)
    paper = load_published(spec.published) if show_published and spec.published else None
    ours, theirs = _means(spec, scores, [*metrics]), _printed(spec, paper, [*metrics])
    # two seeds disagree with each other equally often, which is no spread of 0
    ours[[f"{key}_std" for key, metric in metrics.items() if metric == "churn"]] = math.nan
    difference = ((ours[keys] + 1e-9).round(spec.decimals) - theirs.reindex(columns=keys)).round(
        spec.decimals
    )
    for column in columns:
        of_paper, metric = (
            paper and paper[1].columns.get(column.published_name),
            metrics[column.name],
        )
        if metric and of_paper and metric != of_paper:
            difference[column.name] = None
            note = f"no difference: our metric is {metric}, the paper's is {of_paper}"
            for method in spec.methods:
                notes_of[method, column.name].append(note)
    labels = [row.label or (label_of("methods", row.method) if row.method else "") for row in rows]
    labels = _distinct(labels, [str(row.method) for row in rows])
    lines: list[dict[str, Any]] = []
    footnotes: dict[Place, list[str]] = {}
    for at, row in enumerate(rows):
        line = {"method": row.method, "label": labels[at], "source": "runs"}
        if row.method:
            footnotes |= {(len(lines), key): notes_of.get((row.method, key), []) for key in keys}
            lines.append({**line, **ours.loc[at]})
        if paper and at in theirs.index:
            footnotes |= {
                (len(lines), key): notes
                for key, notes in _notes_on_row(spec, row, paper[1]).items()
            }
            label = row.label or paper[1].rows[str(row.published_name)].label or labels[at]
            lines.append({**line, "label": label, "source": "published", **theirs.loc[at]})
        if difference.loc[at].notna().any():
            lines.append({**line, "source": "difference", **difference.loc[at]})
    frame = pd.DataFrame(lines, columns=["method", "label", "source", *ours])
    parts = [[f"{key}_std", f"{key}_seeds"] for key in metrics]
    empty = [name for names in parts if not frame[names].fillna(0).any(axis=None) for name in names]
    frame = frame.drop(columns=[*empty, *({"average"} - {*keys})])
    fractions = {key: heading for key, heading in FRACTIONS.items() if frame[key].notna().any()}
    apart |= {(method, "average") for method, _ in apart}
    measures = {key: metric for key, metric in metrics.items() if metric in MEASURES}
    if len(spec.metrics) == 1 and spec.metrics[0] in MEASURES:
        measures["average"] = spec.metrics[0]
    return Table(
        title=_title(spec, few, score, runs),
        frame=frame.astype({name: "Int64" for name in frame if name.endswith("_seeds")}),
        headings=_headings(columns, metrics)
        | ({"average": "Avg."} if "average" in keys else {})
        | fractions,
        formats=dict.fromkeys(keys, f"z.{spec.decimals}f")
        | dict.fromkeys(fractions, "z.2f")
        | {key: "z.3f" for key, metric in measures.items() if metric in UNSCALED},
        best=keys,
        lower_is_better={*measures},
        apart={
            (line, key)
            for line, name in enumerate(frame["method"])
            for method, key in apart
            if name == method
        },
        footnotes={place: texts for place, texts in footnotes.items() if texts},
        notes=[
            *(_notes_on_paper(spec, paper, runs) if show_published else []),
            *_notes(spec, study, runs, other_shots, scores),
            *(
                f"{METRIC_NAMES[metric]}: {MEASURES[metric]}"
                for metric in dict.fromkeys(measures.values())
            ),
        ],
        missing=_missing(spec, runs, scores, grid) if grid else [],
        scores=scores.reindex(columns=["method", "column", "seed", "score", "path"]),
    )


def _columns_of_metrics(columns: list[ColumnSpec], metrics: list[str]) -> list[ColumnSpec]:
    """For each task a column of each metric; what is measured on classes only for tasks that have some."""
    found = []
    for task in dict.fromkeys(column.task for column in columns):
        for metric in metrics:
            if metric == "score":
                found += [column for column in columns if column.task == task]
            elif metric not in MEASURES or classes_of(task):
                found.append(ColumnSpec(task=task, metric=metric, published=f"{task}.{metric}"))
    return found


def _scores(
    spec: TableSpec,
    study: Study,
    runs: pd.DataFrame,
    metrics: dict[str, str | None],
    score: Score | None,
    counted: Collection[str],
) -> tuple[pd.DataFrame, pairs.Notes, set[tuple[str, str]]]:
    """The scores of the runs that may be averaged, and what a reader must know of them.

    Returns:
        A line for each method, column and seed: `score` in percent, and the columns of its run.
        Footnotes by method and column.
        Methods and columns that are not compared with the others.
    """
    runs = runs[runs["method"].isin(spec.methods) & runs["task"].isin(spec.tasks)]
    runs = pairs.judged(runs[runs["seed"].isin(spec.seeds or runs["seed"])], counted)
    usable, notes_on = runs[runs["left_out"] == ""], pairs.notes_on(runs)
    parts, notes_of, apart = [usable[:0].assign(column="", score=0.0)], {}, set()
    for column in spec.columns:
        of_task, metric = usable[usable["task"] == column.task], metrics[column.name]
        if metric in MEASURES:
            scores = (1 if metric in UNSCALED else 100) * measure(study, of_task, score, metric)
        else:
            scores = 100 * study.scores(of_task, score, metric or "")
        parts.append(of_task.assign(column=column.name, score=scores))
        of_methods = of_task.assign(report=score or of_task["report"]).drop_duplicates("method")
        unlike = {
            of_task["method"][index]: " and ".join(names)
            for index, names in pairs.unlike(of_methods).items()
        }
        most = len(spec.seeds) or of_task["method"].value_counts().max()
        for method in spec.methods:
            cell = of_task[of_task["method"] == method]
            notes = [*notes_on.get((method, column.task), [])]
            if method in unlike:
                notes.append(
                    f"not compared with the column's other runs, which differ in {unlike[method]}"
                )
                apart.add((method, column.name))
            if lost := int(scores[cell.index].isna().sum()):
                why = (
                    "churn takes two seeds"
                    if metric == "churn" and lost == 1
                    else f"no {metric} stored for this score"
                )
                notes.append(f"{counted_noun(lost, 'run')} left out: {why}")
            notes += [f"{len(cell)} of {most} seeds"] if 0 < len(cell) < most else []
            notes_of[method, column.name] = notes
    return pd.concat(parts).dropna(subset="score"), notes_of, apart


def _means(spec: TableSpec, scores: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Mean, standard deviation and number of seeds of every cell, average, and shares of trained parameters, by row."""
    methods, columns = [row.method for row in spec.rows], dict[str, pd.Series]()
    cells = scores.groupby(["column", "method"])["score"].agg(["mean", "std", "count"])
    for name in names:
        of_column = (
            cells[cells.index.get_level_values("column") == name]
            .droplevel("column")
            .reindex(methods)
        )
        columns |= {
            name: of_column["mean"],
            f"{name}_std": of_column["std"],
            f"{name}_seeds": of_column["count"].fillna(0),
        }
    frame = pd.DataFrame(columns, index=methods)
    frame["average"] = frame[names].mean(axis=1, skipna=False)
    runs = scores.drop_duplicates("method").set_index("method").reindex(methods)
    for key in FRACTIONS:
        frame[key] = 100 * runs[key.removesuffix("_percent")] / runs["total"]
    return frame.reset_index(drop=True)


def _printed(spec: TableSpec, paper: Paper | None, names: list[str]) -> pd.DataFrame:
    """What the paper prints in each row that it has, with the mean of the cells where the table shows other columns."""
    rows = {}
    for at, row in enumerate(spec.rows):
        if paper and row.published_name in paper[1].rows:
            name, table = row.published_name, paper[1]
            rows[at] = {
                column.name: table.mean(name, column.published_name) for column in spec.columns
            }
            rows[at] |= {
                f"{column.name}_std": table.deviation(name, column.published_name)
                for column in spec.columns
            }
            rows[at]["average"] = table.rows[name].average
    frame = pd.DataFrame.from_dict(
        rows, orient="index", columns=[*names, *(f"{name}_std" for name in names), "average"]
    )
    frame = frame.apply(pd.to_numeric, errors="coerce")
    if paper and not spec.has_columns_of(paper[1]):
        frame["average"] = frame[names].mean(axis=1, skipna=False).where(frame["average"].notna())
    return frame


def _notes_on_row(spec: TableSpec, row: RowSpec, paper: PublishedTable) -> dict[str, list[str]]:
    """Footnotes on what a paper prints in a row, by column; on the row as a whole: of column ""."""
    printed = paper.rows[str(row.published_name)]
    published = {
        column.name: printed.cell_notes.get(column.published_name) for column in spec.columns
    }
    notes = {"": printed.note, **published, "average": printed.cell_notes.get("average")}
    if printed.average is not None and not spec.has_columns_of(paper):
        notes["average"] = (
            f"mean of the {len(spec.columns)} columns shown; the paper's average has {len(paper.columns)} columns"
        )
    return {key: [note] for key, note in notes.items() if note}


def _headings(columns: list[ColumnSpec], metrics: dict[str, str | None]) -> dict[str, str]:
    labels = [column.label or label_of("tasks", column.task) for column in columns]
    labels = _distinct(labels, [column.label or column.task for column in columns])
    named = zip(metrics.items(), labels, strict=True)
    return {
        key: f"{label} ({METRIC_NAMES.get(metric, metric)})" if metric else label
        for (key, metric), label in named
    }


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
    notes += pairs.note_on_variants(study, spec.protocol, spec.backbone)
    cut = scores[(scores[["truncated_train", "truncated_reported"]].astype(float) > 0).any(axis=1)]
    parts = [
        f"{label_of('tasks', run.task)} {run.truncated_train:,.0f} of {run.train_rows:,} train and"
        f" {run.truncated_reported:,.0f} of {run.reported_rows:,} reported rows"
        for run in cut.drop_duplicates("task").itertuples()
    ]
    return [*notes, *([f"longer than max_length and cut: {'; '.join(parts)}"] if parts else [])]


def _notes_on_paper(spec: TableSpec, paper: Paper | None, runs: pd.DataFrame) -> list[str]:
    """What a reader needs to interpret the difference."""
    if not paper:
        return ["published: no paper's numbers are known for this table"]
    name, table = paper
    seeds = counted_noun(table.seeds, "seed") if table.seeds else None
    ours = {
        "backbone": (spec.backbone, table.backbone),
        "split": (next(iter(runs["split"]), None), table.split),
    }
    differing = [
        f"our {key} is {own}"
        for key, (own, other) in ours.items()
        if own and other and own != other
    ]
    differing += ["the difference also comes from that"] if differing else []
    words = "; ".join([", ".join(filter(None, [table.split, table.backbone, seeds])), *differing])
    return [f"published: {name}, table {table.number} ({words})"]


def _missing(spec: TableSpec, runs: pd.DataFrame, scores: pd.DataFrame, grid: str) -> list[str]:
    """The number of runs that the table lacks, and the command that makes them."""
    seeds = spec.seeds or sorted(runs["seed"].unique()) or [1]
    wanted = {*product(spec.methods, spec.tasks, seeds)}
    lacking = wanted - {*zip(scores["method"], scores["task"], scores["seed"], strict=True)}
    return [f"{counted_noun(len(lacking), 'run')}: {grid}"] if lacking else []


def _title(spec: TableSpec, few: str, score: Score | None, runs: pd.DataFrame) -> str:
    reported = [score] if score else sorted(runs["report"].unique())
    shots = "" if few == "full" else f"{few}-shot"
    setting = [
        f"protocol {spec.protocol}",
        f"backbone {spec.backbone}",
        shots,
        ", ".join(EPOCHS[name] for name in reported),
    ]
    return f"{spec.description or 'Finished runs'} ({', '.join(filter(None, setting))})"


def _primary(task: str, runs: pd.DataFrame) -> str | None:
    known = runs["metric"][runs["task"] == task]
    if known.empty and task in registry.names("tasks"):
        return registry.load("tasks", task).get("primary")
    return None if known.empty else str(known.iloc[0])


def _distinct(labels: list[str], names: list[str]) -> list[str]:
    """The labels, where several names share one the names: a copy of a task or method keeps the original's label."""
    shared = [label for label, _ in {*zip(labels, names, strict=True)}]
    return [
        name if shared.count(label) > 1 else label
        for label, name in zip(labels, names, strict=True)
    ]
