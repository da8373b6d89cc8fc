"""The YAML of a paper's claims."""

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, parse
from hifi_cli.config.sources import override_value
from hifi_cli.errors import UsageError
from hifi_cli.reports.calibration import CHURN
from hifi_cli.reports.comparable import protocol_config
from hifi_cli.reports.table_spec import Method, Task, load_published

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
                f"{name} has no claim '{claim}' under {file.protocol}{registry.did_you_mean(claim, file.claims)}"
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


def why_undecidable(claim: Claim, file: ClaimsFile) -> str:
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
