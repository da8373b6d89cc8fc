"""Bring stored runs up to the keys of today's configuration: fill in those that are missing, and hash anew.

python scripts/renew_hashes.py results/study [--write]

A key that is added to `RunConfig` is part of every hash from then on, at its default too. Runs that
were stored before lack it. This script fills in the defaults, which is what those runs were trained
with, writes a value that has another name today by that name (`kernels: graphs` is `auto`, with the
version of its dropout masks), and computes `config_hash` and `setting_hash` again. It reads a packed study (runs.jsonl) or a
directory of runs (results.json and config.yaml). It prints which parts of the records change, and
refuses to write if there are others than these. Without `--write` nothing is written.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hifi_cli.config.base import flatten, parse
from hifi_cli.config.run_config import KERNELS_BEFORE, RunConfig, config_hash_of
from hifi_cli.files import json_text, read_json, write_text
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.stored import PACKED
from hifi_cli.run_paths import RUN_PATTERNS

Record = dict[str, Any]


def renewed(record: Record, hashes: dict[str, str]) -> Record:
    """Return a record with every key of the configuration, and with the hashes that belong to it.

    Args:
        record: the content of results.json.
        hashes: the former hashes of all runs with their new ones, for the runs that others start from.
    """
    config = with_missing_keys(record["config"])
    without_seed = {key: value for key, value in config.items() if key != "seed"}
    new = dict(record)
    new["config"] = config
    new["config_hash"] = config_hash_of(config)
    new["setting_hash"] = config_hash_of(without_seed)
    if record["config"].get("kernels") in KERNELS_BEFORE and "draws" in record:
        new["draws"] = draws_of_recorded_steps(record["draws"])
    if "started_from" in record:
        new["started_from"] = [renewed_link(link, hashes) for link in record["started_from"]]
    return new


def draws_of_recorded_steps(draws: dict[str, int]) -> dict[str, int]:
    """Return the draws of a run with `kernels: graphs`, which is what `auto` draws today on a GPU.

    Runs with the former `auto` keep version 1: they drew other dropout masks.
    """
    if "dropout on cuda" not in draws:
        return draws
    return draws | {"dropout on cuda": 2}


def renewed_link(link: dict[str, str], hashes: dict[str, str]) -> dict[str, str]:
    """Return the link to a run that another started from; of a run that is not here it stays."""
    former = link["config_hash"]
    return link | {"config_hash": hashes.get(former, former)}


def with_missing_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the defaults of the keys that it lacks, in today's order."""
    return parse(RunConfig, config, "a stored run").model_dump(mode="json")


def new_hashes(records: dict[str, Record]) -> dict[str, str]:
    """Return the new hash of each run by its former one."""
    hashes = {}
    for record in records.values():
        hashes[record["config_hash"]] = config_hash_of(with_missing_keys(record["config"]))
    return hashes


def changed_parts(old: Record, new: Record) -> Iterator[str]:
    """Name the parts in which two records differ, by dotted key; a part that is missing differs from every value."""
    old_parts = flatten(old)
    new_parts = flatten(new)
    missing = object()
    for key in {**old_parts, **new_parts}:
        before = old_parts.get(key, missing)
        after = new_parts.get(key, missing)
        # 1 and 1.0 are equal, and are two texts in a file.
        if before is missing or after is missing or json.dumps(before) != json.dumps(after):
            yield key


def unexpected_parts(old: Record, new: Record) -> list[str]:
    """Return the parts that differ and should not: all but hashes, missing keys and renamed values."""
    stored = flatten(old["config"])
    unexpected = []
    if _without_hashes(old) != _without_hashes(new):
        unexpected.append("started_from")
    for key in changed_parts(old, new):
        name = key.removeprefix("config.")
        is_filled_in = name != key and name not in stored
        had_former_kernels = stored.get("kernels") in KERNELS_BEFORE
        is_renamed = had_former_kernels and name in ("kernels", "draws.dropout on cuda")
        is_known = key in ("config_hash", "setting_hash", "started_from")
        if not (is_filled_in or is_renamed or is_known):
            unexpected.append(key)
    return unexpected


def _without_hashes(record: Record) -> list[dict[str, str]]:
    """The runs that a record's run started from, without their hashes."""
    links = record.get("started_from", [])
    return [{key: link[key] for key in link if key != "config_hash"} for link in links]


def read_packed(directory: Path) -> dict[str, Record]:
    """Read the records of a packed study by the runs' paths."""
    records = {}
    for line in (directory / PACKED).read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        records[run["path"]] = run["record"]
    return records


def write_packed(directory: Path, records: dict[str, Record]) -> None:
    """Write runs.jsonl again; predictions.parquet, which holds no configuration, stays as it is."""
    lines = [json.dumps({"path": path, "record": new}) + "\n" for path, new in records.items()]
    write_text(directory / PACKED, "".join(lines))


def read_runs(directory: Path) -> dict[str, Record]:
    """Read the records of a directory of runs by the runs' paths."""
    records = {}
    for pattern in RUN_PATTERNS:
        for file in sorted(directory.glob(f"{pattern}/results.json")):
            records[file.parent.relative_to(directory).as_posix()] = read_json(file)
    return records


def write_runs(directory: Path, records: dict[str, Record]) -> None:
    """Write config.yaml and results.json of each run again."""
    for path, record in records.items():
        run = RunDirectory(directory / path)
        run.write_config(parse(RunConfig, record["config"], path))
        write_text(run.results, json_text(record))


def main() -> int:
    """Compare, say what differs, and write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    is_packed = (arguments.directory / PACKED).is_file()
    records = read_packed(arguments.directory) if is_packed else read_runs(arguments.directory)
    hashes = new_hashes(records)
    new_records = {path: renewed(record, hashes) for path, record in records.items()}

    changes = Counter[str]()
    unexpected = []
    for path, record in records.items():
        changes.update(changed_parts(record, new_records[path]))
        unexpected += [f"{path}: {key}" for key in unexpected_parts(record, new_records[path])]
    print(f"{arguments.directory}: {len(records)} runs")
    for key, count in changes.items():
        print(f"  {key} differs in {count}")
    if unexpected:
        print("\n".join(["not expected, nothing is written:", *unexpected]))
        return 1
    print("  every other part of every record is the same")
    if arguments.write:
        write = write_packed if is_packed else write_runs
        write(arguments.directory, new_records)
        print("  written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
