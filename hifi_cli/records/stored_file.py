"""JSON files with a schema number and a checksum, read and written as typed objects."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from hifi_cli.config.base import describe_error
from hifi_cli.errors import UsageError
from hifi_cli.files import CHECKSUM, check_schema, read_json, with_checksum, write_json


class Record(BaseModel):
    """A part of a stored file. Keys without a default are required; keys that it does not know are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class StoredFile(Record):
    """A whole JSON file.

    Attributes:
        schema_number: number of the file's layout; a file with another number is refused.
        description: what error messages call the file.
        remedy: how a user gets a new file in place of a damaged one.
    """

    schema_number: ClassVar[int]
    description: ClassVar[str]
    remedy: ClassVar[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            MissingError: no such file.
            UsageError: the checksum does not match, or a key is missing or of a wrong type; the message names it.
            SchemaError: a version of hifi with another layout wrote it.
        """
        content = read_json(path, what=cls.description)
        if CHECKSUM not in content:
            raise UsageError(f"{path} is not a {cls.description} file that hifi wrote (it has no checksum); {cls.remedy}")
        check_schema(content, cls.schema_number, path)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{path} is damaged ({describe_error(error, cls)}); {cls.remedy}") from None

    def write(self, path: Path) -> None:
        """Write the file atomically, with its schema number and its checksum."""
        write_json(path, with_checksum({"schema": self.schema_number, **self.model_dump()}))
