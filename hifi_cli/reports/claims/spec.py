"""The YAML of a paper's claims."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, one_of, parse
from hifi_cli.config.sources import override_value
from hifi_cli.errors import UsageError
from hifi_cli.reports.calibration import CHURN, OF_ONE_RUN
from hifi_cli.reports.protocols import protocol_config
from hifi_cli.reports.table_spec import Method, Task, load_published


def _as_list(value: Any) -> Any:
    """Return a single name in the YAML as a list."""
    return [value] if isinstance(value, str) else value


Methods = Annotated[list[Method], BeforeValidator(_as_list), Field(min_length=1)]
Margin = Annotated[float, Field(gt=0)]
_NO_BOUNDS = "`at_least`, `at_most` or both are required"


class BaseClaim(ConfigModel):
    """The parts that claims of both kinds have."""

    text: str
    """The claim in one sentence."""
    where: str
    """Section or table of the paper."""
    note: str = ""
    """Further facts for the reader."""
    protocol: str | None = None
    """Protocol of the claim's runs; default: the file's. A claim that has one is not asked under
    another protocol."""
    tasks: list[Task] = []
    """Tasks of the claim's runs; default: the file's. A claim with a figure has the figure's tasks."""
    only_backbone: str | None = None
    """The encoder that the claim is about; other encoders' runs are not used."""
    at_least: float | None = None
    """Lower bound of the difference in points, or of the number."""
    at_most: float | None = None
    """Upper bound."""
    margin: Margin | None = None
    """The smallest value that counts, where something is claimed to be above a lower bound: a value
    between the two is there, but too small. Default of a difference without bounds: half of the
    published one, or else the file's `margin`."""

    @property
    def has_bounds(self) -> bool:
        """Whether the claim says between which numbers its own lies, or on which side of one."""
        return self.at_least is not None or self.at_most is not None


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

    metric: str | None = None
    """The compared number: a metric by name, or `nll`, `brier` or `ece` of the stored predictions, the
    lower the better; default: each task's primary metric."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        """Refuse a difference in a metric without bounds, and one in churn."""
        # Without bounds, a difference of scores is claimed to be above 0.
        if self.metric and not self.has_bounds:
            raise ValueError(_NO_BOUNDS)
        if self.metric == "churn":
            raise ValueError(CHURN)
        return self

    @property
    def unit(self) -> str:
        """Unit of the difference."""
        return self.metric or "points"


class NumberClaim(BaseClaim):
    """A number of a figure, or a measure of the predictions of every method, lies within bounds."""

    kind: Literal["number"]
    """`number`: from a figure's CSV, or from predictions."""
    figure: str = ""
    """The figure whose CSV has the number."""
    metric: Annotated[str, one_of(OF_ONE_RUN)] | None = None
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
    """The number that one repetition's rows are reduced to."""
    per: list[str] = ["seed"]
    """Columns that name a repetition within a task."""
    unit: str = ""
    """Unit of the number."""
    stated: float | None = None
    """The number that the paper states."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        """Refuse a number without bounds, and one that is of nothing, or of a figure and of predictions both."""
        if not self.has_bounds:
            raise ValueError(_NO_BOUNDS)
        has_one_source = bool(self.figure) != bool(self.metric)
        has_methods_of_metric = bool(self.metric) == bool(self.methods)
        if not has_one_source or not has_methods_of_metric:
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
    """The claims and their authors, in one line."""
    protocol: str
    """Protocol of the runs."""
    backbone: str
    """Backbone of the runs."""
    tasks: list[Task] = Field(min_length=1)
    """Tasks of the runs."""
    only_tasks: list[Task] = []
    """Those of them that are asked about; default: all. The option `--tasks` sets them."""
    seeds: list[Seed] = [1, 2, 3]
    """Seeds of the runs."""
    requires: dict[str, Any] = {}
    """Configuration keys that the paper's methods train with, and their values: runs under a
    protocol with other ones decide no claim of the file."""
    margin: Margin = 0.5
    """The smallest difference in points that counts, where a claim has none and no difference is published."""
    claims: dict[str, Annotated[Claim, Field(discriminator="kind")]] = Field(min_length=1)
    """The claims, by name."""
    protocols: dict[str, dict[str, Any]] = {}
    """Keys of this file to change under another protocol, claims by name included; a claim that is
    null is not asked there."""

    @property
    def protocol_name(self) -> str:
        """The name that finished runs have for the protocol, which may be the path of a YAML here."""
        if registry.is_yaml_path(self.protocol):
            return Path(self.protocol).stem
        return self.protocol


def load(
    name: str,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: Sequence[str] = (),
) -> ClaimsFile:
    """Load and validate a file of claims, shipped or the user's own.

    Args:
        name: of the file, or its path.
        protocol: another protocol; None: the file's.
        backbone: another backbone; None: the file's.
        tasks: those that are asked about; empty: all.

    Raises:
        UsageError: an unknown name or key, or a wrong value.
    """
    origin = str(registry.find("claims", name))
    content = registry.load("claims", name)
    file = parse(ClaimsFile, content, origin)
    if protocol and protocol not in (file.protocol, file.protocol_name):
        registry.find("protocols", protocol)
        changed = _under_protocol(file, content, protocol)
        file = parse(ClaimsFile, changed, f"{origin} (protocols: {protocol})")
    return file.model_copy(
        update={
            "backbone": backbone or file.backbone,
            "only_tasks": [*tasks] or file.only_tasks,
        }
    )


def _under_protocol(file: ClaimsFile, content: dict[str, Any], protocol: str) -> dict[str, Any]:
    """Return a file's YAML under another protocol, as its `protocols` change it.

    Args:
        file: the file.
        content: its YAML.
        protocol: another one than the file's.
    """
    changes = file.protocols.get(protocol, {})
    changes_of_claims = changes.get("claims", {})
    claims = {}
    for name in content["claims"] | changes_of_claims:
        claim = content["claims"].get(name, {})
        changes_of_claim = changes_of_claims.get(name, {})
        # A claim with a protocol of its own is not asked under another one, nor is one that is null.
        is_asked = changes_of_claim is not None and "protocol" not in claim
        if is_asked:
            claims[name] = claim | changes_of_claim
    return {**content, **changes, "protocol": protocol, "claims": claims}


def not_asked(name: str, protocol: str) -> list[str]:
    """Return the claims of a file that are not asked under another protocol than the file's.

    Args:
        name: of the file, as `load` takes it.
        protocol: the other protocol.
    """
    asked = load(name, protocol=protocol).claims
    return [claim for claim in load(name).claims if claim not in asked]


def is_of_protocol(word: str, protocol: str) -> bool:
    """Return whether a file of claims is about the runs of a protocol, without `--protocol`.

    Args:
        word: a file, or a claim in one, as `select` takes it.
        protocol: its name in finished runs.
    """
    name, _ = _file_and_claim(word)
    return load(name).protocol_name == protocol


def _file_and_claim(word: str) -> tuple[str, str]:
    """Return the file that a word names, and the claim in it; empty: all of its claims."""
    if registry.is_yaml_path(word):
        return word, ""
    # The path of a file may have slashes, and the name of a claim has none.
    file, _, claim = word.rpartition("/")
    if registry.is_yaml_path(file):
        return file, claim
    name, _, claim = word.partition("/")
    return name, claim


def select(words: list[str], **options: Any) -> dict[str, ClaimsFile]:
    """Return the files that words name, each with the claims that were named.

    Args:
        words: `hifi`, `hifi/above-full-ft` or `mine.yaml`; empty: all shipped files.
        options: `protocol`, `backbone` and `tasks`, as `load` takes them.

    Raises:
        UsageError: an unknown file or claim, or one that is not asked under the protocol.
    """
    files: dict[str, ClaimsFile] = {}
    for word in words or registry.names("claims"):
        name, claim = _file_and_claim(word)
        file = load(name, **options)
        if claim and claim not in file.claims:
            suggestion = registry.did_you_mean(claim, file.claims)
            raise UsageError(
                f"{name} has no claim '{claim}' under protocol {file.protocol}{suggestion}"
            )
        chosen = {claim: file.claims[claim]} if claim else file.claims
        if name in files:
            chosen = files[name].claims | chosen
        files[name] = file.model_copy(update={"claims": chosen})
    return files


def methods_of(claim: Claim) -> list[str]:
    """Return the methods whose runs decide a claim; none where a figure does."""
    if isinstance(claim, DifferenceClaim):
        return [*claim.first, *claim.second]
    return claim.methods


def columns_of(published: str) -> dict[str, str]:
    """Return the columns of a published table, by task; of MNLI's two the matched one, as runs report it."""
    columns: dict[str, str] = {}
    # MNLI has the columns mnli-m and mnli-mm. From the last column to the first, so that the first
    # one of a task stays.
    for column in reversed(load_published(published).table.columns):
        task = column.partition("-")[0]
        columns[task] = column
    return columns


def tasks_of(claim: Claim, file: ClaimsFile) -> list[str]:
    """Return the tasks that decide a claim: those that are asked about, where the paper's table has them."""
    tasks = _tasks_asked_about(claim, file)
    if isinstance(claim, NumberClaim) or not claim.published:
        return tasks
    printed = columns_of(claim.published)
    return [task for task in tasks if task in printed]


def _own_tasks(claim: Claim, file: ClaimsFile) -> list[str]:
    """Return a claim's own tasks, or those of its figure or file."""
    tasks = claim.tasks
    if not tasks and isinstance(claim, NumberClaim) and claim.figure:
        # A figure of finished runs may name none, and shows all.
        tasks = figure_spec.load(claim.figure, protocol=claim.protocol or file.protocol).tasks
    return tasks or file.tasks


def _tasks_asked_about(claim: Claim, file: ClaimsFile) -> list[str]:
    """Return a claim's tasks; of these, the ones that `--tasks` names."""
    own = _own_tasks(claim, file)
    if not file.only_tasks:
        return own
    return [task for task in own if task in file.only_tasks]


def why_undecidable(claim: Claim, file: ClaimsFile) -> str:
    """Return why no run under a protocol can decide a claim; empty: runs can.

    Runs with other settings than the protocol's are not used, so that the protocol's configuration
    is that of every run.
    """
    if not _tasks_asked_about(claim, file):
        return f"no task asked about is among {', '.join(_own_tasks(claim, file))}"
    tasks = tasks_of(claim, file)
    if not tasks:
        return "no task asked about is in the paper's table"
    protocol = claim.protocol or file.protocol
    backbone = claim.only_backbone or file.backbone
    methods = methods_of(claim)
    if isinstance(claim, NumberClaim) and claim.figure:
        methods = figure_spec.load(claim.figure, protocol=protocol).methods
    for method, (key, needed) in product(methods, file.requires.items()):
        found = None
        # The required keys do not depend on the task, so that the first one stands for all.
        config = protocol_config(task=tasks[0], method=method, backbone=backbone, protocol=protocol)
        if config:
            found = flatten(config.model_dump(mode="json")).get(key)
        if found != needed:
            return (
                f"the paper's methods train with {key}={override_value(needed)},"
                f" runs under protocol {protocol} with {override_value(found)}"
            )
    return ""
