"""Claims of a paper, or of a user's own work: what their YAML says, and whether our own results reproduce them.

How a claim is decided (docs/claims.md):

- Runs decide it that have the settings of a protocol under which methods train what the paper's
  train, on tasks of the paper's own table that are not at chance. The published effect is that on
  the same tasks.
- A claim is reproduced where the interval of our effect lies inside what the claim requires, and
  not reproduced where it lies outside of what is possible if the claim is true: for "higher",
  where it excludes half of the published difference.
- A claim is about all of its tasks: it is undecided until each of them has runs.
- The interval is the 95 % t-interval of the mean over tasks, which are fixed; the exact sign-flip
  test must agree. Ratios are averaged, and their interval is computed, as logarithms.
- A claim of several comparisons is reproduced where every one is (no correction is needed), and
  not reproduced where one is not, at the level divided by their number.
- A verdict must hold for the scores of the last epoch too, and one seed decides nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field, model_validator

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, parse
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.config.sources import override_value, stored_name
from hifi_cli.errors import UsageError, first_of
from hifi_cli.files import command_line
from hifi_cli.reports.calibration import CHURN, MEASURES
from hifi_cli.reports.pairs import (
    COUNTED,
    judged,
    notes_on,
    of_table,
    pair,
    protocol_config,
    scored,
)
from hifi_cli.reports.render import Table
from hifi_cli.reports.table_spec import Method, Task, check_names, load_published, shots_of
from hifi_cli.results.study import Study
from hifi_cli.statistics import LEVEL, Groups, mean_interval, shows_above
from hifi_cli.tasks.metrics import METRICS

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]
Bounds = tuple[float, float]
CHANCE_POINTS = 3.0
HEADINGS = {
    "verdict": "Verdict",
    "shown_ours": "Ours",
    "shown_published": "Published",
    "required": "Holds if",
    "runs": "Runs used",
}
RULE = (
    "reproduced: the whole 95 % interval of our number meets the condition of `Holds if`, and the"
    " sign-flip test agrees; not reproduced: it excludes half of the published difference, or every"
    " number that a true claim allows; undecided: neither; each claim is decided at the 5 % level"
)


Methods = Annotated[
    list[Method],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),  # a single one
    Field(min_length=1),
]
Margin = Annotated[float, Field(gt=0)]


class BaseClaim(ConfigModel):
    """What claims of both kinds say."""

    text: str
    """The claim in one sentence."""
    where: str
    """Section or table of the paper."""
    note: str = ""
    """What a reader must know besides."""
    protocol: str | None = None
    """Protocol of the claim's runs; default: the file's. A claim that has one is not asked under another protocol."""
    tasks: list[Task] = []
    """Tasks of the claim's runs; default: the file's. A claim with a figure has the figure's tasks."""
    only_backbone: str | None = None
    """The encoder that the claim is about; other encoders' runs are not used."""
    at_least: float | None = None
    """Lower bound of the difference in points, or of the number."""
    at_most: float | None = None
    """Upper bound."""
    margin: Margin | None = None
    """The smallest value that counts, of a claim that something is above its lower bound: a value between the two is there, but
    too small. Of a difference without bounds it is half the published one, or else the file's `margin`."""

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        is_of_scores = isinstance(self, DifferenceClaim) and not self.metric
        if self.at_least is None and self.at_most is None and not is_of_scores:
            raise ValueError("`at_least`, `at_most` or both are required")
        if isinstance(self, DifferenceClaim) and self.metric == "churn":
            raise ValueError(CHURN)
        return self


class DifferenceClaim(BaseClaim):
    """Every method of `first` scores higher than every one of `second`, on average over tasks; or within bounds."""

    kind: Literal["difference"]
    """`difference`: between the mean scores of methods."""
    first: Methods
    """A method, or several, that are claimed to be better."""
    second: Methods
    """A method, or several, that they are compared with; the claim holds if every comparison does."""
    every_task: bool = False
    """Whether it must hold on every task, and not only on average."""
    published: str | None = None
    """The paper's table with the scores, as `file/table` in `configs/published`."""

    @property
    def unit(self) -> str:
        return self.metric or "points"

    metric: str | None = None
    """What is compared: a metric by name, or `nll`, `brier` or `ece` of the stored predictions, the lower the better;
    default: each task's primary metric."""


class NumberClaim(BaseClaim):
    """A number of a figure, or a measure of the predictions of every method, lies within bounds."""

    kind: Literal["number"]
    """`number`: from a figure's CSV, or from predictions."""
    figure: str = ""
    """The figure whose CSV has the number."""
    metric: Literal["nll", "brier", "ece"] | None = None
    """Instead of a figure: the measure of the stored predictions of `methods`."""
    methods: Methods = []
    """The method, or several, whose runs have the measure."""
    column: str = "value"
    """Column of the CSV with the number."""
    scale: float = 1.0
    """Factor of the number; 100 makes points of scores."""
    rows: dict[str, Any] = {}
    """Rows of the CSV that are used, by column: a value, a list of values, or `{min: , max: }`."""
    second_rows: dict[str, Any] = {}
    """If given, the number is that of `rows` compared with that of these rows."""
    compare: Literal["difference", "ratio"] = "difference"
    """How two numbers are compared."""
    take: Literal["mean", "last", "max"] = "mean"
    """What one repetition's rows are reduced to."""
    per: list[str] = ["seed"]
    """Columns that name a repetition within a task."""
    unit: str = ""
    """Unit of the number."""
    stated: float | None = None
    """The number that the paper states."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if bool(self.figure) == bool(self.metric) or bool(self.metric) != bool(self.methods):
            raise ValueError("either `figure`, or `metric` and `methods` are required")
        return self

    @property
    def is_ratio(self) -> bool:
        """Whether the number is a ratio of two: such are averaged as logarithms."""
        return bool(self.second_rows) and self.compare == "ratio"


Claim = DifferenceClaim | NumberClaim


class ClaimsFile(ConfigModel):
    """The claims of a paper, or of a user's own work."""

    description: str
    """What is claimed by whom, in one line."""
    protocol: str
    """Protocol of the runs."""
    backbone: str
    """Backbone of the runs."""
    tasks: list[Task] = Field(min_length=1)
    """Tasks of the runs."""
    only_tasks: list[Task] = []
    """Those of them that are asked about; default: all. `--tasks` sets it."""
    seeds: list[Seed] = [1, 2, 3]
    """Seeds of the runs."""
    requires: dict[str, Any] = {}
    """Configuration keys that the paper's methods train with, and their values: runs under a protocol with other
    ones decide no claim of the file."""
    margin: Margin = 0.5
    """The smallest difference in points that counts, where a claim has none and no difference is published."""
    claims: dict[str, Annotated[Claim, Field(discriminator="kind")]] = Field(min_length=1)
    """The claims, by name."""
    protocols: dict[str, dict[str, Any]] = {}
    """Keys of this file to change under another protocol, claims by name included; a claim that is null is not asked there."""


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: Sequence[str] = (),
) -> ClaimsFile:
    """Load and validate a file of claims, shipped or the user's own, and apply another protocol and backbone, or fewer tasks.

    Raises:
        UsageError: an unknown name or key, or a wrong value.
    """
    origin, content = str(registry.find("claims", name)), registry.load("claims", name)
    file = parse(ClaimsFile, content, origin)
    if protocol and protocol != file.protocol:
        registry.find("protocols", protocol)
        changes = {**file.protocols.get(protocol, {}), "protocol": protocol}
        of_claims = changes.get("claims", {})
        changes["claims"] = {
            key: content["claims"].get(key, {}) | of_claims.get(key, {})
            for key in content["claims"] | of_claims
            if of_claims.get(key, {}) is not None
            and "protocol" not in content["claims"].get(key, {})
        }
        file = parse(ClaimsFile, content | changes, f"{origin} (protocols: {protocol})")
    changes = {"backbone": backbone or file.backbone, "only_tasks": [*tasks] or file.only_tasks}
    return file.model_copy(update=changes)


def select(words: list[str], **options: Any) -> dict[str, ClaimsFile]:
    """Return the files that words name, each with the claims that were named: `hifi`, `hifi/above-full-ft`, `mine.yaml`.

    Args:
        words: empty: all shipped files.
        options: `protocol`, `backbone` and `tasks`, as `load` takes them.

    Raises:
        UsageError: an unknown file or claim, or one that is not asked under the protocol.
    """
    files: dict[str, ClaimsFile] = {}
    for word in words or registry.names("claims"):
        name, claim = (word, "") if registry.is_yaml_path(word) else word.partition("/")[::2]
        file = load(name, **options)
        if claim and claim not in file.claims:
            raise UsageError(
                f"{name} has no claim '{claim}' under {file.protocol}{registry.nearest(claim, file.claims)}"
            )
        chosen = {claim: file.claims[claim]} if claim else file.claims
        files.setdefault(name, file.model_copy(update={"claims": {}})).claims.update(chosen)
    return files


def methods_of(claim: Claim) -> list[str]:
    """The methods whose runs decide a claim; none where a figure does."""
    return [*claim.first, *claim.second] if isinstance(claim, DifferenceClaim) else claim.methods


def columns_of(published: str) -> dict[str, str]:
    """Return the columns of a published table, by task; of MNLI's two the matched one, as runs report it."""
    columns = reversed(load_published(published)[1].columns)
    return {column.partition("-")[0]: column for column in columns}


def tasks_of(claim: Claim, file: ClaimsFile) -> list[str]:
    """Return the tasks that decide a claim: of its own or the file's tasks, those of the paper's table for it."""
    asked = file.only_tasks or claim.tasks or file.tasks
    tasks = [task for task in claim.tasks or file.tasks if task in asked]
    if isinstance(claim, NumberClaim) or not claim.published:
        return tasks
    return [task for task in tasks if task in columns_of(claim.published)]


def unmet(claim: Claim, file: ClaimsFile) -> str:
    """Return why no run under a protocol can decide a claim; empty: runs can.

    Runs with other settings than the protocol's are not used, so that the protocol's configuration is that of every run.
    """
    tasks = tasks_of(claim, file)
    if not tasks:
        return "no task asked about is in the paper's table"
    protocol, backbone = claim.protocol or file.protocol, claim.only_backbone or file.backbone
    methods = (
        figure_spec.load(claim.figure, protocol=protocol).methods
        if isinstance(claim, NumberClaim) and claim.figure
        else methods_of(claim)
    )
    for method, (key, needed) in product(methods, file.requires.items()):
        config = protocol_config(task=tasks[0], method=method, backbone=backbone, protocol=protocol)
        found = flatten(config.model_dump(mode="json")).get(key) if config else None
        if found != needed:
            return (
                f"the paper's methods train with {key}={override_value(needed)},"
                f" runs under protocol {protocol} with {override_value(found)}"
            )
    return ""


# The smallest number of seeds


@dataclass(frozen=True)
class SmallestSeeds:
    """With how many seeds per task a claim can be decided at all, if every task counts and every difference has one sign.

    Attributes:
        to_reproduce: every comparison is shown at the whole level; None: the number is not of runs with seeds.
        to_refute: one comparison is shown at the level divided by their number.
    """

    to_reproduce: int | None
    to_refute: int | None


def smallest_seeds(claim: Claim, file: ClaimsFile) -> SmallestSeeds:
    """Return the smallest numbers of seeds that can reproduce and that can refute a claim."""
    if isinstance(claim, NumberClaim) and claim.figure:
        if "seed" not in claim.per:
            return SmallestSeeds(None, None)
        figure = figure_spec.load(claim.figure, protocol=claim.protocol or file.protocol)
        comparisons, tasks = 1, len(figure.tasks)
    elif isinstance(claim, NumberClaim):
        comparisons, tasks = len(claim.methods), len(tasks_of(claim, file))
    else:
        comparisons, tasks = len(claim.first) * len(claim.second), len(tasks_of(claim, file))
        if claim.every_task:
            comparisons, tasks = comparisons * tasks, 1
    if not tasks:
        return SmallestSeeds(None, None)
    return SmallestSeeds(
        to_reproduce=_seeds_that_reach(LEVEL, tasks),
        to_refute=_seeds_that_reach(LEVEL / comparisons, tasks),
    )


def _seeds_that_reach(level: float, tasks: int) -> int:
    """The smallest number of seeds with which the sign-flip test of the mean over tasks can have a p below a level."""
    # an interval needs two seeds
    seeds = 2
    while 2.0 ** (1 - seeds * tasks) >= level:
        seeds += 1
    return seeds


def _note_on_seeds(numbers: dict[str, SmallestSeeds]) -> list[str]:
    """The smallest numbers of seeds of all claims, those that share them together."""
    groups: dict[SmallestSeeds, list[str]] = {}
    for key, seeds in numbers.items():
        if seeds.to_reproduce is not None:
            groups.setdefault(seeds, []).append(key)
    words = [
        f"{seeds.to_reproduce} and {seeds.to_refute} for {', '.join(keys)}"
        for seeds, keys in groups.items()
    ]
    if not words:
        return []
    return [
        "the smallest number of seeds that can reproduce and that can refute a claim, where no task is at"
        f" chance: {'; '.join(words)}"
    ]


# Findings and verdicts


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison of methods or number of a figure.

    Attributes:
        values: by task, one for each seed or other repetition; empty: nothing is known yet.
        tasks: that must have values before there is a verdict.
        runs: what was counted: paths, or repetitions of a figure.
        reason: why there is no verdict, although there may be values; or what a verdict means.
        published: the published effect.
        doubts: why the published effect does not carry the claim by itself.
        effect: mean over tasks.
        interval: its 95 % interval.
    """

    label: str
    values: dict[str, list[float]]
    tasks: Sequence[str] = ()
    runs: frozenset[Any] = frozenset()
    reason: str = ""
    notes: Sequence[str] = ()
    published: float | None = None
    doubts: Sequence[str] = ()
    verdict: Verdict = "not run"
    effect: float | None = None
    interval: Bounds | None = None


def evaluate(
    name: str,
    file: ClaimsFile,
    study: Study,
    *,
    score: EpochChoice | None = None,
    counted: Collection[str] = COUNTED,
    given: Sequence[str] = (),
    place: Sequence[str] = (),
) -> Table:
    """Decide every claim of a file: a table of verdicts, with a note on each claim that says it in words.

    Args:
        name: of the file, as the command line takes it.
        given: protocol and backbone as options of the command that trains the claims' runs.
        place: the directories as options of the commands that are printed.
    """
    counted = {*counted} - {"changed"}

    @cache
    def runs_of(
        protocol: str, backbone: str, score: EpochChoice | None, metric: str | None
    ) -> pd.DataFrame:
        runs = of_table(study.runs, protocol=protocol, backbone=backbone, shots=shots_of(protocol))
        return judged(scored(study, runs, score, metric), counted)

    rows, notes, lacking, figures = [], [], [], []
    not_run: dict[str, list[str]] = {}  # by reason
    seeds: dict[str, SmallestSeeds] = {}
    for key, claim in file.claims.items():
        check_names("methods", methods_of(claim), study.names("method"))
        check_names("tasks", claim.tasks or file.tasks, study.names("task"))
        protocol = stored_name("protocols", claim.protocol or file.protocol)
        backbone = stored_name("backbones", claim.only_backbone or file.backbone)
        findings = [Finding(key, {}, reason=unmet(claim, file))]
        if not findings[0].reason and isinstance(claim, NumberClaim) and claim.figure:
            findings, command = _number_of_figure(claim, study, protocol, backbone)
            figures += [f"figure: {command_line([*command, *place])}"] if command else []
        elif not findings[0].reason:
            runs = runs_of(protocol, backbone, score, claim.metric)
            findings = (
                _differences(claim, file, study, runs, counted)
                if isinstance(claim, DifferenceClaim)
                else _measures(claim, file, runs)
            )
            lacking += [key] if _lacks_runs(claim, file, runs) else []
        verdict, reason = conclude(findings)
        # a difference of scores must be there in the last epochs too; predictions are of one epoch
        if "reproduced" in verdict and isinstance(claim, DifferenceClaim):
            epoch = score if claim.metric in MEASURES else "last"
            of_last = runs_of(protocol, backbone, epoch, claim.metric)
            last, _ = conclude(_differences(claim, file, study, of_last, counted))
            if last != verdict:
                reason = f"{verdict} by the reported epochs, {last} by the last ones"
                verdict = "undecided"
        seeds[key] = smallest_seeds(claim, file)
        rows.append(_row(key, claim, verdict, reason, findings, seeds[key]))
        sentences = _sentences(claim, verdict, reason, findings)
        if verdict == "not run" and len(file.claims) > 1:
            not_run.setdefault(reason, []).append(key)
        else:  # of several claims the text, what a reader must know besides, the reason and the tasks
            told = (True, claim.note, reason, any(each.values for each in findings))
            known = None if len(file.claims) == 1 else sum(map(bool, told))
            notes.append(f"{key}: {'. '.join(sentences[:known])}")
    if notes and len(file.claims) > 1:
        notes.append(f"more about one of them: hifi claims {name}/{next(iter(file.claims))}")
    for why, keys in not_run.items():
        notes.append(f"not run{f' ({why})' if why else ''}: {', '.join(keys)}")
    notes += _note_on_seeds(seeds)
    found = [row["verdict"] for row in rows]
    verdicts = ", ".join(
        f"{found.count(word)} {word}" for word in get_args(Verdict) if word in found
    )
    is_decided = {*found} != {"not run"}
    grid_name = name if registry.is_yaml_path(name) else f"claims-{name}"
    grid = ["hifi", "grid", grid_name, *given, *place]
    missing = [f"runs of {first_of(lacking)}: {command_line(grid)}"] if lacking else []
    return Table(
        title=f"{file.description} (protocol {file.protocol}, backbone {file.backbone}): {verdicts}",
        frame=pd.DataFrame(
            [row for row in rows if row["verdict"] != "not run" or len(rows) == 1],
            columns=[*rows[0]],
        ),
        headings=HEADINGS,
        corner="Claim",
        formats={"runs": ".0f"},
        notes=[*notes, RULE] if is_decided else notes,
        missing=[*missing, *dict.fromkeys(figures)],
        own_texts=frozenset(row["label"] for row in rows),
    )


# Numbers of runs and figures


def _differences(
    claim: DifferenceClaim,
    file: ClaimsFile,
    study: Study,
    runs: pd.DataFrame,
    counted: Collection[str],
) -> list[Finding]:
    """Decide every comparison of a claim, with `every_task` one for each task."""
    runs, entries = runs[runs["task"].isin(tasks_of(claim, file))], list[Finding]()
    backbone = claim.only_backbone or file.backbone
    for first, second in product(claim.first, claim.second):
        pairs = pair(runs, first, second, counted=counted, metric=claim.metric)
        at_chance = {
            str(task): "" if claim.metric else _at_chance(study, of_task)
            for task, of_task in pairs.frame.groupby("task")
        }
        notes = [
            f"{label_of('tasks', task)} decides nothing: {why}"
            for task, why in at_chance.items()
            if why
        ]
        tasks = [task for task in tasks_of(claim, file) if not at_chance.get(task)]
        frame = pairs.frame[pairs.frame["task"].isin(tasks)]
        for part in [[task] for task in tasks] if claim.every_task and tasks else [tasks]:
            values = {task: values for task, values in pairs.by_task.items() if task in part}
            where = f" on {label_of('tasks', part[0])}" if claim.every_task and tasks else ""
            published, doubts = (
                published_effect(claim, first, second, [*values] or part, backbone)
                if claim.published
                else (None, [])
            )
            entries.append(
                Finding(
                    label=f"{pairs.labels[0]} above {pairs.labels[1]}{where}",
                    values=values,
                    tasks=part,
                    runs=frozenset([*frame["path_first"], *frame["path_second"]]),
                    reason=pairs.doubt if tasks else "every task is at chance",
                    notes=[*notes, *pairs.notes],
                    published=published,
                    doubts=doubts,
                )
            )
    level = LEVEL / len(entries)
    return [find(entry, *bounds(claim, entry.published, file.margin), level) for entry in entries]


def _lacks_runs(claim: Claim, file: ClaimsFile, runs: pd.DataFrame) -> bool:
    finished = {*zip(runs["method"], runs["task"], runs["seed"], strict=True)}
    return bool({*product(methods_of(claim), tasks_of(claim, file), file.seeds)} - finished)


def _measures(claim: NumberClaim, file: ClaimsFile, runs: pd.DataFrame) -> list[Finding]:
    """Decide the measure of the predictions of every method of a claim."""
    tasks = tasks_of(claim, file)
    runs = runs[runs["task"].isin(tasks)]
    level = LEVEL / len(claim.methods)
    findings = []
    for method in claim.methods:
        of_method = runs[runs["method"] == method]
        label = label_of("methods", method)
        notes = [
            f"{label} on {label_of('tasks', task)}: {text}"
            for (_, task), texts in notes_on(of_method).items()
            for text in texts
        ]
        used = of_method[of_method["left_out"] == ""].dropna(subset="score")
        values = {str(task): [*group] for task, group in used.groupby("task")["score"]}
        entry = Finding(
            label, values, tasks, frozenset(used["path"]), notes=notes, published=claim.stated
        )
        findings.append(find(entry, *bounds(claim), level))
    return findings


def _at_chance(study: Study, pairs: pd.DataFrame) -> str:
    """Why a task decides nothing about two methods' pairs of runs; empty: it may decide, as where no prediction is stored.

    The rule: their mean score is less than 3 points or less than two standard errors over the
    examples above the best score of one class for every example (of accuracy: the majority class).
    Where F1 is the score, the accuracy of what is stored counts: one class has an F1 of 81 on MRPC.
    """
    run = pairs.iloc[0]
    metric, stored = run["metric_first"], study.usable_predictions(run["path_first"])
    name, mean = "score", float(pairs[["score_first", "score_second"]].to_numpy().mean())
    if stored is None or metric not in METRICS or metric == "f1_micro":
        return ""
    if metric == "f1":
        paths = [*pairs["path_first"], *pairs["path_second"]]
        predicted = [
            table for path in paths if (table := study.usable_predictions(path)) is not None
        ]
        is_correct = pd.concat(predicted).eval("label == prediction")
        metric = name = "accuracy"
        mean = 100 * float(is_correct.mean())
    words = registry.load("tasks", run["task"]).get("labels", [])
    numbers = stored["label"].map(lambda label: words.index(label) if label in words else label)
    labels = numbers.to_numpy(dtype=float)
    constant = max(
        METRICS[metric](labels, np.full_like(labels, label)) for label in np.unique(labels)
    )
    # of a correlation of 0 the second
    error = (constant * (1 - constant) / len(labels)) ** 0.5 or len(labels) ** -0.5
    if mean - 100 * constant >= max(CHANCE_POINTS, 200 * error):
        return ""
    return f"its mean {name} of {mean:.1f} is not clearly above {100 * constant:.1f}, which one class for every example has"


def _number_of_figure(
    claim: NumberClaim, study: Study, protocol: str, backbone: str
) -> tuple[list[Finding], list[str]]:
    """Decide the number that a figure's CSV has, or return the command that computes the figure."""
    figure = figure_spec.load(claim.figure, protocol=protocol, backbone=backbone)
    path = figure.csv(study.directory)
    if not path.is_file():
        is_usual = backbone == figure_spec.load(claim.figure, protocol=protocol).backbone
        words = [*([] if is_usual else ["--backbone", backbone]), "--protocol", protocol]
        return [Finding(claim.figure, {})], ["hifi", "figure", claim.figure, *words]
    frame = pd.read_csv(path)
    numbers = _reduced(frame, claim, claim.rows)
    if claim.second_rows:
        others = _reduced(frame, claim, claim.second_rows)
        numbers = (numbers / others if claim.compare == "ratio" else numbers - others).dropna()
    has_seeds = "seed" in frame and frame["seed"].nunique() > 1
    entry = Finding(
        claim.figure,
        {str(task): [*values] for task, values in numbers.groupby(level="task")},
        runs=frozenset(numbers.index),
        reason="" if has_seeds else "a single seed",
        published=claim.stated,
    )
    return [find(entry, *bounds(claim), is_ratio=claim.is_ratio)], []


def _reduced(frame: pd.DataFrame, claim: NumberClaim, rows: dict[str, Any]) -> pd.Series:
    """One number per task and repetition from the chosen rows of a figure's CSV; none where a value has no row."""
    if missing := {*claim.per, *rows, claim.column} - {*frame.columns}:
        raise UsageError(
            f"{claim.figure}: the figure's CSV has no column '{min(missing)}' (it has {', '.join(frame.columns)})"
        )
    for column, accepted in rows.items():
        if isinstance(accepted, dict):
            frame = frame[
                frame[column].between(accepted.get("min", -inf), accepted.get("max", inf))
            ]
        else:
            values = accepted if isinstance(accepted, list) else [accepted]
            frame = frame[frame[column].isin(values if {*values} <= {*frame[column]} else [])]
    numbers = frame.groupby(["task", *claim.per])[claim.column]
    return claim.scale * numbers.agg(claim.take)


# Verdicts


def bounds(claim: Claim, effect: float | None = None, margin: float = 0.0) -> tuple[Bounds, Bounds]:
    """What a claim requires of our effect, and which effects are possible if it is true.

    Args:
        effect: the published one.
        margin: the smallest difference that counts where the claim has no bounds and no margin, and none is published.
    """
    if isinstance(claim, DifferenceClaim) and claim.at_least is None and claim.at_most is None:
        half = effect / 2 if effect and effect > 0 else margin
        return (0.0, inf), (claim.margin or half, inf)
    low = -inf if claim.at_least is None else claim.at_least
    high = inf if claim.at_most is None else claim.at_most
    return (low, high), (claim.margin if claim.margin and low > -inf else low, high)


def find(
    entry: Finding,
    required: Bounds,
    possible: Bounds,
    level: float = LEVEL,
    *,
    is_ratio: bool = False,
) -> Finding:
    """Decide one comparison or number.

    Args:
        level: at which it is not reproduced.
        is_ratio: averaged and decided as logarithms.
    """
    groups, reason = [np.array(values) for values in entry.values.values()], entry.reason
    if not groups:
        return replace(entry, verdict="undecided" if reason else "not run")
    if is_ratio:
        groups = [np.log(np.maximum(values, 1e-9)) for values in groups]
        with np.errstate(divide="ignore"):  # the logarithm of no lower bound
            required, possible = np.log(np.maximum([required, possible], 0)).tolist()
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval(groups)
    if not reason and len(groups) < len(entry.tasks):
        reason = f"{len(groups)} of {len(entry.tasks)} tasks"
    elif not reason and interval is None:
        reason = "a task has one seed"
    verdict = "undecided" if reason else decide(groups, required, possible, level)
    if verdict == "undecided":
        reason = reason or _why_undecided(groups, required, possible, level)
    elif verdict == "not reproduced" and interval and interval[0] > required[0] > -inf:
        reason = f"there is a difference, but smaller than {possible[0]:.3g}"
    if is_ratio:
        effect, *interval = np.exp([effect, *(interval or ())]).tolist()
    return replace(
        entry,
        verdict=verdict,
        effect=effect,
        interval=interval,
        reason=reason,
    )


def decide(groups: Groups, required: Bounds, possible: Bounds, level: float = LEVEL) -> Verdict:
    """The verdict of the differences of several tasks."""
    negated = [[-value for value in values] for values in groups]
    is_below = possible[0] > -inf and shows_above(negated, -possible[0], level)
    if is_below or (possible[1] < inf and shows_above(groups, possible[1], level)):
        return "not reproduced"
    is_above = required[0] == -inf or shows_above(groups, required[0])
    is_inside = is_above and (required[1] == inf or shows_above(negated, -required[1]))
    return "reproduced" if is_inside else "undecided"


def _why_undecided(groups: Groups, required: Bounds, possible: Bounds, level: float) -> str:
    """Which of the two that must agree shows nothing."""
    if 2.0 ** (1 - sum(map(len, groups))) >= LEVEL:  # the smallest p
        return "too few seeds for the sign-flip test"
    low, high = mean_interval(groups) or (-inf, inf)
    least, most = mean_interval(groups, level) or (-inf, inf)
    is_inside = required[0] < low and high < required[1]
    if is_inside or most < possible[0] or least > possible[1]:
        return "the sign-flip test does not agree with the interval"
    return "interval too wide"


def conclude(findings: Sequence[Finding]) -> tuple[Verdict, str]:
    """The verdict on a claim, and why: reproduced if every comparison is, not reproduced if one is not."""
    verdicts = [finding.verdict for finding in findings]
    not_run = verdicts.count("not run")
    if 0 < not_run < len(findings) and "not reproduced" not in verdicts:
        return "undecided", f"{not_run} of {len(findings)} comparisons not run"
    order: list[Verdict] = ["not reproduced", "not run", "undecided", "reproduced"]
    verdict = min(verdicts, key=order.index)
    return verdict, next((each.reason for each in findings if each.verdict == verdict), "")


# Published numbers


def published_effect(
    claim: DifferenceClaim, first: str, second: str, tasks: Sequence[str], backbone: str
) -> tuple[float | None, list[str]]:
    """The published difference of two methods over exactly the compared tasks, and why it may not count."""
    table = load_published(str(claim.published))[1]
    differences = {}
    for task, column in columns_of(str(claim.published)).items():
        own, other = table.mean(first, column), table.mean(second, column)
        if isinstance(own, float) and isinstance(other, float) and (not tasks or task in tasks):
            differences[column] = own - other
    if len(differences) < max(1, len(tasks)):
        return None, ["the published cells cannot all be read"]
    value = float(np.mean([*differences.values()]))
    doubts = [f"of {table.backbone}"] if table.backbone != backbone else []
    doubts += [f"on the {table.split}"] if table.split and table.split != "validation" else []
    if value <= 0 and claim.at_least is None:
        doubts.append("the published numbers say the opposite")
    doubts += [
        f"possible misprint, {label_of('methods', row)}: {note}"
        for row in (first, second)
        for column, note in table.rows[row].cell_notes.items()
        if column in (*differences, "average")
    ]
    return value, doubts


# What the table of verdicts shows


def _row(
    name: str,
    claim: Claim,
    verdict: Verdict,
    reason: str,
    findings: list[Finding],
    seeds: SmallestSeeds,
) -> dict[str, Any]:
    """A row of the table: of several comparisons, one with the claim's verdict and the smallest effect."""
    finding = decisive(findings, verdict)
    (low, high), ((at_least, at_most), _) = finding.interval or (None, None), bounds(claim)
    required = f"> {at_least:g}" if at_most == inf else f"{at_least:g} to {at_most:g}"
    return {
        "label": name,
        "source": "runs",
        "verdict": verdict,
        "reason": reason,
        "ours": finding.effect,
        "low": low,
        "high": high,
        "published": finding.published,
        "runs": len(frozenset().union(*(each.runs for each in findings))),
        "seeds_to_reproduce": seeds.to_reproduce,
        "seeds_to_refute": seeds.to_refute,
        "shown_ours": _ours(finding, claim) or None,
        "shown_published": None if finding.published is None else _number(finding.published, claim),
        "required": f"<= {at_most:g}" if at_least == -inf else required,
    }


def decisive(findings: Sequence[Finding], verdict: Verdict) -> Finding:
    """Of several comparisons the one with the claim's verdict and the smallest effect."""
    known = [finding for finding in findings if finding.effect is not None]
    of_verdict = [finding for finding in known if finding.verdict == verdict]
    return min(of_verdict or known or findings, key=lambda each: each.effect or 0.0)


def _sentences(claim: Claim, verdict: Verdict, reason: str, findings: list[Finding]) -> list[str]:
    """Everything that a reader must know about a claim."""
    where = f"{claim.where}; {claim.only_backbone}" if claim.only_backbone else claim.where
    sentences = [f"{claim.text.rstrip('.')} ({where})", claim.note.rstrip(".")]
    sentences += [f"{verdict}: {reason}"] if reason else []
    known = dict.fromkeys(task for finding in findings for task in finding.values)
    sentences += [f"on {', '.join(label_of('tasks', task) for task in known)}"] if known else []
    if len(findings) > 1 and verdict != "not run":
        ours = [f"{each.label}: {_ours(each, claim)} {each.verdict}" for each in findings]
        sentences.append("; ".join(ours).replace("  ", " "))
    doubts = dict.fromkeys(doubt for finding in findings for doubt in finding.doubts)
    sentences += [f"published: {'; '.join(doubts)}"] if doubts else []
    sentences += [note for finding in findings for note in finding.notes]
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(sentences) if text]


def _ours(finding: Finding, claim: Claim) -> str:
    ends = (
        f" [{', '.join(_number(end, claim) for end in finding.interval)}]"
        if finding.interval
        else ""
    )
    return "" if finding.effect is None else _number(finding.effect, claim) + ends


def _number(value: float, claim: Claim) -> str:
    """A difference in points with its sign, and any other number with four digits."""
    return f"{value:+.2f}" if claim.unit == "points" else f"{value:.4g}"
