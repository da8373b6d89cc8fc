"""Claims: what a file of claims says, for a paper or a user's own work, and which runs may decide them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, parse
from hifi_cli.config.registry import label_of, name_of
from hifi_cli.config.sources import override_value, run_name
from hifi_cli.errors import UsageError
from hifi_cli.reports import published
from hifi_cli.reports.changed_settings import protocol_config

Margin = Annotated[float, Field(gt=0)]
Shots = Annotated[int, Field(ge=1)] | Literal["full"] | None
Filter = dict[str, Any]
Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value), Field(min_length=1)]
Measure = Literal["trained-percent", "time"]


class BaseClaim(ConfigModel):
    """What claims of both kinds say."""

    text: str
    """The claim in one sentence."""
    where: str
    """Section or table of the paper."""
    note: str = ""
    """What a reader must know besides."""
    protocol: str | None = None
    """Protocol of the claim's runs; default: the file's."""
    tasks: list[str] = []
    """Tasks of the claim's runs; default: the file's. A claim with a figure has the figure's tasks."""
    shots: Shots = None
    """Training rows per class of few-shot runs, or `full`; default: as the protocol has them."""
    only_backbone: str | None = None
    """The encoder that the claim is about; other encoders' runs are not used."""
    requires: dict[str, Any] | None = None
    """Configuration keys that the paper's methods train with, and their values; default: the file's."""
    at_least: float | None = None
    """Lower bound of the difference in points, or of the number."""
    at_most: float | None = None
    """Upper bound."""
    margin: Margin | None = None
    """The smallest value that counts, of a claim that something is above its lower bound: a value between the two is there, but
    too small. Of a difference without bounds it is half the published one, or else the file's `margin`."""

    @model_validator(mode="after")
    def _has_ordered_bounds(self) -> "BaseClaim":
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("`at_least` is above `at_most`")
        return self


class DifferenceClaim(BaseClaim):
    """Every method of `first` scores higher than every one of `second`, on average over tasks; or within bounds."""

    kind: Literal["difference"]
    """`difference`: between the mean scores of methods."""
    first: Names
    """A method, or several, that are claimed to be better."""
    second: Names
    """A method, or several, that they are compared with; the claim holds if every comparison does."""
    every_task: bool = False
    """Whether it must hold on every task, and not only on average."""
    published: str | None = None
    """The paper's table with the scores, as `file/table` in `configs/published`."""
    columns: list[str] = []
    """Columns of that table; default: all."""

    @model_validator(mode="after")
    def _compares_different_methods(self) -> "DifferenceClaim":
        if {*self.first} & {*self.second}:
            raise ValueError("a method is in `first` and in `second`")
        return self


class NumberClaim(BaseClaim):
    """A measured number lies within bounds."""

    kind: Literal["number"]
    """`number`: from a figure's CSV, from runs, or a measured cost."""
    figure: str | None = None
    """The figure whose CSV has the number."""
    column: str = "value"
    """Column of the CSV with the number."""
    scale: float = 1.0
    """Factor of the number; 100 makes points of scores."""
    rows: Filter = {}
    """Rows of the CSV that are used, by column: a value, a list of values, or `{min: , max: }`."""
    second_rows: Filter = {}
    """If given, the number is that of `rows` compared with that of these rows."""
    compare: Literal["difference", "ratio"] = "difference"
    """How two numbers are compared."""
    take: Literal["mean", "last", "rise"] = "mean"
    """What one repetition's rows are reduced to; `rise`: mean minus minimum."""
    per: list[str] = ["seed"]
    """Columns that name a repetition within a task."""
    every: bool = False
    """Whether every repetition must lie within the bounds; otherwise the mean, with its interval over repetitions."""
    measure: Measure | None = None
    """Instead of a figure: a number of finished runs; `time`, per epoch, relative to Full-FT's on the same task and device."""
    method: str | None = None
    """The method that is measured."""
    second_method: str | None = None
    """The method that times are relative to, in place of Full-FT."""
    unit: str = ""
    """Unit of the number."""
    stated: float | None = None
    """The number that the paper states."""

    @model_validator(mode="after")
    def _is_complete(self) -> "NumberClaim":
        if bool(self.figure) == bool(self.measure):
            raise ValueError("a number has either `figure` or `measure`")
        if self.measure and not self.method:
            raise ValueError("a measured number requires `method`")
        if self.at_least is None and self.at_most is None:
            raise ValueError("`at_least`, `at_most` or both are required")
        return self


Claim = DifferenceClaim | NumberClaim


class ClaimsFile(ConfigModel):
    """The claims of a paper, or of a user's own work."""

    description: str
    """What is claimed by whom, in one line."""
    paper: str = ""
    """Short name of the paper."""
    protocol: str
    """Protocol of the runs."""
    backbone: str
    """Backbone of the runs."""
    tasks: list[str] = Field(min_length=1)
    """Tasks of the runs."""
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


def load(name: str, *, protocol: str | None = None, backbone: str | None = None) -> ClaimsFile:
    """Load and validate a file of claims, shipped or the user's own, and apply another protocol and backbone.

    Raises:
        UsageError: an unknown name or key, or a wrong value.
    """
    origin, content = str(registry.find("claims", name)), registry.load("claims", name)
    file = parse(ClaimsFile, content, origin)
    if protocol and protocol != file.protocol:
        registry.find("protocols", protocol)
        unset = {key: {**claim, "protocol": None} for key, claim in content["claims"].items()}
        content = _merged({**content, "claims": unset}, file.protocols.get(protocol, {}))
        file = parse(ClaimsFile, {**content, "protocol": protocol}, f"{origin} (protocols: {protocol})")
    return file.model_copy(update={"backbone": backbone or file.backbone})


def protocols_of(name: str) -> set[str]:
    """Return the protocols that a file of claims is about: its own and those with changes."""
    content = registry.load("claims", name)
    return {content["protocol"], *content.get("protocols", {})}


def _merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` with the changed keys; a change of `claims` changes keys of single claims, or removes them (null)."""
    by_claim = changes.get("claims", {})
    if unknown := by_claim.keys() - content["claims"].keys():
        name = min(unknown)
        raise UsageError(f"protocols: change of an unknown claim '{name}'{registry.nearest(name, content['claims'])}")
    asked = {key: claim for key, claim in content["claims"].items() if by_claim.get(key, {}) is not None}
    return {**content, **changes, "claims": {key: {**claim, **by_claim.get(key, {})} for key, claim in asked.items()}}


def select(words: list[str], **options: str | None) -> dict[str, ClaimsFile]:
    """Return the files that words name, each with the claims that were named: `hifi`, `hifi/above-full-ft`, `mine.yaml`.

    Args:
        words: empty: all shipped files.
        options: `protocol` and `backbone`, as `load` takes them.

    Raises:
        UsageError: an unknown file or claim.
    """
    chosen: dict[str, dict[str, Claim]] = {}
    files: dict[str, ClaimsFile] = {}
    for word in words or registry.names("claims"):
        name, claim = (word, "") if registry.is_file(word) else word.partition("/")[::2]
        file = files.setdefault(name, load(name, **options))
        if claim and claim not in file.claims:
            known = load(name).claims
            cause = f"is not asked under protocol {file.protocol}" if claim in known else "is unknown"
            raise UsageError(
                f"claim {name}/{claim} {cause}{registry.nearest(claim, file.claims)} (hifi claims {name} lists all)"
            )
        chosen.setdefault(name, {}).update({claim: file.claims[claim]} if claim else file.claims)
    return {name: file.model_copy(update={"claims": chosen[name]}) for name, file in files.items()}


def by_names(file: ClaimsFile) -> ClaimsFile:
    """Return a file of claims with the names that finished runs have, in place of the paths of a user's own YAMLs.

    Raises:
        MissingError: there is no such file.
        UsageError: there is no such backbone.
    """
    kinds = {"tasks": "tasks", "first": "methods", "second": "methods", "method": "methods", "second_method": "methods"}
    kinds |= {"protocol": "protocols", "backbone": "backbones", "only_backbone": "backbones"}

    def named(model: ConfigModel) -> dict[str, Any]:
        values = {key: getattr(model, key, None) for key in kinds}
        return {
            key: [run_name(kinds[key], name) for name in value] if isinstance(value, list) else run_name(kinds[key], value)
            for key, value in values.items()
            if value
        }

    claims = {name: claim.model_copy(update=named(claim)) for name, claim in file.claims.items()}
    return file.model_copy(update={**named(file), "claims": claims})


def methods_of(claim: Claim) -> list[str]:
    """Return the methods whose runs a claim is decided by; none where it is decided by a figure or by costs."""
    if isinstance(claim, DifferenceClaim):
        return [*claim.first, *claim.second]
    if claim.measure == "time":
        return [str(claim.method), claim.second_method or "full-ft"]
    return [claim.method] if claim.method else []


def columns_of(claim: DifferenceClaim) -> dict[str, str]:
    """Return the columns of a claim's published table, by task; of MNLI's two the matched one, as runs report it."""
    assert claim.published
    columns: dict[str, str] = {}
    for column in claim.columns or published.load(claim.published)[1].columns:
        columns.setdefault(column.partition("-")[0], column)
    return columns


def tasks_of(claim: Claim, file: ClaimsFile) -> list[str]:
    """Return the tasks that decide a claim: of its own or the file's tasks, those of the paper's table for it."""
    tasks = claim.tasks or file.tasks
    if not isinstance(claim, DifferenceClaim) or not claim.published:
        return tasks
    columns = columns_of(claim)
    return [task for task in tasks if name_of(task) in columns]


def figure_of(claim: NumberClaim, protocol: str) -> dict[str, Any]:
    """Return the YAML of a claim's figure under a protocol."""
    content = registry.load("figures", str(claim.figure))
    return {**content, **content.get("protocols", {}).get(protocol, {}), "own_protocol": content.get("protocol", "hifi")}


def unmet(claim: Claim, file: ClaimsFile) -> str:
    """Return why no run under a protocol can decide a claim; empty: runs can.

    Runs with other settings than the protocol's are not used, so that the protocol's configuration is that of every run.
    """
    tasks, own = tasks_of(claim, file), claim.tasks or file.tasks
    if not tasks:
        return f"none of its tasks ({', '.join(label_of('tasks', task) for task in own)}) is in the paper's table"
    required = file.requires if claim.requires is None else claim.requires
    protocol, backbone = claim.protocol or file.protocol, claim.only_backbone or file.backbone
    methods = methods_of(claim)
    if isinstance(claim, NumberClaim):
        methods = figure_of(claim, protocol).get("methods", ["hifi-layerwise"]) if claim.figure else [str(claim.method)]
    for method in methods if required else ():
        config = protocol_config(task=tasks[0], method=method, backbone=backbone, protocol=protocol)
        values = flatten(config.model_dump(mode="json")) if config else {}
        for key, value in required.items():
            if values.get(key) != value:
                found = override_value(values[key]) if key in values else "a value that is not known here"
                needed = f"{key}={override_value(value)}"
                return f"the paper's methods train with {needed}, runs under protocol {protocol} with {found}"
    return ""
