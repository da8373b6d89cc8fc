"""Parquet files, and the class names that the library datasets wrote into them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import LFS_POINTER
from hifi_cli.parquet_files import read_parquet
from hifi_cli.tasks.labels import label_name
from hifi_cli.tasks.readers.texts import PARQUET_MARK, POINTER_OF_LFS, Refused, content_of
from hifi_cli.tasks.source_rows import SourceRow


def read_parquet_file(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the rows of a file, with class names for class indices; `header` and `quotes` are ignored."""
    del header, quotes
    schema = _schema_of(path)
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise Refused(f": two columns are called '{name}'; rename one of them")
    names_of = _class_names_in(schema)
    try:
        rows = read_parquet(path).to_pylist()
    except UsageError as error:
        raise Refused(str(error).removeprefix(str(path))) from None
    for index, values in enumerate(rows):
        yield SourceRow(with_class_names(values, names_of), f"row {index}")


def parquet_class_names(path: Path) -> dict[str, list[str]]:
    """Return the class names of each column of class indices, which the library datasets wrote."""
    return _class_names_in(_schema_of(path))


def _schema_of(path: Path) -> Any:
    """Return the columns of a Parquet file, with their types and notes."""
    from pyarrow import ArrowException, parquet

    start = content_of(path)[: len(LFS_POINTER)]
    if start == LFS_POINTER:
        raise Refused(f" is {POINTER_OF_LFS}")
    if not start.startswith(PARQUET_MARK):
        raise Refused(" is not a Parquet file")
    try:
        return parquet.read_schema(path)
    except (ArrowException, OSError) as error:
        raise Refused(f": the Parquet file is damaged ({str(error)[:100]})") from None


def _class_names_in(schema: Any) -> dict[str, list[str]]:
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    # The library takes a second to import.
    from datasets import Features

    return class_names_of(Features.from_arrow_schema(schema))


def class_names_of(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the class names of each column of class indices, or of lists of them.

    Args:
        features: the columns of a table of the library datasets, with their types.
    """
    found = {}
    for column, feature in features.items():
        # A list has the type of its parts in `feature`.
        of_parts = getattr(feature, "feature", feature)
        names = getattr(of_parts, "names", None)
        if names:
            # The cells of a label are read in the same way.
            found[column] = [label_name(name) for name in names]
    return found


def with_class_names(values: dict[str, Any], names_of: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a row with class names in the place of class indices; -1 is a hidden label.

    Args:
        values: the row's values by column.
        names_of: the class names of columns.

    Raises:
        UsageError: a list has an index that is none of a class.
    """
    for column, names in names_of.items():
        value = values[column]
        if isinstance(value, list):
            if not all(isinstance(index, int) and 0 <= index < len(names) for index in value):
                raise UsageError(f"{column} has a class other than 0 to {len(names) - 1}: {value}")
            values[column] = [names[index] for index in value]
        elif value is not None and 0 <= value < len(names):
            values[column] = names[value]
        else:
            values[column] = None
    return values
