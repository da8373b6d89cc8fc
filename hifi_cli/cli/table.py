"""`hifi table`: the tables of papers and of your own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.records.stored import command_for_new_runs
from hifi_cli.records.study import Study
from hifi_cli.reports import class_tables, paper_tables, table_spec
from hifi_cli.reports import costs as cost_tables
from hifi_cli.reports import searches as search_tables
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.comparable import HELD_OUT, is_of_held_out_rows
from hifi_cli.reports.options import INCLUDED_BY_DEFAULT, ReportOptions, flags_that_count
from hifi_cli.reports.pairs import FULL_FT
from hifi_cli.reports.render import LatexOptions, emit
from hifi_cli.reports.table import Table, with_notes
from hifi_cli.reports.table_runs import notes_on_variants_alone, runs_with, select_runs
from hifi_cli.reports.table_spec import TableSpec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.metrics import METRICS
from hifi_cli.text import abbreviate

# Which kinds of tables read an option, of the options that not all of them read.
_READ_BY = {
    "--by": ("scores", "costs"),
    "--seeds": ("scores", "costs", "predictions"),
    "--shots": ("scores", "costs", "predictions", "search"),
    # A run stores the predictions of one epoch, and a search shows the scores that choose.
    "--score": ("scores",),
    "--metrics": ("scores",),
    "--include": ("scores", "costs", "predictions"),
    "--backbones": ("scores",),
    "--published": ("scores", "costs", "settings", "statistics"),
    "--intervals": ("scores",),
    # Other tables show what there is, and lack no run.
    "--strict": ("scores",),
}


def table(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table's name or YAML, search, per-class, confusion or ensemble; default: all finished runs."
        ),
    ] = None,
    task: options.Tasks = None,
    method: options.Methods = None,
    backbone: options.Backbone = None,
    backbones: options.Backbones = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    shots: options.Shots = None,
    score: options.Score = None,
    metrics: Annotated[
        list[str] | None,
        options.several(
            "--metrics",
            help="A column of each for every task: score, metrics by name, nll, brier, ece, churn.",
        ),
    ] = None,
    include: options.Include = None,
    data_dir: options.HandedOnDataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals",
            help="Means with 95 % intervals for new seeds in place of standard deviations.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="A row for each value of this setting, METHOD/KEY=VALUE; of variant, METHOD/NAME.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
    caption: options.Caption = None,
    label: options.Label = None,
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried; per-class, confusion and ensemble are of stored
    predictions.
    """
    latex = LatexOptions(caption, label)
    study = Study(results_dir)
    keys = options.stored_keys(protocol, backbone, shots)
    if backbones:
        # The table is that of the first one, with a row for each.
        keys = options.stored_keys(protocol, backbones[0], shots)
    asked = _Asked(
        name=name,
        keys=keys,
        tasks=options.stored_names("tasks", task),
        methods=options.stored_names("methods", method),
        seeds=options.parse_seeds(seeds),
        backbones=backbones,
        by=by,
        metrics=metrics,
        how=ReportOptions(
            epoch_choice=score,
            included=flags_that_count(include),
            show_published=published,
            show_intervals=intervals,
        ),
        strict=strict,
        data_dir=data_dir,
        as_words=options.arguments(
            tasks=",".join(task or []),
            methods=",".join(method or []),
            seeds=seeds,
            protocol=protocol,
            backbone=backbone,
            data_dir=data_dir,
        ),
    )
    _refuse_unread(asked)
    if name == "search":
        tables = _search_tables(asked, study)
    elif name in class_tables.TABLES:
        tables = _prediction_tables(name, asked, study)
    else:
        tables = _score_tables(asked, study)
    emit(tables, format, out, latex)
    if strict and any(built.missing for built in tables):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Asked:
    """The table that the command line asks for, with names as finished runs have them.

    Attributes:
        name: a table's name or YAML; None: all finished runs.
        keys: `protocol`, `backbone` and `shots`; None: any.
        tasks: empty: all; likewise `methods` and `seeds`.
        backbones: those that are the rows; None: methods are.
        by: the key whose values are rows; None: none.
        metrics: a column of each for every task; None: the table's own.
        how: which epoch's score is meant, which runs count, and what is shown besides means.
        strict: whether a missing run is a failure of the command.
        data_dir: directory of the official data files; None: none.
        as_words: what `hifi grid` takes of all this, as options of its command line.
    """

    name: str | None
    keys: dict[str, str | None]
    tasks: list[str]
    methods: list[str]
    seeds: list[int]
    backbones: list[str] | None
    by: str | None
    metrics: list[str] | None
    how: ReportOptions
    strict: bool
    data_dir: Path | None
    as_words: list[str]

    @property
    def run_filter(self) -> class_tables.RunFilter:
        """The runs that a table of predictions shows."""
        return class_tables.RunFilter(
            keys=self.keys,
            tasks=self.tasks,
            methods=self.methods,
            seeds=self.seeds,
        )

    @property
    def kind(self) -> str:
        """What the table shows, as `_READ_BY` names it.

        Raises:
            UsageError: there is no such table.
        """
        if self.name is None:
            return "scores"
        if self.name == "search":
            return "search"
        if self.name in class_tables.TABLES:
            return "predictions"
        return table_spec.load(self.name).kind

    @property
    def given(self) -> list[str]:
        """The options of `_READ_BY` that the command line gives."""
        how = self.how
        values = {
            "--by": self.by,
            "--seeds": self.seeds,
            "--shots": self.keys["shots"],
            "--score": how.epoch_choice,
            "--metrics": self.metrics,
            "--include": how.included - INCLUDED_BY_DEFAULT,
            "--backbones": self.backbones,
            "--published": how.show_published,
            "--intervals": how.show_intervals,
            "--strict": self.strict,
        }
        return [option for option, value in values.items() if value]

    @property
    def has_grid(self) -> bool:
        """Whether the table names its runs, so that it may lack some; others show what there is."""
        return bool(self.name) and not self.by


def _refuse_unread(asked: _Asked) -> None:
    """Refuse options that a table of this kind does not read: its numbers would seem to be others.

    Raises:
        UsageError: one is given, or there is no such table.
    """
    kind = asked.kind
    unread = [option for option in asked.given if kind not in _READ_BY[option]]
    if unread:
        them = "it" if len(unread) == 1 else "them"
        raise UsageError(
            f"hifi table {asked.name} does not read {' and '.join(unread)}: leave {them} out"
        )


# --- kinds of tables


def _search_tables(asked: _Asked, study: Study) -> list[Table]:
    """Return the settings that searches tried, a table for each protocol and backbone.

    Raises:
        MissingError: there is no such run.
        UsageError: a name is unknown.
    """
    _check_names(asked, study)
    tables = search_tables.searches(study, tasks=asked.tasks, methods=asked.methods, **asked.keys)
    return with_notes(tables, study.notes_on_damage)


def _check_names(asked: _Asked, study: Study) -> None:
    """Refuse a task or method that has neither a YAML nor a run, variants included.

    Raises:
        UsageError: there is one.
    """
    table_spec.check_names("tasks", asked.tasks, set(study.runs["task"]))
    table_spec.check_names("methods", asked.methods, set(study.runs["method"]))


def _prediction_tables(name: str, asked: _Asked, study: Study) -> list[Table]:
    """Return tables of stored predictions.

    Args:
        name: one of `class_tables.TABLES`.
        asked: what the command line asks for.
        study: all runs.

    Raises:
        MissingError: no run has such predictions.
        UsageError: a name is unknown.
    """
    _check_names(asked, study)
    tables = class_tables.TABLES[name](study, asked.run_filter, asked.how)
    return with_notes(tables, study.notes_on_damage)


def _score_tables(asked: _Asked, study: Study) -> list[Table]:
    """Return the named table, or one of all finished runs for each protocol, backbone and shots.

    A named table may also be one of costs, settings or numbers of rows.

    Raises:
        MissingError: there is no such run.
        UsageError: a name is unknown.
    """
    left_out: list[str] = []
    if asked.by:
        if not asked.methods:
            left_out = _methods_without(asked.by, study, asked.keys)
        # Methods that the user names stay, also where the setting means nothing to them.
        by_value = study.with_rows_by(asked.by, unchanged=asked.methods)
        if asked.kind == "costs":
            by_value = _with_usual_full_ft(by_value, study)
            left_out = [method for method in left_out if method != FULL_FT]
        study = by_value
    metrics = asked.metrics
    # A table with a name has the columns of its YAML.
    if not asked.name and not metrics:
        metrics = _with_held_out(select_runs(study.runs, **asked.keys), asked.tasks)
    specs = _specs(asked, study, metrics)
    grid = ""
    if asked.has_grid:
        words = ["hifi", "grid", str(asked.name), *asked.as_words]
        shots = _shots_as_setting(asked.keys["shots"])
        grid = command_for_new_runs(words, study.directory, shots)
    tables = []
    notes = []
    for spec in specs:
        tables.append(built_table(spec, study, asked.how, grid=grid, data_dir=asked.data_dir))
        if asked.has_grid and not asked.backbones:
            notes += _note_on_other_backbones(spec, study)
    if not asked.name and not asked.backbones:
        notes += notes_on_variants_alone(study, asked.tasks, **asked.keys)
    notes += [*study.notes_on_damage, *_notes_on_rows(asked.by, left_out, metrics)]
    return with_notes(tables, notes)


def _with_usual_full_ft(by_value: Study, study: Study) -> Study:
    """Return a study with the usual runs of Full-FT under its own name, which costs are relative to.

    Args:
        by_value: with a method for each value of a setting, which Full-FT may have too.
        study: the same runs under the names of their methods.
    """
    runs = by_value.runs
    usual = study.table_runs
    others = runs[runs["method"] != FULL_FT]
    reference = usual[usual["method"] == FULL_FT]
    return by_value.with_runs(pd.concat([others, reference], ignore_index=True))


def _note_on_other_backbones(spec: TableSpec, study: Study) -> list[str]:
    """Return a note on the backbones of the protocol's runs, where none has the table's."""
    runs = select_runs(study.runs, protocol=spec.protocol)
    backbones = sorted(set(runs["backbone"]))
    if not backbones or spec.backbone in backbones:
        return []
    return [
        f"no run of protocol {spec.protocol} has backbone {spec.backbone}; there are runs with"
        f" {', '.join(backbones)}: --backbone {backbones[0]}"
    ]


def _specs(asked: _Asked, study: Study, metrics: list[str] | None) -> list[TableSpec]:
    """Return the tables of scores, with the rows and columns that were asked for.

    Args:
        asked: what the command line asks for.
        study: all runs, with a row for each value of `asked.by`.
        metrics: a column of each for every task; None: the tables' own.

    Raises:
        MissingError: there is no such run.
        UsageError: a name is unknown.
    """
    # A name with a typing error is not a task without runs.
    table_spec.check_names("tasks", asked.tasks, study.names("task"))
    bases = _base_specs(asked, study)
    _check_metrics(metrics or [], study)
    specs = [
        table_spec.with_changes(
            base,
            protocol=asked.keys["protocol"],
            backbone=asked.keys["backbone"],
            methods=_methods_of_rows(asked, study, base),
            tasks=asked.tasks,
            shots=asked.keys["shots"],
            seeds=asked.seeds,
            metrics=metrics,
            backbones=asked.backbones,
        )
        for base in bases
    ]
    for spec in specs:
        table_spec.check_names("methods", spec.methods, study.names("method"))
        table_spec.check_names("tasks", spec.tasks, study.names("task"))
    return specs


def _methods_of_rows(asked: _Asked, study: Study, base: TableSpec) -> list[str]:
    """Return the methods that a table has a row of; none: those of its YAML, or all that were run.

    Args:
        asked: what the command line asks for.
        study: all runs. With `asked.by` it has a method of its own for each value, and those of the
            table's methods are its rows.
        base: the table as its YAML has it, or one of a protocol, backbone and number of shots.
    """
    if not asked.by:
        return asked.methods
    protocol = asked.keys["protocol"] or base.protocol
    backbone = asked.keys["backbone"] or base.backbone
    shots = asked.keys["shots"]
    if base.shots and not shots:
        shots = str(base.shots)
    runs = select_runs(study.runs, protocol=protocol, backbone=backbone, shots=shots)
    methods = asked.methods or base.methods
    return _rows_of_settings(runs, methods, asked.tasks or base.tasks) or methods


def _base_specs(asked: _Asked, study: Study) -> list[TableSpec]:
    """Return the named table as its YAML has it, or one for each protocol, backbone and shots that was run.

    Raises:
        MissingError: there is no such run.
        UsageError: there is no such table.
    """
    if asked.name:
        return [table_spec.load(asked.name)]
    specs = score_tables.specs_of(study, asked.tasks, **asked.keys)
    if specs:
        return specs
    raise study.no_such_runs_error(**asked.keys, tasks=",".join(asked.tasks))


def _notes_on_rows(
    by: str | None, left_out: Sequence[str], metrics: Sequence[str] | None
) -> list[str]:
    """Return the notes on methods that `--by` leaves out, and on scores of held-out rows.

    Args:
        by: the key whose values are rows.
        left_out: the methods to which it means nothing.
        metrics: of the columns.
    """
    notes = []
    if left_out:
        names = abbreviate(left_out)
        notes.append(f"left out, because they have no {by}: {names} (--methods shows them)")
    if any(is_of_held_out_rows(metric) for metric in metrics or ()):
        notes.append("held_out: other rows, on which no epoch and no setting was chosen")
    return notes


def _methods_without(key: str, study: Study, keys: Mapping[str, str | None]) -> list[str]:
    """Return the methods that `--by KEY` leaves out, sorted: those to which the key means nothing.

    Args:
        key: of the setting, or `variant`, which every run may have.
        study: all runs.
        keys: `protocol`, `backbone` and `shots` of the table, as `select_runs` takes them.
    """
    if key == "variant":
        return []
    methods = set(select_runs(study.runs, **keys)["method"])
    return sorted(methods - study.methods_with(key))


def _rows_of_settings(
    runs: pd.DataFrame, methods: Sequence[str], tasks: Sequence[str]
) -> list[str]:
    """Return the rows METHOD/KEY=VALUE of some methods on some tasks.

    Args:
        runs: rows of `Study.runs`, from `Study.with_rows_by`.
        methods: those before the slash.
        tasks: empty: all.
    """
    runs = runs_with(runs, task=tasks)
    names = sorted(set(runs["method"]))
    return [name for name in names if name.partition("/")[0] in methods]


def _with_held_out(runs: pd.DataFrame, tasks: Sequence[str]) -> list[str] | None:
    """Return the primary metric, and the same on the rows that were held out, where all runs have it; else None.

    Args:
        runs: rows of `Study.runs`, of one table.
        tasks: empty: all.
    """
    runs = runs_with(runs, task=tasks)
    # By task the primary metric may be another one; the names keep the order of the runs.
    names: dict[str, None] = {}
    for run in runs.itertuples():
        held_out = f"{run.metric}{HELD_OUT}"
        if held_out not in run.metrics:
            return None
        names[held_out] = None
    return ["score", *names] if names else None


def _check_metrics(metrics: Sequence[str], study: Study) -> None:
    """Refuse a metric that neither tables nor runs know.

    Raises:
        UsageError: there is one.
    """
    # Runs may have metrics of the `evaluate` library, and of extra validation splits.
    known = {"score", *METRICS}.union(*study.runs["metrics"])
    for metric in metrics:
        if metric not in known:
            suggestion = registry.did_you_mean(metric, known)
            raise UsageError(f"--metrics: no run has '{metric}'{suggestion}")


def _shots_as_setting(shots: str | None) -> list[str]:
    """Return the shots of `hifi table` as `hifi grid` takes them."""
    if not shots:
        return []
    if shots == "full":
        return ["shots=null"]
    return [f"shots={shots}"]


def built_table(
    spec: TableSpec,
    study: Study,
    how: ReportOptions,
    *,
    grid: str = "",
    data_dir: Path | None = None,
) -> Table:
    """Build a table of any kind.

    Args:
        spec: rows and columns.
        study: all runs.
        how: which epoch's score is meant, which runs count, whether a paper's numbers are shown.
        grid: the command that makes the table's runs; empty: no run is missing.
        data_dir: directory of the official data files, of which rows are counted; None: the hub's.
    """
    if spec.kind == "settings":
        return paper_tables.settings(spec, show_published=how.show_published)
    if spec.kind == "statistics":
        counts = task_sources.count_rows(spec.tasks, data_dir=data_dir)
        return paper_tables.row_counts(spec, counts, show_published=how.show_published)
    if spec.kind == "costs":
        return cost_tables.costs(spec, study, how)
    return score_tables.build(spec, study, how, grid=grid)
