"""`hifi report`: a conclusion in words, pictures, tables, comparisons and claims on one page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pandas as pd

from hifi_cli.cli import options
from hifi_cli.cli.claims import verdict_tables, verdicts_in
from hifi_cli.cli.table import built_table
from hifi_cli.config import registry
from hifi_cli.errors import MissingError
from hifi_cli.files import suffix_of_output, without_directory, write_text
from hifi_cli.records.stored import command_for_new_runs
from hifi_cli.records.study import Study
from hifi_cli.reports import searches as search_tables
from hifi_cli.reports import table_spec
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.options import ReportOptions, flags_that_count
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_runs import runs_with
from hifi_cli.reports.table_spec import TableSpec
from hifi_cli.text import command_line


@dataclass(frozen=True)
class ReportFilter:
    """The tasks, methods and protocol of the runs that a report is about.

    Attributes:
        tasks: empty: all; likewise the others.
        methods: the first one is the reference of the comparisons.
        protocol: None: all.
    """

    tasks: list[str]
    methods: list[str]
    protocol: str | None

    def of(self, study: Study) -> Study:
        """Return the study with the selected runs.

        Raises:
            MissingError: there is none.
            UsageError: a name is unknown.
        """
        table_spec.check_names("tasks", self.tasks, study.names("task"))
        table_spec.check_names("methods", self.methods, study.names("method"))
        runs = study.runs
        if self.protocol:
            runs = runs[runs["protocol"] == self.protocol]
            if runs.empty and len(study.table_runs):
                raise study.no_such_runs_error(protocol=self.protocol)
            # The given one may carry the file of the user's own YAML, which stored names lack.
            runs = runs.assign(protocol=pd.Series(self.protocol, runs.index, dtype=object))
        runs = runs_with(runs, task=self.tasks, method=self.methods)
        if runs.empty and len(study.table_runs):
            given = " ".join(self.as_words())
            raise MissingError(f"no finished run of {given} in {study.directory}")
        return study.with_runs(runs)

    def as_words(self) -> list[str]:
        """Return the filter as options of a command."""
        return options.arguments(
            tasks=",".join(map(registry.argument_of, self.tasks)),
            methods=",".join(map(registry.argument_of, self.methods)),
            protocol=registry.argument_of(self.protocol or ""),
        )


def report(
    tables: Annotated[
        list[str] | None,
        options.several("--tables", "--table", help="Tables by name; default: all finished runs."),
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    protocol: options.Protocol = None,
    claims: Annotated[
        list[str] | None,
        options.several(
            "--claims", help="Claims of papers or your own YAMLs; default: all with a result."
        ),
    ] = None,
    score: options.Score = None,
    include: options.Include = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    out: options.Out = None,
) -> None:
    """Write a conclusion in words, pictures, tables, comparisons and claims to one HTML file.

    It is RESULTS_DIR/report.html where --out names no other. The first of --methods is the reference of the
    comparisons; without, it is Full-FT.
    """
    # It imports jinja2 and matplotlib, which no other command of tables needs.
    from hifi_cli.reports import page

    # Refused before anything is read.
    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study = Study(results_dir)
    # Reading the records of a large study takes long.
    study.refuse_missing_predictions()
    report_filter = ReportFilter(
        tasks=options.stored_names("tasks", tasks),
        methods=options.stored_names("methods", methods),
        protocol=options.stored_keys(protocol, None, None)["protocol"],
    )
    study = report_filter.of(study)
    # A results directory may hold the runs of searches alone.
    searches = []
    if study.runs["variant"].notna().any():
        searches = search_tables.searches(study)
    if study.table_runs.empty and not searches:
        raise study.no_run_error()
    how = ReportOptions(
        epoch_choice=score, included=flags_that_count(include), show_published=published
    )
    reported = page.reported_runs(study, how, report_filter.methods)
    specs = _specs(tables or [], study, report_filter)
    shown = _tables_of_scores(tables or [], specs, study, how, report_filter.as_words())
    shown += page.comparisons(reported)
    shown += _tables_of_claims(claims or [], specs, study, how, report_filter.tasks)
    shown += _tables_of_measures(specs, study, how)
    words = options.arguments(
        tables=",".join(tables or []),
        claims=",".join(claims or []),
        score=score,
        include=",".join(include or []),
        results_dir=results_dir,
        out=out,
    )
    command = _command([*report_filter.as_words(), *words], has_published=published)
    target = out or study.directory / "report.html"
    write_text(target, page.render(study, reported, [*shown, *searches], command=command))
    print(target)


def _specs(names: Sequence[str], study: Study, report_filter: ReportFilter) -> list[TableSpec]:
    """Return the named tables with the selected rows and columns; without names, all finished runs'."""
    if not names:
        return score_tables.specs_of(study)
    return [
        table_spec.with_changes(
            table_spec.load(name),
            protocol=report_filter.protocol,
            methods=report_filter.methods,
            tasks=report_filter.tasks,
        )
        for name in names
    ]


def _tables_of_scores(
    names: Sequence[str],
    specs: Sequence[TableSpec],
    study: Study,
    how: ReportOptions,
    given: Sequence[str],
) -> list[Table]:
    """Return tables of scores, with the command that makes the missing runs of each named one.

    Args:
        names: of the tables; empty: they show all finished runs, and lack none.
        specs: the tables.
        study: has their runs.
        how: which epoch's score is meant, and which runs count.
        given: the filter as options of that command.
    """
    grids = [
        command_for_new_runs(["hifi", "grid", name, *given], study.directory) for name in names
    ]
    if not names:
        grids = [""] * len(specs)
    return [
        built_table(spec, study, how, grid=grid) for spec, grid in zip(specs, grids, strict=True)
    ]


def _tables_of_claims(
    claims: list[str],
    specs: Sequence[TableSpec],
    study: Study,
    how: ReportOptions,
    tasks: list[str],
) -> list[Table]:
    """Return verdicts on claims under the protocol and backbone of each table.

    Without being asked, only claims are shown that a run says something about.

    Args:
        claims: those that are asked for; empty: all.
        specs: the tables.
        study: has their runs.
        how: which epoch's score is meant, and which runs count.
        tasks: those that are asked about; empty: all.
    """
    found = []
    for protocol, backbone in dict.fromkeys((spec.protocol, spec.backbone) for spec in specs):
        asked = claims
        # No shipped claim is asked under a protocol of the user's own, whose runs name no file of it.
        if protocol not in registry.names("protocols"):
            asked = [word for word in claims if claims_spec.is_of_protocol(word, protocol)]
            if not asked:
                continue
        files = claims_spec.select(asked, protocol=protocol, backbone=backbone, tasks=tasks)
        verdicts = verdict_tables(
            files, study, how, protocol=protocol, backbone=backbone, tasks=tasks
        )
        found += [each for each in verdicts if claims or set(verdicts_in(each)) - {"not run"}]
    return found


def _tables_of_measures(
    specs: Sequence[TableSpec], study: Study, how: ReportOptions
) -> list[Table]:
    """Return tables of calibration and churn, of the same runs; none where no predictions are stored."""
    # No paper prints these measures.
    without_paper = replace(how, show_published=False)
    found = []
    for spec in specs:
        measures = table_spec.with_changes(spec, metrics=[*MEASURES])
        table = built_table(measures, study, without_paper)
        if len(table.scores):
            found.append(replace(table, title=f"Calibration and churn: {table.title}"))
    return found


def _command(words: Sequence[str], *, has_published: bool) -> str:
    """Return the command that makes the page, without the directories of this machine: pages are shared."""
    flags = ["--published"] if has_published else []
    # A word may be a list with commas, of which some are paths of YAMLs.
    shortened = []
    for word in [*words, *flags]:
        parts = map(without_directory, word.split(","))
        shortened.append(",".join(parts))
    return command_line(["hifi", "report", *shortened])
