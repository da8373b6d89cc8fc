"""The records of all runs as they are stored: a file each, or the lines of a packed study."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

from hifi_cli.errors import HifiError, UsageError
from hifi_cli.files import MAX_LINES_BYTES, json_object, read_json, read_lines
from hifi_cli.records.record import RunResult, validated
from hifi_cli.run_paths import RESULTS, RUN_PATTERNS
from hifi_cli.text import command_line

# The file of a packed study: one line a run, sorted by path.
PACKED = "runs.jsonl"
# Advice about a damaged line for a user who may not have the runs that were packed.
_ADVICE = "remove this line, or ask who packed the study"

# The record of each run by its path, or why it cannot be used. A line of a packed study that names
# no path is known by its number.
Records = dict[str, RunResult | HifiError]


def is_packed(directory: Path) -> bool:
    """Return whether `hifi results pack` wrote a directory."""
    return (directory / PACKED).is_file()


def refuse_packed(directory: Path) -> None:
    """Refuse a packed study as the place of new runs, which no table of it would show.

    Raises:
        UsageError: `directory` is one; the message says how its runs are copied elsewhere.
    """
    if is_packed(directory):
        merge = command_line(["hifi", "results", "merge", str(directory), "--results-dir", "DIR"])
        raise UsageError(
            f"{directory} is a packed study, which takes no new runs: name another --results-dir"
            f" ({merge} copies its runs there)"
        )


def results_dir_option(directory: Path) -> list[str]:
    """Return the option `--results-dir` of a printed command; none for the default directory."""
    if directory == RESULTS:
        return []
    return ["--results-dir", str(directory)]


def command_for_new_runs(
    words: Sequence[str], directory: Path, other_words: Sequence[str] = ()
) -> str:
    """Return a printed command that adds runs to a results directory.

    A packed study takes no new runs: a command before it copies the study's runs elsewhere.

    Args:
        words: of the command, up to its `--results-dir`.
        directory: the results directory, or the packed study.
        other_words: those behind `--results-dir`.
    """
    if not is_packed(directory):
        return command_line([*words, *results_dir_option(directory), *other_words])
    place = RESULTS
    if directory == place:
        place = Path("results-unpacked")
    # It is written out even where it is the default, so that both commands visibly name one place.
    there = ["--results-dir", str(place)]
    merge = command_line(["hifi", "results", "merge", str(directory), *there])
    new_runs = command_line([*words, *other_words, *there])
    return f"{merge}, then {new_runs}"


def read_records(directory: Path) -> Records:
    """Read the records of a results directory or a packed study, sorted by path.

    A damaged record does not stop the others from being read.
    """
    if is_packed(directory):
        return _read_packed(directory)
    return {path: _read_run(directory, path) for path in sorted(finished_runs(directory))}


def read_contents(directory: Path, paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what results.json holds of some runs, as it is stored.

    Args:
        directory: a results directory or a packed study.
        paths: the runs, which `read_records` could use.

    Raises:
        HifiError: a record cannot be read any more.
    """
    if not is_packed(directory):
        return {path: read_json(directory / f"{path}/results.json") for path in paths}
    contents: dict[str, dict[str, Any]] = {}
    for index, line in enumerate(read_lines(directory / PACKED, MAX_LINES_BYTES), start=1):
        # A damaged line is none of the runs.
        with suppress(HifiError):
            path, content = _path_and_record(line, f"{directory / PACKED}, line {index}")
            contents.setdefault(path, content)
    return {path: contents[path] for path in paths}


def finished_runs(directory: Path) -> Iterator[str]:
    """Yield the paths of all runs with a results.json."""
    for pattern in RUN_PATTERNS:
        # `glob` takes half the time of pathlib, which counts for thousands of runs.
        for file in glob(f"{pattern}/results.json", root_dir=directory):  # noqa: PTH207
            yield file.rpartition("/")[0]


def _read_run(directory: Path, path: str) -> RunResult | HifiError:
    """Return the record of a run, or why it cannot be used: a copy at another path would count twice."""
    # A text: joining paths would take longer than reading, in large studies.
    place = f"{directory}/{path}"
    try:
        content = read_json(directory / f"{path}/results.json")
        result = validated(RunResult, content, f"{place}/results.json")
    except HifiError as error:
        return error
    except OSError as error:
        # The error names the file.
        return UsageError(f"cannot be read: {error}")
    if result.run_path.as_posix() != path:
        own_place = directory / result.run_path
        return UsageError(
            f"{place} holds the run that belongs in {own_place}: move it there, or a copy away"
        )
    return result


def _read_packed(directory: Path) -> Records:
    """Return the records of a packed study."""
    found: Records = {}
    for index, line in enumerate(read_lines(directory / PACKED, MAX_LINES_BYTES), start=1):
        name = f"{PACKED}, line {index}"
        place = f"{directory / PACKED}, line {index}"
        try:
            path, content = _path_and_record(line, place)
            if path in found:
                raise UsageError(f"{place} is damaged ({_ADVICE}): {path} is there a second time")
        except HifiError as error:
            found[name] = error
            continue
        try:
            found[path] = _packed_record(path, content, place)
        except HifiError as error:
            found[path] = error
    # A study that was put together of others need not have its lines in this order.
    return {path: found[path] for path in sorted(found)}


def _path_and_record(line: bytes, place: str) -> tuple[str, dict[str, Any]]:
    """Return a line of a packed study: the path of a run, and its record.

    Raises:
        UsageError: it says something else; the message names `place`.
    """
    content = json_object(line, place, advice=_ADVICE)
    path = content.get("path")
    record = content.get("record")
    if not isinstance(path, str) or not isinstance(record, dict):
        raise UsageError(f"{place} is damaged ({_ADVICE}): it has no path and record")
    return path, record


def _packed_record(path: str, content: dict[str, Any], place: str) -> RunResult:
    """Return the record of a line.

    Raises:
        UsageError: it is damaged, or of another run than the line's path says.
    """
    result = validated(RunResult, content, place, advice=_ADVICE)
    if result.run_path.as_posix() != path:
        own_path = result.run_path.as_posix()
        raise UsageError(f"{place} holds the run that belongs in {own_path} as {path}: {_ADVICE}")
    return result
