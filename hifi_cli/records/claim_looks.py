"""The file of the looks at claims that `hifi grid --until-decided` took, so that a later look keeps its declared level."""

from pathlib import Path
from typing import ClassVar

from hifi_cli.files import safe_name
from hifi_cli.records.stored_file import Record, StoredFile


class Look(Record):
    """One look at a claim.

    Attributes:
        seeds: of each task, the number of seeds that were compared.
        verdict: as `hifi claims` prints it.
    """

    seeds: dict[str, int]
    verdict: str


class LooksAtClaim(Record):
    """The looks that were taken at one claim, until one of them decided it.

    Attributes:
        digest: of the claim at its last look; a look says nothing about a claim that was changed since.
    """

    digest: str
    looks: list[Look]

    @property
    def is_decided(self) -> bool:
        """Whether the last look supported or contradicted the claim."""
        return self.looks[-1].verdict in ("supported", "contradicted")


class ClaimLooks(StoredFile):
    """The looks that were declared before the first one, and those that were taken.

    Attributes:
        declared: seeds per task at each look.
        levels: two-sided level of the tests at each look.
        claims: those that were looked at, each with its own looks.
    """

    schema_number: ClassVar[int] = 3
    description: ClassVar[str] = "looks at claims"
    remedy: ClassVar[str] = "delete it, and hifi grid --until-decided starts anew"

    declared: list[int]
    levels: list[float]
    claims: dict[str, LooksAtClaim] = {}

    @staticmethod
    def path_of(results_dir: Path, name: str, protocol: str, backbone: str) -> Path:
        """The file of the looks at a file of claims under a protocol and on a backbone."""
        return results_dir / "claims" / f"{safe_name(f'{name}-{protocol}-{Path(backbone).name}')}.json"
