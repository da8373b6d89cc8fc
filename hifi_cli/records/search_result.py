"""chosen.json: the settings that a search tried, and the best one of each task and method."""

from typing import ClassVar

from hifi_cli.records.stored_file import Record, StoredFile


class SettingScore(Record):
    """A tried setting.

    Attributes:
        setting: configuration keys and their values, as on the command line.
        score: mean over seeds on the selection split, a fraction of 1; None where a run diverged.
        seeds: number of seeds.
    """

    setting: dict[str, str]
    score: float | None
    seeds: int


class MethodSearch(Record):
    """The settings of one task and method.

    Attributes:
        chosen: the best one; None where a run of every setting diverged.
    """

    task: str
    method: str
    chosen: SettingScore | None
    tried: list[SettingScore]


class SearchResult(StoredFile):
    """The outcome of a grid whose settings vary."""

    schema_number: ClassVar[int] = 1
    description: ClassVar[str] = "search result"
    remedy: ClassVar[str] = "repeat the grid"

    grid: str
    protocol: str
    backbone: str
    searches: list[MethodSearch]
