"""Batches that do not fit: one clear error, or smaller parts of the same batch."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from finished_runs import load_arrays, read_json, run_path
from hifi_processes import environment, train_command
from tiny_inputs import write_data

from hifi_cli.errors import RunFailed
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.runs.prepared_run import RunInputs, prepare
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.trainer import Callback, Trainer, seed_everything


def out_of_memory_above(most, monkeypatch):
    """A device on which so many examples fit at a time."""
    logits, seen = ModelRunner.logits, []

    def limited(self, examples):
        seen.append(len(examples))
        if len(examples) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return logits(self, examples)

    monkeypatch.setattr(ModelRunner, "logits", limited)
    return seen


@pytest.mark.slow
def test_auto_batch_keeps_the_global_batch_and_records_what_it_did(make, data, tmp_path, monkeypatch):
    config = make("full-ft", "dropout=0.0", "eval_batch_size=8")
    reference = runs.run(config, ResourceCache(tmp_path / "whole", data))
    seen = out_of_memory_above(3, monkeypatch)
    with pytest.raises(RunFailed, match="a batch of 8 in 1 parts does not fit in memory; --auto-batch"):
        runs.run(config, ResourceCache(tmp_path / "failed", data))
    results = runs.run(config, ResourceCache(tmp_path / "halved", data), auto_batch=True)
    assert (results.gradient_accumulation_steps.requested, results.gradient_accumulation_steps.used) == (1, 4)
    assert seen.count(8) == 1 + 1 + 1  # the refused run, the first training batch, the first evaluation batch
    assert dict(results.scores) == pytest.approx(dict(reference.scores), abs=0.05)
    deltas = [load_arrays(RunDirectory.of(config, tmp_path / name).delta) for name in ("whole", "halved")]
    for name, value in deltas[0].items():
        assert deltas[1][name] == pytest.approx(value, abs=2e-4), name
    out_of_memory_above(0, monkeypatch)
    with pytest.raises(RunFailed, match="smaller max_length"):
        runs.run(config, ResourceCache(tmp_path / "none", data), auto_batch=True)


def test_a_second_attempt_starts_without_the_gradients_of_the_first(make, resources, monkeypatch):
    """Also those of parameters outside of the model, such as the gates of Diff-Pruning."""
    gradients = []
    for fails in (False, True):
        config = make("diff-pruning", "dropout=0.0", f"gradient_accumulation_steps={2 if fails else 4}")
        trainer = new_trainer(config, resources)
        trainer.runner.auto_batch = True
        failures = [torch.OutOfMemoryError("CUDA out of memory")] if fails else []
        accumulate = trainer.runner._accumulate_gradient

        def attempt(examples, loss, accumulate=accumulate, failures=failures):
            total = accumulate(examples, loss)
            if failures:  # after the backward pass of some layers
                raise failures.pop()
            return total

        trainer.runner._accumulate_gradient = attempt
        optimizer = trainer.phase_state.optimizer
        trainer.callbacks = [GradientRecorder(gradients, [one for group in optimizer.param_groups for one in group["params"]])]
        trainer.train_step(trainer.train_examples[:8])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-3, atol=1e-6)


@dataclass
class GradientRecorder(Callback):
    gradients: list
    parameters: list

    def on_backward_end(self, trainer):
        self.gradients.append([parameter.grad.clone() for parameter in self.parameters if parameter.grad is not None])


def new_trainer(config, resources):
    """A trainer before its first step."""
    inputs = RunInputs.resolve(config, resources)
    prepared = prepare(inputs.model)
    trainer = Trainer(prepared.runner, prepared.method, inputs.splits.train)
    seed_everything(config.seed)
    trainer.setup_phase(0)
    return trainer


LIMITED = """
import resource
from hifi_cli.cli.app import main
from hifi_cli.runs import trainer

create = trainer.PhaseState.create.__func__

def limit(cls, *rest):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
    return create(cls, *rest)

trainer.PhaseState.create = classmethod(limit)
main()
"""


@pytest.mark.exhaustive
def test_too_little_memory_for_real(encoders, tmp_path):
    """The processor's own allocator refuses: the address space is limited to little more than the model needs.

    What is freed must leave the address space, or nothing but malloc could use it again (oneDNN maps its code), and few
    compiled products may be kept: each size of a batch has its own.
    """
    sparing = {"MALLOC_MMAP_THRESHOLD_": "131072", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
    big = ["batch_size=4096", "max_length=40", "epochs=1"]
    command = [*map(str, train_command(encoders, write_data(tmp_path / "many", rows=4096), *big, method="full-ft"))]
    how = {"cwd": tmp_path, "env": environment(**sparing), "capture_output": True, "text": True}

    refused = subprocess.run([sys.executable, "-c", LIMITED, *command], **how, check=False)
    assert refused.returncode == 1, refused.stderr
    assert "does not fit in memory; --auto-batch" in refused.stderr
    assert "Traceback" not in refused.stderr
    halved = subprocess.run([sys.executable, "-c", LIMITED, *command, "--auto-batch"], **how, check=False)
    assert halved.returncode == 0, halved.stderr
    assert read_json(run_path(tmp_path, "full-ft") / "results.json")["gradient_accumulation_steps"]["used"] > 1
