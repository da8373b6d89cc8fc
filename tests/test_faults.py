"""What may happen to a run: kills, signals, rivals, full disks, damaged files, too little memory. Nothing is lost or wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from conftest import QUICK
from outside import (
    arrays,
    environment,
    fingerprint,
    finish,
    flip,
    hifi,
    kill_group,
    kill_until_done,
    start,
    truncate,
    wait_for,
    whole,
)

from hifi_cli.errors import RunFailed, Terminated
from hifi_cli.runs import run as runs
from hifi_cli.runs.directory import RunDirectory
from hifi_cli.runs.workspace import Workspace

LONG = ["batch_size=8", "heads.k=2", "scoring.samples=12", "log_every=7", "epochs=60"]


def words(encoders, data, *more, method="hifi-layerwise"):
    return ["train", "--task", "rte", "--method", method, "--backbone", encoders["bert"], "--data-dir", data, *more]


def place(root, method="hifi-layerwise"):
    return Path(root) / "results/runs/hifi/tiny-bert/rte" / method / "seed1"


@pytest.fixture(scope="session")
def uninterrupted(encoders, data, tmp_path_factory):
    """A long run's results without any interruption."""
    root = tmp_path_factory.mktemp("uninterrupted")
    code, said = hifi(*words(encoders, data, *LONG), cwd=root)
    assert code == 0, said
    return fingerprint(place(root))


def survives(kills, seed, longest, encoders, data, root):
    command = words(encoders, data, *LONG)
    killed = kill_until_done(command, place(root), cwd=root, kills=kills, seed=seed, longest=longest)
    code, said = hifi(*command, cwd=root)
    assert code == 0, said
    left = [path.name for path in place(root).rglob(".*") if path.is_file()]
    assert left in ([], [".lock"])
    return killed


def test_stopped_and_killed_a_run_ends_as_if_nothing_had_happened(encoders, data, tmp_path, uninterrupted):
    stopped_by(signal.SIGTERM, 143, encoders, data, tmp_path)
    assert survives(1, 1, 1.0, encoders, data, tmp_path) == 1
    assert fingerprint(place(tmp_path)) == uninterrupted


@pytest.mark.slow
def test_30_kills_at_random_moments(encoders, data, tmp_path, uninterrupted):
    killed, root = 0, tmp_path
    while killed < 30:  # a run that is finished is begun again
        root = tmp_path / str(killed)
        root.mkdir()
        killed += survives(30 - killed, killed, 2.5, encoders, data, root)
        assert fingerprint(place(root)) == uninterrupted
    print(f"\n{killed} kills of a training run survived")


@pytest.mark.slow
def test_an_interrupted_run_goes_on(encoders, data, tmp_path, uninterrupted):
    stopped_by(signal.SIGINT, 130, encoders, data, tmp_path)
    assert hifi(*words(encoders, data, *LONG), cwd=tmp_path)[0] == 0
    assert fingerprint(place(tmp_path)) == uninterrupted


def stopped_by(number, code, encoders, data, root):
    """A signal leaves a checkpoint, a message and its exit code."""
    process = start(*words(encoders, data, *LONG), cwd=root)
    wait_for(lambda: (place(root) / "metrics.jsonl").is_file())
    time.sleep(0.3)
    process.send_signal(number)
    found, said = finish(process)
    assert found == code
    assert "stopped; the same command goes on from its checkpoint" in said
    assert "Traceback" not in said
    assert (place(root) / "checkpoints" / "last.pt").is_file()
    assert not (place(root) / "results.json").exists()


SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("diff-pruning", "child-tuning-f", "mixout", "lora", "full-ft")]


@pytest.mark.parametrize("method", ["eh-ft-bitfit", "child-tuning-d", *SLOWER])
def test_a_stop_after_any_step_costs_nothing(make, data, tmp_path, method, monkeypatch):
    """Also in the middle of an epoch, at the end of a stage, and during evaluation."""
    from hifi_cli.runs import loop
    from hifi_cli.runs.engine import Engine

    config = make(method, "dropout=0.1", "log_every=4")
    whole_run = runs.run(config, Workspace(tmp_path / "whole", data))
    step, predict, made = loop.Stretch.step, Engine.predict, []

    def stopping_step(self, batch, number):
        loss = step(self, batch, number)
        made.append(number)
        if len(made) in (1, 4, 6, 8, 11):  # 12 steps, 6 an epoch; stage 1 of two is the first step alone
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    def stopping_predict(self, examples):
        if len(made) == 12 and "predicted" not in made:
            made.append("predicted")
            os.kill(os.getpid(), signal.SIGTERM)
        return predict(self, examples)

    monkeypatch.setattr(loop.Stretch, "step", stopping_step)
    monkeypatch.setattr(Engine, "predict", stopping_predict)
    previous = signal.signal(signal.SIGTERM, _terminate)
    stops = 0
    try:
        while True:
            try:
                results = runs.run(config, Workspace(tmp_path / "stopped", data))
                break
            except Terminated:
                stops += 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert [one for one in made if one != "predicted"] == list(range(12))  # no step twice
    assert stops == 6
    directories = [RunDirectory.of(config, tmp_path / name).path for name in ("whole", "stopped")]
    assert fingerprint(directories[0]) == fingerprint(directories[1])
    assert results["scores"] == whole_run["scores"]


def _terminate(*_):
    raise Terminated


@pytest.mark.slow
def test_of_two_processes_on_one_run_one_works(encoders, data, tmp_path):
    command = words(encoders, data, *QUICK)
    both = [start(*command, cwd=tmp_path) for _ in range(2)]
    ends = [finish(process) for process in both]
    assert sorted(code for code, _ in ends) in ([0, 4], [0, 0]), ends
    for code, said in ends:
        assert "another process is writing" in said if code == 4 else "accuracy" in said
    assert whole(place(tmp_path) / "results.json")["status"] == "done"


@pytest.mark.slow
def test_two_processes_that_need_the_same_scores_make_them_once(encoders, data, tmp_path):
    commands = [words(encoders, data, "--seed", seed, *QUICK) for seed in (1, 2)]
    ends = [finish(process) for process in [start(*command, cwd=tmp_path) for command in commands]]
    assert [code for code, _ in ends] == [0, 0], ends
    assert len(list((tmp_path / "results/scores").rglob("*.json"))) == 1
    heads = {whole(place(tmp_path).parent / f"seed{seed}" / "results.json")["heads_sha256"] for seed in (1, 2)}
    assert len(heads) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk, *, leave):
    """Take all room but so many bytes."""
    free = os.statvfs(disk)
    (disk / "ballast").write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - leave))


def test_a_full_disk_is_told_and_costs_nothing(make, data, small_disk, tmp_path, monkeypatch):
    from hifi_cli.runs import checkpoint

    config = make("hifi-layerwise")
    reference = runs.run(config, Workspace(tmp_path / "whole", data))
    directory = RunDirectory.of(config, small_disk)
    save = checkpoint.Checkpoint.save

    def twice(self, progress, *rest):
        save(self, progress, *rest)
        kept = directory.checkpoint.read_bytes()
        fill(small_disk, leave=8192)
        try:
            save(self, progress, *rest)
        finally:
            assert directory.checkpoint.read_bytes() == kept  # the one before is intact

    monkeypatch.setattr(checkpoint.Checkpoint, "save", twice)
    with pytest.raises(RunFailed, match=r"No space left on device.*make room"):
        runs.run(config, Workspace(small_disk, data))
    assert not directory.results.exists()
    monkeypatch.setattr(checkpoint.Checkpoint, "save", save)
    write_json = runs.write_json

    def full(path, value):
        if path.name == "results.json":
            fill(small_disk, leave=0)
        write_json(path, value)

    (small_disk / "ballast").unlink()
    monkeypatch.setattr(runs, "write_json", full)
    with pytest.raises(RunFailed, match=r"results\.json: No space left on device"):
        runs.run(config, Workspace(small_disk, data))
    assert not directory.results.exists()
    assert not [path for path in directory.path.glob(".*") if path.name != ".lock"]
    monkeypatch.setattr(runs, "write_json", write_json)
    (small_disk / "ballast").unlink()
    assert runs.run(config, Workspace(small_disk, data))["scores"] == reference["scores"]
    assert fingerprint(directory.path) == fingerprint(RunDirectory.of(config, tmp_path / "whole").path)


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_checkpoint_is_named_and_not_used(make, data, tmp_path, damage, monkeypatch, caplog):
    from hifi_cli.runs import checkpoint

    config = make("full-ft")
    runs.run(config, Workspace(tmp_path / "whole", data))
    workspace, save = Workspace(tmp_path / "damaged", data), checkpoint.Checkpoint.save

    def then_stop(self, *rest):
        save(self, *rest)
        damage(self.path)
        raise Terminated

    monkeypatch.setattr(checkpoint.Checkpoint, "save", then_stop)
    with pytest.raises(Terminated):
        runs.run(config, workspace)
    monkeypatch.setattr(checkpoint.Checkpoint, "save", save)
    runs.run(config, workspace)
    assert "last.pt is damaged" in caplog.text
    directories = [RunDirectory.of(config, tmp_path / name).path for name in ("whole", "damaged")]
    assert fingerprint(directories[0]) == fingerprint(directories[1])


def test_a_checkpoint_of_other_data_is_not_taken_up(make, data, tmp_path, monkeypatch, caplog):
    from conftest import write_data

    from hifi_cli.runs import checkpoint

    config, save = make("full-ft"), checkpoint.Checkpoint.save

    def then_stop(self, *rest):
        save(self, *rest)
        raise Terminated

    monkeypatch.setattr(checkpoint.Checkpoint, "save", then_stop)
    with pytest.raises(Terminated):
        runs.run(config, Workspace(tmp_path / "results", write_data(tmp_path / "other", rows=40)))
    monkeypatch.setattr(checkpoint.Checkpoint, "save", save)
    runs.run(config, Workspace(tmp_path / "results", data))
    assert "of other data" in caplog.text
    runs.run(config, Workspace(tmp_path / "whole", data))
    directories = [RunDirectory.of(config, tmp_path / name).path for name in ("whole", "results")]
    assert fingerprint(directories[0]) == fingerprint(directories[1])


@pytest.mark.parametrize("damage", [truncate, flip])
@pytest.mark.parametrize("kind", ["scores", "heads"])
def test_damaged_scores_and_heads_are_made_again(tiny, tmp_path, damage, kind):
    assert tiny("train", "--method", "hifi-layerwise").code == 0
    (path,) = (tmp_path / "results" / kind).rglob("*.json")
    sound = whole(path)
    damage(path)
    answer = tiny("train", "--method", "hifi-layerwise", "--seed", "2")
    assert answer.code == 0, answer.err
    assert kind == "heads" or f"{path.relative_to(tmp_path)} is" in answer.err
    again = whole(path)
    assert {**again, "provenance": None, "checksum": None} == {**sound, "provenance": None, "checksum": None}


@pytest.mark.parametrize("damage", [truncate, flip])
def test_damaged_results_are_named_and_not_used(tiny, hifi, tmp_path, damage):
    assert tiny("train", "--method", "full-ft").code == 0
    damage(place(tmp_path, "full-ft") / "results.json")
    for answer in (tiny("train", "--method", "full-ft"), hifi("table")):
        assert answer.code == 2
        assert "results.json" in answer.err
    assert tiny("train", "--method", "full-ft", "--force").code == 0


def test_one_wrong_digit_in_a_score_is_noticed(tiny, hifi, tmp_path):
    assert tiny("train", "--method", "full-ft").code == 0
    path = place(tmp_path, "full-ft") / "results.json"
    content = whole(path)
    content["scores"]["best"] = 0.99
    path.write_text(json.dumps(content))
    answer = hifi("table")
    assert answer.code == 2
    assert "does not match its checksum" in answer.err


def out_of_memory_above(most, monkeypatch):
    """A device on which so many examples fit at a time."""
    from hifi_cli.runs.engine import Engine

    logits, seen = Engine.logits, []

    def limited(self, examples):
        seen.append(len(examples))
        if len(examples) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return logits(self, examples)

    monkeypatch.setattr(Engine, "logits", limited)
    return seen


def test_auto_batch_keeps_the_global_batch_and_records_what_it_did(make, data, tmp_path, monkeypatch):
    config = make("full-ft", "dropout=0.0", "eval_batch_size=8")
    reference = runs.run(config, Workspace(tmp_path / "whole", data))
    seen = out_of_memory_above(3, monkeypatch)
    with pytest.raises(RunFailed, match="a batch of 8 in 1 parts does not fit in memory; --auto-batch"):
        runs.run(config, Workspace(tmp_path / "failed", data))
    results = runs.run(config, Workspace(tmp_path / "halved", data), auto_batch=True)
    assert results["accumulation"] == {"asked": 1, "used": 4}
    assert seen.count(8) == 1 + 1 + 1  # the refused run, the first training batch, the first evaluation batch
    assert results["scores"] == pytest.approx(reference["scores"], abs=0.05)
    deltas = [arrays(RunDirectory.of(config, tmp_path / name).delta) for name in ("whole", "halved")]
    for name, value in deltas[0].items():
        assert deltas[1][name] == pytest.approx(value, abs=2e-4), name
    out_of_memory_above(0, monkeypatch)
    with pytest.raises(RunFailed, match="smaller max_length"):
        runs.run(config, Workspace(tmp_path / "none", data), auto_batch=True)


@pytest.mark.slow
@pytest.mark.slow
def test_too_little_memory_for_real(encoders, data, tmp_path):
    """The processor's own allocator refuses: the address space is limited to little more than the model needs."""
    script = (
        "import resource, sys, torch, hifi_cli.runs.run as runs\n"
        "from hifi_cli.runs import loop\n"
        "from hifi_cli.cli.app import main\n"
        "start = loop.Stretch.start.__func__\n"
        "def limit(cls, *rest):\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))\n"
        "    return start(cls, *rest)\n"
        "loop.Stretch.start = classmethod(limit)\n"
        "main()\n"
    )
    big = ["batch_size=4096", "max_length=40", "epochs=1"]
    write_many(tmp_path / "many", 4096)
    command = [*map(str, words(encoders, tmp_path / "many", *big, method="full-ft"))]
    def attempt(*more):
        return subprocess.run(
            [sys.executable, "-c", script, *command, *more], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )

    refused = attempt()
    assert refused.returncode == 1, refused.stderr
    assert "does not fit in memory; --auto-batch" in refused.stderr
    assert "Traceback" not in refused.stderr
    halved = attempt("--auto-batch")
    assert halved.returncode == 0, halved.stderr
    used = whole(place(tmp_path, "full-ft") / "results.json")["accumulation"]["used"]
    assert used > 1


def write_many(directory, rows):
    from conftest import write_data

    return write_data(directory, rows=rows)


@pytest.mark.slow
def test_two_processes_of_one_run_give_the_gradient_and_scores_of_one(encoders, data, tmp_path):
    """torchrun with gloo: equal within rounding, one writer, one set of files; 47 rows, so that a batch has one example."""
    settings = ["epochs=2", "batch_size=2", "dropout=0.0", "--limit", "47"]
    for name, launcher in (
        ("one", [sys.executable]),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
    ):
        (tmp_path / name).mkdir()
        command = [*launcher, "-m", "hifi_cli", *map(str, words(encoders, data, *settings, "scoring.samples=12", "heads.k=2"))]
        ended = subprocess.run(command, cwd=tmp_path / name, env=environment(), capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stderr
    manifest = whole(place(tmp_path / "two") / "manifest.json")
    assert manifest["processes"] == 2
    one, two = (whole(place(tmp_path / name) / "results.json") for name in ("one", "two"))
    assert two["scores"] == pytest.approx(one["scores"], abs=1e-6)
    deltas = [arrays(place(tmp_path / name) / "delta.safetensors") for name in ("one", "two")]
    for name, value in deltas[0].items():
        assert deltas[1][name] == pytest.approx(value, abs=5e-5), name
    lines = [json.loads(line) for line in (place(tmp_path / "two") / "metrics.jsonl").read_text().splitlines()]
    assert sum("epoch" in line for line in lines) == 2  # only one process writes


@pytest.mark.slow
def test_no_secret_of_the_environment_reaches_a_file(encoders, data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    grid = {"protocol": "hifi", "backbone": str(encoders["bert"]), "tasks": ["rte"], "methods": ["full-ft"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(grid))
    said = hifi("grid", "mine.yaml", "--data-dir", data, "-v", "epochs=0", cwd=tmp_path)[1]
    said += hifi("grid", "mine.yaml", "--data-dir", data, "-v", *QUICK, cwd=tmp_path)[1]
    assert "1 of 1 done" in said
    assert "hf_planted_secret" not in said
    for path in (tmp_path / "results").rglob("*"):
        assert not path.is_file() or b"hf_planted_secret" not in path.read_bytes(), path


def test_names_cannot_leave_the_results_directory(make, tmp_path):
    config = make("full-ft")
    for name in ("../../out", "/etc/x", "..", ".", "a/../../b", "\x00", "~", "-rf", ".hidden"):
        moved = config.model_copy(update={"task": name, "method": name, "protocol": name, "variant": name or None})
        path = (tmp_path / moved.place).resolve()
        assert path.is_relative_to(tmp_path / "runs")
        assert len(path.relative_to(tmp_path).parts) == 7


def test_only_plain_tensors_are_read(make, data, tmp_path, caplog):
    """A checkpoint that would run code when unpickled is refused."""
    import pickle

    config = make("full-ft")
    directory = RunDirectory.of(config, tmp_path / "results")
    directory.checkpoint.parent.mkdir(parents=True)

    class Harm:
        def __reduce__(self):
            return (Path(tmp_path / "harmed").touch, ())

    torch.save({"belongs_to": Harm()}, directory.checkpoint, pickle_module=pickle)
    runs.run(config, Workspace(tmp_path / "results", data))
    assert not (tmp_path / "harmed").exists()
    assert "damaged" in caplog.text


@pytest.mark.slow
def test_a_killed_process_is_no_obstacle(encoders, data, tmp_path):
    process = start(*words(encoders, data, *LONG), cwd=tmp_path)
    wait_for(lambda: (place(tmp_path) / ".lock").is_file())
    kill_group(process)
    code, said = hifi(*words(encoders, data, *LONG), cwd=tmp_path)
    assert code == 0, said
