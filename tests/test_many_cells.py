"""Grids of many cells: what is read once and not per cell, counted by calls."""

import hashlib
from contextlib import contextmanager

from finished_runs import read_json
from synthetic_runs import write_run

from hifi_cli.config import registry
from hifi_cli.files import write_json
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import spec as grid_spec
from hifi_cli.heads import select as head_selection
from hifi_cli.results.study import Study


def cells(seeds, **changes):
    spec = grid_spec.load("hifi-2", {"seeds": list(range(1, seeds + 1)), **changes})
    return grid_cells.cells(spec, "hifi-2")


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


def test_a_finished_run_is_read_without_parsing_its_config(tmp_path, monkeypatch):
    parsed, parse = [], registry.parse_yaml
    monkeypatch.setattr(registry, "parse_yaml", lambda text, path: parsed.append(path) or parse(text, path))
    directories = [store(cell, tmp_path) for cell in cells(seeds=2, tasks=["rte"], methods=["bitfit", "lora"])]
    parsed.clear()
    paths = [directory.path.relative_to(tmp_path).as_posix() for directory in directories]
    assert list(Study(tmp_path).runs.path) == sorted(paths)
    assert not parsed


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
