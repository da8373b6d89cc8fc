"""From a task's name to its rows, and from rows to tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hifi_cli import demo_data
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_directory, file_digest, locked
from hifi_cli.tasks import hub_dataset, local_files
from hifi_cli.tasks.task_spec import NEEDED, Dataset, Row, Split, TaskSpec

Truncation = Literal["longest_first", "only_first", "only_second"]
Span = tuple[int, int]
OUTSIDE: Span = (-1, -1)  # the characters of a token that is not the context's
QUESTION_SHARE = 4  # a question takes at most this part of a window, so that the context has room to slide


@dataclass(frozen=True, slots=True)
class Example:
    """A row's tokens; a context longer than the encoder reads gives several examples of one row.

    Attributes:
        sequences: for each sequence of the row the tokenizer's lists (input_ids, token_type_ids), without padding.
        words: the tokens [first, last) of each target word.
        offsets: span: for each token its characters [start, end) in the context, or OUTSIDE.
        answer: span: first and last token of the answer; (0, 0), the first token, where the window does not hold it.
    """

    row: Row
    sequences: tuple[dict[str, list[int]], ...]
    words: tuple[Span, ...] = ()
    offsets: tuple[Span, ...] = ()
    answer: Span = (0, 0)

    def __len__(self) -> int:
        return max(len(sequence["input_ids"]) for sequence in self.sequences)


@dataclass(frozen=True)
class Encoding:
    """How rows become tokens.

    Attributes:
        max_length: tokens of a sequence, or of a window over a context.
        truncation: which text of a pair is cut when it is too long.
        swap_texts: the second text of a pair comes first.
        stride: tokens by which the windows over a long context overlap.
    """

    max_length: int
    truncation: Truncation = "longest_first"
    swap_texts: bool = False
    stride: int = 128


def load_rows(spec: TaskSpec, *, data_dir: Path | None, results_dir: Path, needed: Iterable[Split] = NEEDED) -> Dataset:
    """A task's rows: generated, from `data_dir`, or from the hub when no directory is given.

    Raises:
        MissingError: they cannot be had.
        UsageError: they do not fit the task.
    """
    if spec.local.generated:
        return local_files.load(spec, _generated(results_dir))
    if data_dir:
        if not data_dir.is_dir():
            raise MissingError(f"--data-dir {data_dir}: no such directory")
        return local_files.load(spec, data_dir, needed=needed)
    if spec.hub:
        return hub_dataset.load(spec, spec.hub)
    raise MissingError(f"task {spec.label} has no hub repository: give --data-dir")


def tokenise(tokenizer: Any, spec: TaskSpec, rows: Sequence[Row], how: Encoding) -> list[Example]:
    """Tokenise once, without padding.

    Raises:
        UsageError: a target word is cut off, or `max_length` leaves no room for two texts.
    """
    if spec.kind == "span":
        return _windows(tokenizer, rows, how)
    order = slice(None, None, -1 if how.swap_texts else 1)
    columns = [list(column) for column in zip(*(sequence[order] for row in rows for sequence in row.sequences), strict=True)]
    is_pair = len(columns) == 2
    room = _room(tokenizer, how) if is_pair else how.max_length
    if is_pair and how.truncation != "longest_first":  # the text that is not to be cut must leave room for the other
        whole = 1 if how.truncation == "only_first" else 0
        columns[whole] = _shortened(tokenizer, columns[whole], room - 1)
    has_words = any(row.words for row in rows)
    encoded = tokenizer(
        *columns,
        truncation=how.truncation if is_pair else "only_first",
        max_length=how.max_length,
        return_offsets_mapping=has_words,
    )
    examples, at = [], 0
    for row in rows:
        sequences = tuple(_lists(encoded, index) for index in range(at, at + len(row.sequences)))
        words = _tokens_of_words(encoded, at, row.words[order], row, how) if has_words else ()
        examples.append(Example(row, sequences, words))
        at += len(row.sequences)
    return examples


def rows_of(examples: Iterable[Example]) -> list[Row]:
    """The rows behind some examples, each once, in their order."""
    return list({example.row.id: example.row for example in examples}.values())


def single_sequences(examples: Iterable[Example]) -> list[Example]:
    """Every sequence as an example of its own, without target words: what a bare encoder reads."""
    return [Example(example.row, (sequence,)) for example in examples for sequence in example.sequences]


def _lists(encoded: Any, index: int) -> dict[str, list[int]]:
    return {name: encoded[name][index] for name in encoded if name in ("input_ids", "token_type_ids")}


def _tokens_of_words(encoded: Any, index: int, words: Sequence[Span], row: Row, how: Encoding) -> tuple[Span, ...]:
    """The tokens that touch each target word's characters, text by text."""
    offsets, texts = encoded["offset_mapping"][index], encoded.sequence_ids(index)
    found = []
    for text, (start, end) in enumerate(words):
        tokens = [token for token, (first, last) in enumerate(offsets) if texts[token] == text and first < end and last > start]
        if not tokens or offsets[tokens[-1]][1] < end:
            raise UsageError(f"row {row.id}: max_length={how.max_length} cuts off the target word; a larger one is wanted")
        found.append((tokens[0], tokens[-1] + 1))
    return tuple(found)


def _windows(tokenizer: Any, rows: Sequence[Row], how: Encoding) -> list[Example]:
    """Windows over each context, every one behind the question."""
    most = max(1, how.max_length // QUESTION_SHARE)
    room = _room(tokenizer, how) - most
    encoded = tokenizer(
        _shortened(tokenizer, [row.sequences[0][0].strip() for row in rows], most),
        [row.sequences[0][1] for row in rows],
        truncation="only_second",
        max_length=how.max_length,
        stride=min(how.stride, room // 2),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    examples = []
    for index, number in enumerate(encoded["overflow_to_sample_mapping"]):
        texts = encoded.sequence_ids(index)
        offsets = tuple(
            tuple(span) if text == 1 else OUTSIDE for span, text in zip(encoded["offset_mapping"][index], texts, strict=True)
        )
        row = rows[number]
        examples.append(Example(row, (_lists(encoded, index),), (), offsets, _answer(row, offsets)))
    return examples


def _room(tokenizer: Any, how: Encoding) -> int:
    """Tokens that the two texts of a pair may have together."""
    room: int = how.max_length - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 2:
        raise UsageError(f"max_length={how.max_length} leaves no room for two texts; a larger one is wanted")
    return room


def _shortened(tokenizer: Any, texts: list[str], most: int) -> list[str]:
    """The texts' beginnings, of so many tokens at most."""
    cut = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=most, return_offsets_mapping=True)
    ends = [offsets[-1][1] if offsets else 0 for offsets in cut["offset_mapping"]]
    return [text[:end] for text, end in zip(texts, ends, strict=True)]


def _answer(row: Row, offsets: Sequence[Span]) -> Span:
    """First and last token of the first accepted answer, or (0, 0) where the window does not hold all of it."""
    text, start = row.answers[0]
    end = start + len(text)
    inside = [token for token, span in enumerate(offsets) if span != OUTSIDE]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return (0, 0)
    touching = [token for token in inside if offsets[token][0] < end and offsets[token][1] > start]
    return (touching[0], touching[-1]) if touching else (0, 0)


def _generated(results_dir: Path) -> Path:
    """The demo's data, in a folder named after the generator's text, so that another version writes another folder."""
    directory = results_dir / "data" / f"demo-{file_digest(Path(demo_data.__file__))[:8]}"
    with locked(results_dir / "data" / ".lock", wait=True):
        if not directory.is_dir():
            with atomic_directory(directory) as temporary:
                demo_data.write(temporary)
    return directory
