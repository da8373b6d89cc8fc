"""The text of a data file, and refusals of files that are no text."""

import codecs
from pathlib import Path

from hifi_cli.errors import UsageError
from hifi_cli.files import LFS_POINTER, read_file

# The first bytes of a Parquet file.
PARQUET_MARK = b"PAR1"
POINTER_OF_LFS = "a pointer of Git LFS, not the data: run git lfs pull"
# Files whose name says another format, by their first bytes in lower case.
_OTHER_FORMATS = {
    LFS_POINTER: POINTER_OF_LFS,
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"PK\x03\x04": "a ZIP or Excel file: unpack it, or save its sheet as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save its sheet as CSV in UTF-8",
    b"<!doctype html": "a page of HTML, not the data: download the file itself",
    b"<html": "a page of HTML, not the data: download the file itself",
}
# The encoding of a file, by the mark that it begins with. The mark of UTF-32 begins as that of UTF-16
# does, and therefore stands before it.
_ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}


class Refused(UsageError):
    """A file is malformed; the text continues the file's name: `, line 3: ...`."""


def content_of(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        Refused: it is no regular file.
    """
    try:
        return read_file(path)
    except UsageError as error:
        raise Refused(str(error).removeprefix(str(path))) from None


def text_of(path: Path) -> str:
    r"""Return the text of a file, with one character, \n, for the end of a line.

    UTF-8 and, with its mark, UTF-16 and UTF-32 are read. A file without any other line end may have
    that of old Macs.

    Raises:
        UsageError: it is in another encoding, or no text.
    """
    content = content_of(path)
    for mark, what in _OTHER_FORMATS.items():
        if content[: len(mark)].lower() == mark.lower():
            raise Refused(f" is {what}")
    if content.startswith(PARQUET_MARK):
        raise Refused(" is a Parquet file: rename it so that it ends in .parquet")
    text = _decoded(content)
    # Bytes of 0 are characters of UTF-8, and nobody writes them.
    if "\0" in text[:1000]:
        raise Refused(" has bytes of 0, as UTF-16 without its mark has; save it as UTF-8")
    text = text.replace("\r\n", "\n")
    if "\n" in text:
        return text
    return text.replace("\r", "\n")


def _decoded(content: bytes) -> str:
    """Return the text of bytes, by the encoding that their mark says, else by UTF-8."""
    encoding = "utf-8"
    for mark, marked_encoding in _ENCODINGS.items():
        if content.startswith(mark):
            encoding = marked_encoding
            break
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise Refused(
                f": its first bytes are the mark of {encoding.upper()}, and its text is not in it;"
                " save the file as UTF-8"
            ) from None
        line = content[: error.start].count(b"\n") + 1
        raise Refused(
            f", line {line}: not UTF-8 (byte 0x{content[error.start]:02x}); save the file as UTF-8,"
            " for example by iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
