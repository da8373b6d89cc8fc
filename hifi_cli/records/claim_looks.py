"""The file of the looks at claims that `hifi grid --until-decided` took, so that a later look keeps its declared level."""

from pathlib import Path
from typing import ClassVar

from hifi_cli.files import safe_name
from hifi_cli.records.stored_file import Record, StoredFile


class Look(Record):
    """One look at the results.

    Attributes:
        seeds: of each task, the number of seeds that were compared.
        verdicts: by claim; a claim that an earlier look decided keeps its verdict.
    """

    seeds: dict[str, int]
    verdicts: dict[str, str]


class ClaimLooks(StoredFile):
    """The looks that were declared before the first one, and those that were taken.

    Attributes:
        declared: seeds per task at each look.
        levels: two-sided level of the tests at each look.
        claims: a digest of each claim at its first look; a look says nothing about a claim that was changed since.
        looks: those that were taken.
    """

    schema_number: ClassVar[int] = 2
    description: ClassVar[str] = "looks at claims"
    remedy: ClassVar[str] = "delete it, and hifi grid --until-decided starts anew"

    declared: list[int]
    levels: list[float]
    claims: dict[str, str] = {}
    looks: list[Look] = []

    @staticmethod
    def path_of(results_dir: Path, name: str, protocol: str, backbone: str) -> Path:
        """The file of the looks at a file of claims under a protocol and on a backbone."""
        return results_dir / "claims" / f"{safe_name(f'{name}-{protocol}-{Path(backbone).name}')}.json"

    @property
    def verdicts(self) -> dict[str, tuple[str, int]]:
        """The verdict of every claim, and the number of the look that gave it."""
        verdicts: dict[str, tuple[str, int]] = {}
        for number, look in enumerate(self.looks, 1):
            for claim, verdict in look.verdicts.items():
                if verdicts.get(claim, ("undecided", 0))[0] != verdict or verdict == "undecided":
                    verdicts[claim] = (verdict, number)
        return verdicts
