"""Figures of the finished runs that there are: scores, curves, and differences with intervals.

They read a results directory or a packed study and train nothing. A YAML without tasks, methods or
seeds shows all that were run.
"""

from collections.abc import Sequence
from typing import ClassVar

import pandas as pd

from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.registry import label_of
from hifi_cli.config.sources import stored_name
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.figures.figure import FigureRequest, Kind
from hifi_cli.records.study import Study
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.table_runs import runs_with, select_runs
from hifi_cli.reports.table_spec import shots_of
from hifi_cli.reports.tables import labels_of_methods


class OfFinishedRuns(Kind):
    """A figure of runs that are finished."""

    shows_finished_runs: ClassVar[bool] = True


def comparable_runs(
    request: FigureRequest,
    study: Study,
    epoch_choice: EpochChoice | None = None,
    methods: Sequence[str] = (),
) -> ComparableRuns:
    """Return the figure's runs, judged and scored, and say which are left out.

    Args:
        request: the figure.
        study: the runs that there are.
        epoch_choice: which epoch's score is shown; None: the one that the protocol reports.
        methods: instead of the figure's own; empty: these.

    Raises:
        MissingError: none may be averaged or compared.
        UsageError: the command sets keys, which change no finished run, or is to train runs.
    """
    if request.trains_missing_runs:
        raise UsageError(
            "--train: this figure shows finished runs, and trains none; leave it out"
            " (hifi train and hifi grid train runs)"
        )
    if request.overrides:
        raise UsageError(
            f"{request.overrides[0]}: this figure shows finished runs, which no key changes; leave it out"
        )
    spec = request.spec
    protocol = spec.protocol
    backbone = stored_name("backbones", spec.backbone)
    found = select_runs(study.runs, protocol=protocol, backbone=backbone, shots=shots_of(protocol))
    tasks = spec.tasks or sorted(set(found["task"]))
    names = list(methods or spec.methods or sorted(set(found["method"])))
    chosen = runs_with(found, task=tasks, method=names, seed=spec.seeds)
    runs = ComparableRuns.of(study, chosen, ReportOptions(epoch_choice=epoch_choice))
    for note in runs.notes_in_words():
        logger.warning(f"note: {note}")
    # The error says what is missing: any run, one under this protocol, or one that counts.
    if runs.usable.empty:
        if found.empty:
            raise study.no_such_runs_error(protocol=protocol, backbone=backbone)
        raise MissingError(
            f"no usable run of {', '.join(names)} on {', '.join(tasks)} (protocol {protocol}, backbone {backbone})"
        )
    for method in names:
        if method not in set(runs.usable["method"]):
            logger.warning(f"note: {label_of('methods', method)} has no usable run here")
    for path in runs.usable["path"]:
        request.note_finished(path, study.results[path])
    return runs


def in_order(request: FigureRequest, runs: ComparableRuns) -> pd.DataFrame:
    """Return the usable runs, ordered as the figure's tasks and methods, or sorted where it names none.

    Columns: those of `ComparableRuns.frame`, and `label` of the method.
    """
    usable = runs.usable
    tasks = request.spec.tasks or sorted(set(usable["task"]))
    methods = request.spec.methods or sorted(set(usable["method"]))
    ordered = usable.assign(
        label=labels_of_methods([*usable["method"]]),
        task_place=usable["task"].map(tasks.index),
        method_place=usable["method"].map(methods.index),
    )
    return ordered.sort_values(["task_place", "method_place", "seed"]).reset_index(drop=True)
