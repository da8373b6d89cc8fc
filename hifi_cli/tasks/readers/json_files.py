"""JSON files: an object per line, an array of objects, and the layouts of official files."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from hifi_cli.tasks.readers.texts import Refused, text_of
from hifi_cli.tasks.source_rows import MALFORMED, SourceRow

_HINT = '; each line must be one object, for example {"text": "...", "label": "..."}'
# How values are called that are no objects.
_NAMES_OF_VALUES = {list: "a list", str: "a text", type(None): "null"}


def read_jsonl(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the objects of a file: one per line that is not empty, or those of one array.

    The names of columns are the objects' keys; `header` and `quotes` are ignored.
    """
    del header, quotes
    text = text_of(path)
    # A file .json is mostly one array, and may as well have an object per line.
    if text.lstrip().startswith("["):
        yield from _objects_of_array(text)
        return
    yield from _records_of_lines(text, _object)


def read_multirc(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the answers of the official files of MultiRC, which have a paragraph per line."""
    del header, quotes
    yield from _records_of_lines(text_of(path), _multirc_answers, "multirc")


def read_record(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the queries of the official files of ReCoRD, which have a passage per line."""
    del header, quotes
    yield from _records_of_lines(text_of(path), _record_queries, "record")


def read_squad(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the questions of an official file of SQuAD, which is one object."""
    del header, quotes
    value = _parsed(text_of(path), "")
    yield from _records_in(value, _squad_questions, "line 1", "squad")


def _records_of_lines(
    text: str, records_of: Callable[[Any], list[dict[str, Any]]], layout: str = ""
) -> Iterator[SourceRow]:
    """Yield the records of every line that is not empty.

    Args:
        text: of the file.
        records_of: returns the records that a line's value holds.
        layout: the name of an official layout, for messages; empty: a line is an object of columns.
    """
    is_first = True
    for index, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"line {index}"
        if is_first:
            # Parsing a line twice costs time, and the keys of other lines are mostly the same.
            _check_keys_differ(line, where)
            is_first = False
        yield from _records_in(_parsed(line, f", {where}"), records_of, where, layout)


def _check_keys_differ(line: str, where: str) -> None:
    """Refuse an object with two values of one key, of which a JSON parser keeps the last."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in pairs)
        for key, count in counts.items():
            if count > 1:
                raise Refused(f", {where}: two columns are called '{key}'; rename one of them")

    # A line that is not JSON is refused with its reason where it is parsed.
    with suppress(ValueError, RecursionError):
        json.loads(line, object_pairs_hook=check)


def _parsed(text: str, where: str) -> Any:
    """Return the value of a text; `where`: its line, empty for a whole file."""
    try:
        return from_json(text)
    except (ValueError, RecursionError) as error:
        # A text of one line: its column alone says where.
        reason = re.sub(r" at line 1 column (\d+)$", r" at character \1", str(error))
        hint = ""
        if where:
            hint = _HINT
        raise Refused(f"{where}: not JSON ({reason}){hint}") from None


def _objects_of_array(text: str) -> Iterator[SourceRow]:
    """Yield the objects of one array."""
    try:
        values = from_json(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f": not a JSON array ({error})") from None
    for index, value in enumerate(values, start=1):
        yield from _records_in(value, _object, f"object {index}", "")


def _records_in(
    value: Any, records_of: Callable[[Any], list[dict[str, Any]]], where: str, layout: str
) -> Iterator[SourceRow]:
    """Yield the records that a JSON value holds; see `_records_of_lines`."""
    try:
        records = [{**record} for record in records_of(value)]
    except MALFORMED as error:
        if not layout:
            what = _NAMES_OF_VALUES.get(type(value), f"{value!r:.20}")
            raise Refused(f", {where}: {what} is not an object of columns") from None
        missing = ""
        if isinstance(error, KeyError):
            missing = f"; it has no {error}"
        raise Refused(
            f", {where}: not laid out as the official files of {layout}{missing}"
        ) from None
    for record in records:
        yield SourceRow(record, where)


def _object(value: Any) -> list[dict[str, Any]]:
    return [value]


def _multirc_answers(value: Any) -> list[dict[str, Any]]:
    """Return a record per answer; its idx holds the indices of paragraph, question and answer."""
    records = []
    for question in value["passage"]["questions"]:
        for answer in question["answers"]:
            indices = {
                "paragraph": value["idx"],
                "question": question["idx"],
                "answer": answer["idx"],
            }
            records.append(
                {
                    "paragraph": value["passage"]["text"],
                    "question": question["question"],
                    "answer": answer["text"],
                    "idx": indices,
                    "label": answer.get("label"),
                }
            )
    return records


def _record_queries(value: Any) -> list[dict[str, Any]]:
    """Return a record per query, with the hub's column names; `end` is an entity's last character."""
    passage = value["passage"]["text"]
    records = []
    for query in value["qas"]:
        places = value["passage"]["entities"]
        entities = [passage[place["start"] : place["end"] + 1] for place in places]
        # The queries of the test split have no answers.
        answers = [answer["text"] for answer in query.get("answers", [])]
        records.append(
            {
                "passage": passage,
                "query": query["query"],
                "entities": entities,
                "answers": answers,
                "idx": {"passage": value["idx"], "query": query["idx"]},
            }
        )
    return records


def _squad_questions(value: Any) -> list[dict[str, Any]]:
    """Return a record per question, with the column names of the hub."""
    records = []
    for article in value["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question["answers"]
                texts = [answer["text"] for answer in answers]
                starts = [answer["answer_start"] for answer in answers]
                records.append(
                    {
                        "id": question["id"],
                        "question": question["question"],
                        "answers": {"text": texts, "answer_start": starts},
                        "context": paragraph["context"],
                    }
                )
    return records
