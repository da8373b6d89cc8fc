"""JSON files that are read and written as typed objects."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from hifi_cli.config.base import describe_error
from hifi_cli.errors import UsageError
from hifi_cli.files import read_json, write_json


class Record(BaseModel):
    """A part of a stored file. Keys without a default are required; keys that it does not know are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class StoredFile(Record):
    """A whole JSON file.

    Attributes:
        description: what error messages call the file.
        remedy: how a user gets a new file in place of a damaged one.
    """

    description: ClassVar[str]
    remedy: ClassVar[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            MissingError: no such file.
            UsageError: a key is missing or of a wrong type; the message names it.
        """
        content = read_json(path, what=cls.description)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{path} is damaged ({describe_error(error, cls)}); {cls.remedy}") from None

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        write_json(path, self.model_dump(mode="json"))
