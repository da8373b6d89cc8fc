"""Grids of many cells: what is read once and not per cell, counted by calls."""

import builtins
import hashlib
import io
import os
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from finished_runs import flip_bit, read_json
from hifi_cli.records import run_status
from synthetic_runs import write_run

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.files import write_json
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_display, grid_spec, scheduler
from hifi_cli.grids.jobs import JobOptions
from hifi_cli.results.directory import RunDirectory, run_directories
from hifi_cli.results.status import RunState, status
from hifi_cli.results.study import Study
from hifi_cli.training import head_selection


def cells(seeds, **changes):
    spec = grid_spec.with_changes(grid_spec.load("hifi-2"), {"seeds": list(range(1, seeds + 1)), **changes})
    return grid_cells.cells(grid_spec.resolve(spec, "hifi-2"))


def store(cell, results_dir, delta=b"delta"):
    """A finished run as `hifi train` stores it: results.json holds the configuration and the digest of the delta."""
    config, directory = cell.config, cell.run_directory(results_dir)
    write_run(results_dir, config.method, config.task, config.seed, 0.5)  # in the directory of the same names
    directory.write_config(config)
    directory.delta.write_bytes(delta)
    content = read_json(directory.results) | {
        "config": config.model_dump(mode="json"),
        "config_hash": config.hash,
        "delta_sha256": hashlib.sha256(delta).hexdigest(),
        "delta_bytes": len(delta),
    }
    write_json(directory.results, content)
    return directory


@pytest.fixture
def opened(monkeypatch):
    """How often each file is opened for reading, by its name."""
    counts, open_file = Counter(), io.open

    def count(file, *arguments, **options):
        counts[Path(os.fsdecode(file)).name if not isinstance(file, int) else file] += 1
        return open_file(file, *arguments, **options)

    monkeypatch.setattr(io, "open", count)
    monkeypatch.setattr(builtins, "open", count)
    return counts


def test_each_yaml_is_opened_and_parsed_once_however_many_seeds_there_are(opened, monkeypatch):
    registry._read_yaml.cache_clear()
    lookups, find = Counter(), registry.find
    monkeypatch.setattr(registry, "find", lambda *words: lookups.update([words]) or find(*words))
    few = cells(seeds=1)
    assert {name for name in opened if str(name).endswith(".yaml")} >= {"hifi-2.yaml", "hifi.yaml", "rte.yaml", "bitfit.yaml"}
    methods = {cell.method for cell in few}
    assert all(opened[f"{method}.yaml"] == 1 for method in methods)
    lookups_of_few = lookups.copy()
    opened.clear(), lookups.clear()
    many = cells(seeds=40)
    assert len(many) == 40 * len(few)
    assert lookups == lookups_of_few  # none is looked up per cell
    assert not [name for name in opened if str(name).endswith(".yaml")]


def test_a_finished_run_is_read_without_parsing_its_config(tmp_path, monkeypatch):
    parsed, parse = [], registry.parse_yaml
    monkeypatch.setattr(registry, "parse_yaml", lambda text, path: parsed.append(path) or parse(text, path))
    directories = [store(cell, tmp_path) for cell in cells(seeds=2, tasks=["rte"], methods=["bitfit", "lora"])]
    parsed.clear()
    paths = [directory.path.relative_to(tmp_path).as_posix() for directory in directories]
    assert list(Study(tmp_path).runs.path) == sorted(paths)
    assert not parsed


def test_a_copied_run_and_a_changed_result_are_found(tmp_path):
    first, second = (cell.run_directory(tmp_path) for cell in cells(seeds=2, tasks=["rte"], methods=["bitfit"]))
    store(cells(seeds=1, tasks=["rte"], methods=["bitfit"])[0], tmp_path)
    second.path.mkdir()
    for file in (first.results, first.config_file):
        (second.path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UsageError, match="belongs in"):
        second.read_result(tmp_path)
    flip_bit(first.results)
    assert status(first).state is RunState.DAMAGED


def test_only_deltas_of_another_size_or_a_later_time_are_hashed(tmp_path, monkeypatch):
    hashed, file_digest = [], run_status.file_digest
    monkeypatch.setattr(run_status, "file_digest", lambda path: hashed.append(path) or file_digest(path))
    (cell,) = cells(seeds=1, tasks=["rte"], methods=["bitfit"])
    directory = store(cell, tmp_path, delta=b"some numbers")

    def state():
        return status(directory, check_delta=True).state

    assert (state(), hashed) == (RunState.DONE, [])
    directory.delta.touch()  # as a copy may leave it
    os.utime(directory.delta, ns=(directory.results.stat().st_mtime_ns + 10**9,) * 2)
    assert (state(), len(hashed)) == (RunState.DONE, 1)
    flip_bit(directory.delta)
    os.utime(directory.delta, ns=(directory.results.stat().st_mtime_ns + 10**9,) * 2)
    assert (state(), len(hashed)) == (RunState.DAMAGED, 2)
    directory.delta.write_bytes(b"less")
    assert (state(), len(hashed)) == (RunState.DAMAGED, 2)
    directory.delta.unlink()
    assert (state(), len(hashed)) == (RunState.DONE, 2)


def test_runs_are_listed_wherever_they_are(tmp_path):
    result = [store(cell, tmp_path) for cell in cells(seeds=1, tasks=["rte"], methods=["bitfit"])]
    for place in ("runs/hifi/bert-large/rte/bitfit/a-variant/seed1", "runs/moved"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "failure.json").write_text("{}")
        result.append(RunDirectory(tmp_path / place))
    own = result[0].user_files / "tasks" / "config.yaml"  # a user's task of that name
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    assert run_directories(tmp_path) == sorted(result, key=lambda run: run.path)


class Clock:
    """The scheduler's clock and its `wait`, which ends after half a second of this clock."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(scheduler, "time", self)
        monkeypatch.setattr(scheduler, "wait", self.wait)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait(self, futures, timeout, return_when):
        self.sleep(timeout)
        return set(), set(futures)


class Stop(Exception):
    """Ends a grid."""


class NothingEnds:
    """An engine whose processes run until the grid is stopped."""

    processes = 4

    def __init__(self):
        self.jobs = []

    def submit(self, job, log):
        self.jobs.append(job)
        return Future()

    def stop(self): ...

    def close(self): ...


def watch(tmp_path, clock, seconds, at_times):
    """Run a grid of 5 tasks with 4 processes for some seconds, and call `at_times[seconds]`; returns the scheduler."""
    grid = scheduler.Scheduler(cells(seeds=20, methods=["bitfit", "lora"]), JobOptions(tmp_path), tmp_path / "logs")
    engine, end = NothingEnds(), clock.now + seconds

    def show(progress):
        for moment in [moment for moment in at_times if clock.now >= 1000 + moment]:
            at_times.pop(moment)(engine, progress)
        grid_display.status_line(progress)
        if clock.now >= end:
            raise Stop

    with pytest.raises(Stop):
        grid.run(engine, show)
    return grid


def test_a_running_process_is_polled_less_and_less(tmp_path, monkeypatch):
    looks, minutes, is_file = [], [], Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: looks.append(path) or is_file(path))

    def minute(engine, progress):
        minutes.append(len(looks))
        looks.clear()

    clock = Clock(monkeypatch)
    watch(tmp_path, clock, 240, {0: minute, **{60 * number: minute for number in (1, 2, 3)}})
    first, *later = minutes[1:]
    assert first <= 6 * NothingEnds.processes  # 6 for each process, however many cells it has
    assert max(later) <= 2 * NothingEnds.processes
    assert min(later) > 0


def test_a_finished_cell_of_a_running_process_is_found_and_polling_starts_anew(tmp_path, monkeypatch):
    clock, result = Clock(monkeypatch), []

    def finish(number):
        return lambda engine, progress: store(engine.jobs[0].cells[number], tmp_path)

    def look(engine, progress):
        result.append([engine.jobs[0].cells.index(cell) for cell in progress.finished])

    watch(tmp_path, clock, 140, {70: finish(0), 101: look, 104: finish(1), 112: look})
    assert result == [[0], [0, 1]]  # 31 and 8 seconds later


def test_cells_of_a_stopped_grid_are_counted_at_once(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    grid = watch(tmp_path, clock, 100, {100: lambda engine, _: store(engine.jobs[0].cells[0], tmp_path)})
    assert len(grid.progress.finished) == 1


def test_a_status_line_reads_no_file(tmp_path, opened, monkeypatch):
    grid = scheduler.Scheduler(cells(seeds=20), JobOptions(tmp_path), tmp_path / "logs")
    grid.plan(processes=4)
    stats, stat = [], Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **options: stats.append(path) or stat(path, **options))
    opened.clear()
    line = grid_display.status_line(grid.progress)
    assert line.startswith(f"0/{len(grid.progress.cells)} done")
    assert not opened
    assert not stats


def test_a_run_that_was_never_begun_costs_one_stat(tmp_path, monkeypatch):
    stats, stat = [], Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **options: stats.append(path) or stat(path, **options))
    some = cells(seeds=20)
    stats.clear()
    scheduler.Scheduler(some, JobOptions(tmp_path), tmp_path / "logs").plan(processes=4)
    assert len(stats) == len(some)


def test_scorings_of_different_tasks_do_not_wait_for_each_other(make, resources, monkeypatch):
    locks, computed, locked = [], [], head_selection.locked
    compute = head_selection.compute_scores

    @contextmanager
    def nested(path, *, wait):
        """While one task's scores are computed, the other's lock must be free."""
        locks.append(path)
        with locked(path, wait=False) as is_held:
            assert is_held
            yield wait

    def compute_while_another_is(config, resources):
        computed.append(config.task)
        if len(computed) == 1:
            head_selection.scores(make("hifi-layerwise", task="cola"), resources)
        return compute(config, resources)

    monkeypatch.setattr(head_selection, "locked", nested)
    monkeypatch.setattr(head_selection, "compute_scores", compute_while_another_is)
    head_selection.scores(make("hifi-layerwise", task="rte"), resources)
    head_selection.scores(make("hifi-midtop", task="rte", seed=2), resources)
    assert computed == ["rte", "cola"]  # the second method and seed read the same scores
    assert locks[0] == locks[2] != locks[1]
