"""A grid on two of Parsl's blocks on this machine, one of whose worker pools is killed."""

import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from finished_runs import fingerprint, run_paths
from hifi_cli.grids.jobs import JobOptions
from hifi_cli.grids.parsl_engine import ParslEngine
from hifi_cli.grids.site_worker import worker_environment
from hifi_processes import environment, finish, run_hifi, start, wait_for, write_grid_file

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError

pytestmark = pytest.mark.slow

LONG = ["batch_size=8", "epochs=150", "heads.k=2", "scoring.samples=12"]
SITE = {
    "provider": {"kind": "LocalProvider", "init_blocks": 2, "min_blocks": 0, "max_blocks": 2},
    "executor": {
        "max_workers_per_node": 1,
        "available_accelerators": 0,
        "cores_per_worker": 0.001,
        "heartbeat_period": 1,
        "heartbeat_threshold": 5,
    },
}


def pools(root):
    """The worker pools of a grid that runs in this directory: the processes that Parsl's blocks consist of."""
    import psutil

    seen = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.endswith("process_worker_pool.py") for word in words[:2]) and str(root) in " ".join(words):
            seen.append(process)
    return seen


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
    with pytest.raises(UsageError, match="no such argument"):
        engine(tmp_path, "provider: {kind: LocalProvider}")
    assert options["encrypted"] is True


def engine(folder, text):
    """The engine of a site with this YAML."""
    (folder / "site.yaml").write_text(text)
    return ParslEngine(JobOptions(folder), str(folder / "site.yaml"), folder / "runs")


@pytest.fixture
def parsl_arguments(monkeypatch):
    """The arguments that a site gives to Parsl's executor and configuration, neither of which is made."""
    import parsl

    class Stopped(Exception):
        pass

    def executor(**arguments):
        return SimpleNamespace(arguments=arguments, workers_per_node=arguments["max_workers_per_node"])

    def config(*, executors, **arguments):
        raise Stopped(executors[0].arguments, arguments)

    monkeypatch.setattr(parsl, "HighThroughputExecutor", executor)
    monkeypatch.setattr(parsl, "Config", config)

    def arguments(make_engine, *words):
        with pytest.raises(Stopped) as stopped:
            make_engine(*words)
        return stopped.value.args

    return arguments


def shipped_site(folder, name):
    return ParslEngine(JobOptions(folder), name, folder / "runs")


def test_the_slurm_site_requests_its_gpus_and_cores_for_every_srun(tmp_path, monkeypatch, parsl_arguments):
    from parsl.providers import SlurmProvider

    executor, config = parsl_arguments(shipped_site, tmp_path, "slurm")
    assert config["strategy"] == "htex_auto_scale"
    assert (executor["cpu_affinity"], executor["max_workers_per_node"]) == ("block", 4)
    assert "available_accelerators" not in executor  # Parsl would count the cards of the node, not those of the job
    provider = executor["provider"]
    monkeypatch.setattr(SlurmProvider, "execute_wait", lambda *_: (0, "Submitted batch job 7", ""))
    provider.script_dir = str(tmp_path)
    provider.submit("pool", 1)
    (script,) = (path.read_text() for path in tmp_path.glob("parsl.slurm.*"))
    for line in ("#SBATCH --gpus-per-node=4", "#SBATCH --cpus-per-task=32", "#SBATCH --time=720"):
        assert line in script.splitlines()
    assert script.index("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK") < script.index("srun --ntasks 1")


def test_a_launcher_takes_arguments(tmp_path, parsl_arguments):
    provider = "{kind: SlurmProvider, launcher: {kind: SrunLauncher, overrides: --cpu-bind=none}}"
    executor, _ = parsl_arguments(engine, tmp_path, f"{{provider: {provider}, executor: {{available_accelerators: 1}}}}")
    assert executor["provider"].launcher.overrides == "--cpu-bind=none"


@pytest.mark.parametrize(
    ("site", "line"),
    [
        ("provider: {kind: SlurmProvider, walltime: 12:00:00}", r"walltime is the number 43200.*put it in quotes"),
        ("provider: {kind: SlurmProvider, max_blocks: many}", 'argument "max_blocks"'),
        ("provider: {kind: SlurmProvide}", "did you mean 'SlurmProvider'"),
        ("provider: {kind: LocalProvider, launcher: {kind: SrunLaunche}}", "did you mean 'SrunLauncher'"),
        ("provider: {kind: LocalProvider, launcher: {kind: SrunLauncher, override: x}}", "override"),
        (
            "{provider: {kind: LocalProvider}, executor: {available_accelerators: 4, max_workers_per_node: 8}}",
            "max_workers_per_node is 8, but available_accelerators has 4",
        ),
        ("{provider: {kind: LocalProvider, max_blocks: 2}, executor: {available_accelerators: 1}}", "set max_blocks to 1"),
        ("{provider: {kind: SlurmProvider}, executor: {available_accelerators: auto}}", "give the number of GPUs per node"),
        ("{provider: {kind: LocalProvider}, executor: {available_accelerators: -1}}", "available_accelerators"),
        ("{provider: {kind: LocalProvider}, executor: {heartbeats: 1}}", "heartbeats"),
    ],
)
def test_a_wrong_site_is_one_line(tmp_path, site, line):
    with pytest.raises(UsageError, match=line):
        engine(tmp_path, site)


def test_the_site_of_this_machine_has_its_gpus(tmp_path, monkeypatch, parsl_arguments):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    executor, _ = parsl_arguments(shipped_site, tmp_path, "node")
    assert executor["max_workers_per_node"] == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MissingError, match="no visible GPU"):
        shipped_site(tmp_path, "node")


def test_the_kubernetes_site_mounts_its_volume_and_limits_its_gpus(tmp_path, monkeypatch, parsl_arguments):
    from unittest.mock import MagicMock

    from parsl.providers.kubernetes import kube

    if not kube._kubernetes_enabled:
        with pytest.raises(MissingError, match="pip install kubernetes"):
            shipped_site(tmp_path, "kubernetes")
    client = MagicMock()
    monkeypatch.setattr(kube, "client", client, raising=False)
    monkeypatch.setattr(kube, "config", MagicMock(), raising=False)
    monkeypatch.setattr(kube, "_kubernetes_enabled", True)
    provider = parsl_arguments(shipped_site, tmp_path, "kubernetes")[0]["provider"]
    provider.submit("pool", 1)
    client.V1VolumeMount.assert_called_once_with(mount_path="/work", name="hifi-work")
    client.V1PersistentVolumeClaimVolumeSource.assert_called_once_with(claim_name="hifi-work")
    limits = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    client.V1ResourceRequirements.assert_called_once_with(limits=limits, requests=limits)


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Puts an nvidia-smi that lists so many GPUs into PATH."""

    def install(number):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        lines = "".join(f"echo 'GPU {index}: Some Card (UUID: GPU-{index})'\n" for index in range(number))
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install


def test_a_worker_gets_the_gpu_that_the_site_promises(gpus, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    cores = len(os.sched_getaffinity(0))

    def devices(accelerators, workers=4):
        variables = [worker_environment(accelerators, 1, rank, workers) for rank in range(workers)]
        assert {environment["OMP_NUM_THREADS"] for environment in variables} == {str(max(1, cores // workers))}
        return [environment["CUDA_VISIBLE_DEVICES"] for environment in variables]

    gpus(4)
    assert devices(4) == ["0", "1", "2", "3"]
    assert devices(["0", "0", "2", "2"]) == ["0", "0", "2", "2"]
    assert devices(0) == [""] * 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")  # as Slurm sets it for a part of a node
    assert devices(2, workers=2) == ["4", "6"]


def test_a_worker_becomes_the_jobs_command(gpus):
    gpus(2)
    command = [sys.executable, "-m", "hifi_cli.grids.site_worker", "2", "1", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES $$"]
    variables = environment(PARSL_WORKER_RANK="1", PARSL_WORKER_COUNT="2")
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read().split() == ["1", str(process.pid)]


@pytest.mark.parametrize(
    ("accelerators", "workers", "line"),
    [
        (4, 4, r"has 2 visible GPUs \(0, 1\), but the site promises 4 GPUs"),
        (["0", "3"], 2, "but the site promises the GPUs 0, 3"),
        (2, 1, "only 1 workers for the 2 that the site promises"),
        (None, 2, "which the site does not mention"),
    ],
)
def test_a_worker_without_its_gpu_is_an_error(gpus, accelerators, workers, line):
    gpus(2)
    with pytest.raises(MissingError, match=line):
        worker_environment(accelerators, 1, 0, workers)


def test_a_site_without_gpus_says_nothing_about_them(gpus):
    gpus(0)
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(None, 1, 0, 1)


def test_a_grid_stops_at_a_node_with_fewer_gpus_than_promised(gpus, tmp_path):
    """In a real worker of Parsl's, of two runs that would otherwise both fail."""
    gpus(1)
    site = "{provider: {kind: LocalProvider}, executor: {available_accelerators: 2, cores_per_worker: 0.001}}"
    (tmp_path / "site.yaml").write_text(site)
    command = ["grid", "demo", "--engine", "parsl", "--site", "site.yaml", "--tasks", "demo-entailment"]
    code, said = run_hifi(*command, "--methods", "full-ft,bitfit", cwd=tmp_path)
    assert code == 3, said
    assert "has 1 visible GPUs (0), but the site promises 2 GPUs" in said
    assert not list((tmp_path / "results").rglob("failure.json"))


def test_a_grid_stops_if_the_scheduler_refuses_its_blocks(tmp_path, monkeypatch):
    """Instead of submitting its jobs again and again."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in {"sbatch": "sbatch: error: Invalid account", "sacct": "no accounting", "squeue": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\necho '{line}' >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "site.yaml").write_text("{provider: {kind: SlurmProvider}, executor: {max_workers_per_node: 1}}")
    command = ["grid", "demo", "--engine", "parsl", "--site", "site.yaml", "--methods", "hifi-layerwise"]
    code, said = run_hifi(*command, cwd=tmp_path)
    assert code == 3, said
    assert re.search("^hifi: site site.yaml: no node to run on: .*sbatch: error: Invalid account$", said, re.MULTILINE), said
    assert not list((tmp_path / "results").rglob("failure.json"))


@pytest.mark.exhaustive
def test_the_cells_of_a_killed_pool_finish_elsewhere(begun):
    root, process, _, expected = begun
    assert list(root.rglob("certificates/**/*.key_secret"))  # CurveZMQ's
    victim, *others = pools(root)
    assert len(others) == 1
    victim.kill()
    code, said = finish(process, timeout=400)
    assert code == 0, said
    assert "4 of 4 done, 0 failed" in said
    assert [fingerprint(path) for path in run_paths(root)] == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("everything", [False, True])
def test_a_stopped_grid_gives_its_blocks_back_and_goes_on(begun, everything):
    root, process, command, expected = begun
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM) if everything else process.send_signal(signal.SIGTERM)
    code, said = finish(process, timeout=90)
    assert code == 143, said
    assert time.monotonic() - began < 60
    wait_for(lambda: not pools(root))
    code, said = finish(start(*command, cwd=root), timeout=400)
    assert code == 0, said
    assert [fingerprint(path) for path in run_paths(root)] == expected
