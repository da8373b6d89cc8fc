"""A batch that does not fit in memory is one clear error."""

import subprocess
import sys

import pytest
import torch
from hifi_processes import environment, train_command
from tiny_inputs import write_data

from hifi_cli.errors import RunFailed
from hifi_cli.training import run as runs
from hifi_cli.training.step import ModelRunner


@pytest.mark.parametrize(
    ("largest", "fix"),
    [
        (3, "a batch of 8 in 2 parts does not fit in memory; set gradient_accumulation_steps=4"),
        (4, "an evaluation batch of 16 does not fit in memory; set a smaller eval_batch_size"),
    ],
)
def test_the_error_names_the_setting_that_saves_memory(make, resources, monkeypatch, largest, fix):
    logits = ModelRunner.logits

    def limited(self, examples):
        if len(examples) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return logits(self, examples)

    monkeypatch.setattr(ModelRunner, "logits", limited)
    with pytest.raises(RunFailed, match=fix):
        runs.run(make("full-ft", "gradient_accumulation_steps=2", "eval_batch_size=16"), resources)


LIMITED = """
import resource
from hifi_cli.cli.app import main
from hifi_cli.training import step

create = step.PhaseState.create.__func__

def limit(cls, *rest):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
    return create(cls, *rest)

step.PhaseState.create = classmethod(limit)
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
    assert "does not fit in memory; set gradient_accumulation_steps=2" in refused.stderr
    assert "Traceback" not in refused.stderr
    parts = subprocess.run([sys.executable, "-c", LIMITED, *command, "gradient_accumulation_steps=256"], **how, check=False)
    assert parts.returncode == 0, parts.stderr
