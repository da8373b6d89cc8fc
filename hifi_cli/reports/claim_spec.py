"""Claims: what a file of claims says, for a paper or a user's own work, and how the command line changes it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.errors import UsageError

Margin = Annotated[float, Field(gt=0)]
Shots = Annotated[int, Field(ge=1)] | Literal["full"] | None
Filter = dict[str, Any]
CostMeasure = Literal[
    "trained-percent", "added-parameters", "added-modules", "latency", "stored-percent", "step-time", "scoring-percent"
]


class BaseClaim(ConfigModel):
    """What claims of every kind say."""

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
    margin: Margin | None = None
    """The smallest difference that counts, in the claim's unit; default: see the file's `margin`."""
    requires: dict[str, Any] | None = None
    """Configuration keys that the paper's methods train with, and their values; default: the file's."""


class BasePublishedClaim(BaseClaim):
    """A claim whose numbers are in a published table."""

    published: str | None = None
    """The paper's table, as `file/table` in `configs/published`."""
    columns: list[str] = []
    """Columns of that table; default: all."""


class ComparisonClaim(BasePublishedClaim):
    """The first method scores higher than the second, or not lower by more than the margin, on average over tasks."""

    kind: Literal["superior", "not-worse"]
    """`superior`: higher; `not-worse`: not lower by more than the margin."""
    first: str
    """The method that is claimed to be better."""
    second: str
    """The method it is compared with."""

    @model_validator(mode="after")
    def _compares_two_methods(self) -> "ComparisonClaim":
        if self.first == self.second:
            raise ValueError("`first` and `second` are the same method")
        return self


class OrderClaim(BasePublishedClaim):
    """Every method of a level scores higher than every method of the next level."""

    kind: Literal["order"]
    """`order`: several differences, all of which must hold."""
    levels: list[list[str]] = Field(min_length=2)
    """Methods from the highest scores to the lowest."""

    @model_validator(mode="after")
    def _compares_different_methods(self) -> "OrderClaim":
        methods = [method for level in self.levels for method in level]
        if not all(self.levels) or len(set(methods)) < len(methods):
            raise ValueError("`levels` has an empty level, or a method twice")
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each method of a level with each of the next level."""
        return [
            (first, second)
            for higher, lower in zip(self.levels, self.levels[1:], strict=False)
            for first in higher
            for second in lower
        ]


class TrendClaim(BasePublishedClaim):
    """The score at some values of a setting compared with the score at others."""

    kind: Literal["trend"]
    """`trend`: how a number changes with a setting."""
    figure: str | None = None
    """The figure whose CSV has the numbers."""
    values: dict[str, float] = {}
    """Instead of a figure: the value of the setting by method."""
    x: str = "x"
    """Column of the figure's CSV with the values of the setting."""
    y: str = "score"
    """Column of the figure's CSV with the number."""
    scale: float = 100.0
    """Factor of the number; 100 makes points of scores."""
    unit: str = "points"
    """Unit of the number."""
    per: list[str] = ["seed"]
    """Columns that name a repetition within a task."""
    first: list[float] = Field(min_length=1)
    """Values of the setting."""
    second: list[float] = Field(min_length=1)
    """Values of the setting to compare with."""
    expected: Literal["higher", "not-lower", "equal"]
    """The mean at `first` is higher than at `second`, not lower by more than the margin, or equal up to the margin."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "TrendClaim":
        if bool(self.figure) == bool(self.values):
            raise ValueError("a trend has either `figure` or `values`")
        known = {*self.values.values()}
        if self.values and (unknown := {*self.first, *self.second} - known):
            raise ValueError(f"no method stands for {min(unknown):g} (`first` and `second` name numbers of `values`)")
        if len(known) < len(self.values):
            raise ValueError("two methods of `values` stand for the same number")
        if {*self.first} & {*self.second}:
            raise ValueError("a number is in `first` and in `second`")
        return self


class PropertyClaim(BaseClaim):
    """A measured number lies within bounds."""

    kind: Literal["property", "cost"]
    """`property`: of models and heads; `cost`: of training and its result."""
    figure: str | None = None
    """The figure whose CSV has the number."""
    column: str = "value"
    """Column of the CSV with the number."""
    rows: Filter = {}
    """Rows of the CSV that are used, by column: a value, a list of values, or `{min: , max: }`."""
    second_rows: Filter = {}
    """If given, the number is that of `rows` compared with that of these rows."""
    compare: Literal["difference", "ratio"] = "difference"
    """How two numbers are compared."""
    take: Literal["mean", "min", "max", "first", "last", "rise"] = "mean"
    """What one repetition's rows are reduced to; `rise`: mean minus minimum."""
    per: list[str] = ["seed"]
    """Columns that name a repetition within a task."""
    every: bool = False
    """Whether every repetition must lie within the bounds; otherwise the mean, with its interval over repetitions."""
    measure: CostMeasure | None = None
    """Instead of a figure: a measured cost. Latency and step time are relative to the plain model or to Full-FT."""
    method: str | None = None
    """The method whose cost is measured."""
    at_least: float | None = None
    """Lower bound."""
    at_most: float | None = None
    """Upper bound."""
    unit: str = ""
    """Unit of the number."""
    stated: float | None = None
    """The number that the paper states, where it is in no published table."""

    @model_validator(mode="after")
    def _is_complete(self) -> "PropertyClaim":
        if bool(self.figure) == bool(self.measure):
            raise ValueError("a property has either `figure` or `measure`")
        if self.measure and not self.method:
            raise ValueError("a measured cost requires `method`")
        if self.at_least is None and self.at_most is None:
            raise ValueError("`at_least`, `at_most` or both are required")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("`at_least` is above `at_most`")
        return self


Claim = ComparisonClaim | OrderClaim | TrendClaim | PropertyClaim
AnyClaim = Annotated[Claim, Field(discriminator="kind")]


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
    """Seeds that a claim requires first."""
    requires: dict[str, Any] = {}
    """Configuration keys that the paper's methods train with, and their values: runs under a protocol with other
    ones decide no claim of the file."""
    margin: Margin = 0.5
    """The smallest difference in points that counts, where a claim has none and half the published difference is not known."""
    claims: dict[str, AnyClaim] = Field(min_length=1)
    """The claims, by name."""
    protocols: dict[str, dict[str, Any]] = {}
    """Keys of this file to change under another protocol, claims by name included; a claim that is null is not asked there."""


def methods_of(claim: Claim) -> list[str]:
    """Return the methods whose runs a claim is decided by; none where it is decided by a figure or by costs."""
    match claim:
        case ComparisonClaim():
            return [claim.first, claim.second]
        case OrderClaim():
            return [method for level in claim.levels for method in level]
        case TrendClaim():
            return [*claim.values]
        case PropertyClaim(method=method):
            return [method] if claim.measure == "trained-percent" and method else []


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
    other = backbone if backbone != file.backbone else None
    claims = {key: _with_backbone(claim, file.protocol, other) for key, claim in file.claims.items()}
    return file.model_copy(update={"backbone": backbone or file.backbone, "claims": claims})


def claims_of_settings(names: list[str], settings: list[tuple[str, str]]) -> list[ClaimsFile]:
    """Return files of claims under every protocol and backbone of some tables.

    Args:
        names: files; empty: all shipped ones that are about the protocol.
    """
    known = [setting for setting in dict.fromkeys(settings) if setting[0] in registry.names("protocols")]
    return [
        load(name, protocol=protocol, backbone=backbone)
        for protocol, backbone in known
        for name in names or registry.names("claims")
        if names or protocol in protocols_of(name)
    ]


def protocols_of(name: str) -> set[str]:
    """Return the protocols that a file of claims is about: its own and those with changes."""
    content = registry.load("claims", name)
    return {content["protocol"], *content.get("protocols", {})}


def _with_backbone(claim: Claim, protocol: str, backbone: str | None) -> Claim:
    """Return a claim decided by a figure with the figure's own backbone, unless the command line names another."""
    figure = claim.figure if isinstance(claim, TrendClaim | PropertyClaim) else None
    if not figure or claim.only_backbone:
        return claim
    own = figure_spec.load(figure, protocol=protocol).backbone
    return claim.model_copy(update={"only_backbone": backbone or own})


def select(words: list[str], **options: str | None) -> dict[str, ClaimsFile]:
    """Return the files that words name, each with the claims that were named: `hifi`, `hifi/above-full-ft`, `above-full-ft`.

    Args:
        words: empty: all shipped files.
        options: `protocol` and `backbone`, as `load` takes them.

    Raises:
        UsageError: an unknown file or claim.
    """
    shipped = registry.names("claims")
    files: dict[str, ClaimsFile] = {}
    chosen: dict[str, list[str]] = {}
    for word in words or shipped:
        if registry.is_file(word) or word in shipped:
            files[word] = load(word, **options)
            chosen[word] = [*files[word].claims]
            continue
        file_name, _, claim = word.rpartition("/")
        candidates = [file_name] if file_name else shipped
        matching = [name for name in candidates if claim in load(name).claims]
        if not matching:
            known = [*shipped, *(claim for name in candidates for claim in load(name).claims)]
            raise UsageError(
                f"unknown paper or claim '{word}'{registry.nearest(claim, known)} (hifi claims PAPER lists a paper's claims)"
            )
        for name in matching:
            files.setdefault(name, load(name, **options))
            if claim not in files[name].claims:
                raise UsageError(f"claim {name}/{claim} is not asked under protocol {files[name].protocol}")
            chosen.setdefault(name, []).append(claim)
    return {
        name: file.model_copy(update={"claims": {key: file.claims[key] for key in dict.fromkeys(chosen[name])}})
        for name, file in files.items()
    }


def _merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` with the changed keys; a change of `claims` changes keys of single claims, or removes them (null)."""
    by_claim = changes.get("claims", {})
    if unknown := by_claim.keys() - content["claims"].keys():
        name = min(unknown)
        raise UsageError(f"protocols: change of an unknown claim '{name}'{registry.nearest(name, content['claims'])}")
    asked = {key: claim for key, claim in content["claims"].items() if by_claim.get(key, {}) is not None}
    claims = {key: {**claim, **by_claim.get(key, {})} for key, claim in asked.items()}
    return {**content, **changes, "claims": claims}
