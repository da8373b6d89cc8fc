"""The types of what a finished run's files hold: a damaged or edited file is refused by name where it is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from hifi_cli.config.base import describe_error
from hifi_cli.errors import UsageError


class Content(BaseModel):
    """Keys without a default are required; what else a file holds is not looked at."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Scores(Content):
    """The primary metric on the reported split, as shares of 1."""

    last: float
    best: float
    max: float


class Params(Content):
    """Numbers of parameters."""

    trainable: int
    trainable_backbone: int
    total: PositiveInt


class Epochs(Content):
    """How many there were, and which of them the scores are of."""

    total: int
    last: int
    best: int
    max: int


class RunResult(Content):
    """results.json."""

    status: Literal["done", "diverged"]
    task: str
    method: str
    backbone: str
    protocol: str
    seed: int
    primary_metric: str
    report: Literal["last", "best", "max"]
    scores: Scores | None
    params: Params
    config_hash: str
    setting_hash: str
    collapsed: bool
    limited: bool
    reason: str = ""
    split: str = ""
    selection: str = ""
    data: dict[str, str] = {}
    n_examples: dict[str, int] = {}
    epochs: Epochs | None = None
    metrics: dict[str, float] | None = None
    extra_validation: dict[str, dict[str, float]] = {}
    time_s: float = 0.0
    wall_s: float = 0.0

    @model_validator(mode="after")
    def _has_scores(self) -> Self:
        if self.status == "done" and self.scores is None:
            raise ValueError("a run that is done has scores")
        return self


class Git(Content):
    """The state of the project's checkout."""

    commit: str
    changed: bool


class Data(Content):
    """Where the rows came from."""

    origin: dict[str, str]


class Manifest(Content):
    """manifest.json."""

    command: list[str]
    hifi: str
    libraries: dict[str, str | None]
    device: str
    data: Data
    git: Git | None = None


def check(model: type[Content], content: Mapping[str, Any], path: Path) -> None:
    """Refuse a file whose content is not of the types that the program writes.

    Raises:
        UsageError: names the file and the first key that is wrong.
    """
    try:
        model.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path} is damaged ({describe_error(error, model)}); train the run again with --force") from None
