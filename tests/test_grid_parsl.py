"""A grid on two of Parsl's blocks on this machine, one of whose worker pools is killed."""

import os
import signal
import time

import pytest
import yaml
from finished_runs import fingerprint, run_paths
from hifi_processes import finish, run_hifi, start, wait_for, write_grid_file

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.grids.jobs import JobOptions
from hifi_cli.grids.parsl_engine import ParslEngine

LONG = ["batch_size=8", "epochs=150", "heads.k=2", "scoring.samples=12"]
SITE = {
    "provider": {"kind": "LocalProvider", "init_blocks": 2, "min_blocks": 0, "max_blocks": 2},
    "executor": {"max_workers_per_node": 1, "cores_per_worker": 0.001, "heartbeat_period": 1, "heartbeat_threshold": 5},
}


def pools(root):
    """The worker pools of a grid that runs in this directory: the processes that Parsl's blocks consist of."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.endswith("process_worker_pool.py") for word in words[:2]) and str(root) in " ".join(words):
            found.append(process)
    return found


@pytest.fixture
def begun(encoders, data, tmp_path):
    """A grid under Parsl of which two runs have begun, and what its runs are without Parsl."""
    content = {"methods": ["hifi-layerwise", "full-ft"], "seeds": [1, 2], "tasks": ["rte"]}
    reference = tmp_path / "reference"
    reference.mkdir()
    code, said = run_hifi("grid", write_grid_file(reference, encoders, **content), "--data-dir", data, *LONG, cwd=reference)
    assert code == 0, said
    root = tmp_path / "parsl"
    root.mkdir()
    (root / "site.yaml").write_text(yaml.safe_dump(SITE))
    command = [
        "grid",
        write_grid_file(root, encoders, **content),
        "--engine",
        "parsl",
        "--site",
        "site.yaml",
        "--data-dir",
        data,
        *LONG,
    ]
    process = start(*command, cwd=root)
    wait_for(lambda: len(list((root / "results").rglob("metrics.jsonl"))) >= 2 or process.poll() is not None, timeout=120)
    assert process.poll() is None, finish(process)
    return root, process, command, [fingerprint(path) for path in run_paths(reference)]


def test_workers_are_told_to_encrypt_whatever_parsls_default_is(tmp_path, monkeypatch):
    """Tasks come over the network and are executed."""
    import parsl

    assert {
        name: registry.load("sites", name)["executor"].get("encrypted") for name in registry.names("sites")
    } == dict.fromkeys(registry.names("sites"), True)
    options = {}

    def executor(**arguments):
        options.update(arguments)
        raise TypeError("no such argument")

    monkeypatch.setattr(parsl, "HighThroughputExecutor", executor)
    (tmp_path / "site.yaml").write_text("provider: {kind: LocalProvider}\n")
    with pytest.raises(UsageError, match="no such argument"):
        ParslEngine(JobOptions(tmp_path), str(tmp_path / "site.yaml"), tmp_path / "runs")
    assert options["encrypted"] is True


@pytest.mark.slow
def test_the_cells_of_a_killed_pool_finish_elsewhere(begun):
    root, process, _, wanted = begun
    assert list(root.rglob("certificates/**/*.key_secret"))  # CurveZMQ's
    victim, *others = pools(root)
    assert len(others) == 1
    victim.kill()
    code, said = finish(process, timeout=400)
    assert code == 0, said
    assert "4 of 4 done, 0 failed" in said
    assert [fingerprint(path) for path in run_paths(root)] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True])
def test_a_stopped_grid_gives_its_blocks_back_and_goes_on(begun, everything):
    root, process, command, wanted = begun
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM) if everything else process.send_signal(signal.SIGTERM)
    code, said = finish(process, timeout=90)
    assert code == 143, said
    assert time.monotonic() - began < 60
    wait_for(lambda: not pools(root))
    code, said = finish(start(*command, cwd=root), timeout=400)
    assert code == 0, said
    assert [fingerprint(path) for path in run_paths(root)] == wanted
