"""A grid through Parsl: what a site asks for, and two blocks on this machine, one of whose worker pools is killed."""

import os
import re
import signal
from types import SimpleNamespace

import pytest
import yaml
from hifi_processes import finish, run_hifi, start, wait_for, write_grid_file

from hifi_cli.errors import UsageError
from hifi_cli.grids.cluster import site_executor

pytestmark = pytest.mark.slow

LONG = ["batch_size=8", "epochs=150", "heads.k=2", "scoring.samples=12"]
SITE = {
    "provider": {"kind": "LocalProvider", "init_blocks": 2, "min_blocks": 0, "max_blocks": 2},
    "executor": {
        "address": "127.0.0.1",
        "max_workers_per_node": 1,
        "cores_per_worker": 0.001,
        "heartbeat_period": 1,
        "heartbeat_threshold": 5,
    },
}


@pytest.fixture
def parsl_arguments(monkeypatch, tmp_path):
    """The arguments that a site gives to Parsl's executor and configuration, neither of which is made."""
    import parsl

    class Stopped(Exception):
        pass

    def config(*, executors, **arguments):
        raise Stopped(executors[0].arguments, arguments)

    monkeypatch.setattr(
        parsl, "HighThroughputExecutor", lambda **arguments: SimpleNamespace(arguments=arguments)
    )
    monkeypatch.setattr(parsl, "Config", config)

    def arguments(site):
        with pytest.raises(Stopped) as stopped, site_executor(site, tmp_path / "runs"):
            pass
        return stopped.value.args

    return arguments


def test_the_slurm_site_requests_its_gpus_and_cores_for_every_srun(
    tmp_path, monkeypatch, parsl_arguments
):
    from parsl.providers import SlurmProvider

    executor, config = parsl_arguments("slurm")
    assert config["strategy"] == "htex_auto_scale"
    assert (executor["cpu_affinity"], executor["available_accelerators"]) == ("block", 4)
    provider = executor["provider"]
    monkeypatch.setattr(SlurmProvider, "execute_wait", lambda *_: (0, "Submitted batch job 7", ""))
    provider.script_dir = str(tmp_path)
    provider.submit("pool", 1)
    (script,) = (path.read_text() for path in tmp_path.glob("parsl.slurm.*"))
    for line in ("#SBATCH --gpus-per-node=4", "#SBATCH --cpus-per-task=32", "#SBATCH --time=720"):
        assert line in script.splitlines()
    assert script.index("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK") < script.index(
        "srun --ntasks 1"
    )


def test_a_launcher_takes_arguments(tmp_path, parsl_arguments):
    provider = "{kind: SlurmProvider, launcher: {kind: SrunLauncher, overrides: --cpu-bind=none}}"
    (tmp_path / "site.yaml").write_text(f"provider: {provider}")
    executor, _ = parsl_arguments(str(tmp_path / "site.yaml"))
    assert executor["provider"].launcher.overrides == "--cpu-bind=none"


@pytest.mark.parametrize(
    ("site", "line"),
    [
        ("provider: {kind: SlurmProvider, max_blocks: many}", 'argument "max_blocks"'),
        ("provider: {kind: SlurmProvide}", "SlurmProvide"),
        (
            "provider: {kind: LocalProvider, launcher: {kind: SrunLauncher, override: x}}",
            "override",
        ),
        ("{provider: {kind: LocalProvider}, executor: {heartbeats: 1}}", "heartbeats"),
        ("{provider: {kind: LocalProvider}, executors: {}}", "did you mean 'executor'"),
    ],
)
def test_a_wrong_site_is_one_line(tmp_path, site, line):
    (tmp_path / "site.yaml").write_text(site)
    with (
        pytest.raises(UsageError, match=line),
        site_executor(str(tmp_path / "site.yaml"), tmp_path / "runs"),
    ):
        pass


def test_the_kubernetes_site_mounts_its_volume_and_limits_its_gpus(monkeypatch, parsl_arguments):
    from unittest.mock import MagicMock

    from parsl.providers.kubernetes import kube

    client = MagicMock()
    monkeypatch.setattr(kube, "client", client, raising=False)
    monkeypatch.setattr(kube, "config", MagicMock(), raising=False)
    monkeypatch.setattr(kube, "_kubernetes_enabled", True)
    parsl_arguments("kubernetes")[0]["provider"].submit("pool", 1)
    client.V1VolumeMount.assert_called_once_with(mount_path="/work", name="hifi-work")
    client.V1PersistentVolumeClaimVolumeSource.assert_called_once_with(claim_name="hifi-work")
    limits = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    client.V1ResourceRequirements.assert_called_once_with(limits=limits, requests=limits)


def test_a_grid_stops_if_the_scheduler_refuses_its_blocks(tmp_path, monkeypatch):
    """Instead of submitting its commands again and again."""
    programs = tmp_path / "bin"
    programs.mkdir()
    refusals = {"sbatch": "sbatch: error: Invalid account", "sacct": "no accounting", "squeue": ""}
    for name, line in refusals.items():
        (programs / name).write_text(f"#!/bin/sh\necho '{line}' >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "site.yaml").write_text(
        "{provider: {kind: SlurmProvider}, executor: {max_workers_per_node: 1}}"
    )
    command = ["grid", "demo", "--site", "site.yaml", "--methods", "hifi-layerwise"]
    code, said = run_hifi(*command, cwd=tmp_path)
    assert code == 3, said
    line = "^hifi: site site.yaml: no node to run on: .*sbatch: error: Invalid account"
    assert re.search(line, said, re.MULTILINE), said


def pools(root):
    """The worker pools of a grid that runs in this directory: the processes that Parsl's blocks consist of."""
    import psutil

    seen = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        is_pool = any(word.endswith("process_worker_pool.py") for word in words[:2])
        if is_pool and str(root) in " ".join(words):
            seen.append(process)
    return seen


@pytest.mark.exhaustive
def test_a_stopped_grid_gives_its_blocks_back_and_goes_on(encoders, data, tmp_path):
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(SITE))
    grid = write_grid_file(
        tmp_path, encoders, methods=["hifi-layerwise", "full-ft"], tasks=["rte"], seeds=[1]
    )
    command = ["grid", grid, "--site", "site.yaml", "--data-dir", data, *LONG]
    process = start(*command, cwd=tmp_path)
    wait_for(
        lambda: len(list(tmp_path.rglob("metrics.jsonl"))) == 2 or process.poll() is not None,
        timeout=120,
    )
    assert list(
        tmp_path.rglob("certificates/**/*.key_secret")
    )  # CurveZMQ's: tasks that come over the network are executed
    process.send_signal(signal.SIGTERM)
    code, said = finish(process, timeout=60)
    assert code == 143, said
    wait_for(lambda: not pools(tmp_path))
    code, said = finish(start(*command, cwd=tmp_path), timeout=400)
    assert code == 0 and "2 of 2 done" in said, said
