"""Parquet files, read only if what they declare fits to their size."""

from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import read_file

# A table of data with more columns is none.
MAX_COLUMNS = 10_000
# Any Parquet file may declare this much, and this many times more for each of its bytes.
_SMALL_ROWS = 100_000
_SMALL_BYTES = 1 << 28
_MAX_ROWS_PER_BYTE = 4
_MAX_COMPRESSION = 200


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a table of pyarrow, if what it declares fits to its size.

    A file of a few kilobytes may declare millions of equal rows, or gigabytes of zeros.

    Raises:
        MissingError: there is no such file.
        UsageError: it is no Parquet file, or declares far more than files of data do.
    """
    # The import takes a tenth of a second, which readers of other files need not wait for.
    import pyarrow as pa
    from pyarrow import parquet

    content = read_file(path)
    largest = _SMALL_BYTES + _MAX_COMPRESSION * len(content)
    try:
        about = parquet.read_metadata(pa.BufferReader(content))
        if _declares_too_much(about, len(content)):
            raise UsageError(
                f"{path} declares {about.num_rows:,} rows and {about.num_columns:,} columns in"
                f" {len(content):,} bytes: no file of data is like that"
            )
        schema = about.schema.to_arrow_schema()
        texts = [field.name for field in schema if _holds_texts(field)]
        # Texts stay numbers in a list of distinct texts until their sizes are known.
        table = parquet.read_table(pa.BufferReader(content), read_dictionary=texts)
        decoded_bytes = sum(_decoded_bytes(table[name]) for name in texts)
        if decoded_bytes > largest:
            raise UsageError(f"{path} repeats large texts: no file of data is like that")
        for name in texts:
            plain = table[name].cast(schema.field(name).type)
            table = table.set_column(table.schema.get_field_index(name), name, plain)
        return table
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} is damaged: {' '.join(str(error).split()):.160}") from None


def _declares_too_much(about: Any, size: int) -> bool:
    """Whether the metadata of a Parquet file of `size` bytes declare more than a file of data does."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    declared_bytes = sum(group.total_byte_size for group in groups)
    has_many_rows = about.num_rows > _SMALL_ROWS + _MAX_ROWS_PER_BYTE * size
    has_many_columns = about.num_columns > MAX_COLUMNS
    is_large = declared_bytes > _SMALL_BYTES + _MAX_COMPRESSION * size
    return has_many_rows or has_many_columns or is_large


def _holds_texts(field: Any) -> bool:
    """Whether a column of Parquet holds texts, or bytes."""
    from pyarrow import types

    return bool(types.is_string(field.type) or types.is_binary(field.type))


def _decoded_bytes(column: Any) -> int:
    """Return the bytes of a column of texts without its list of distinct ones."""
    from pyarrow import compute, types

    total = 0
    for chunk in column.chunks:
        if types.is_dictionary(chunk.type):
            lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
        else:
            lengths = compute.binary_length(chunk)
        total += compute.sum(lengths).as_py() or 0
    return total
