"""A batch that does not fit in memory is one clear error; the memory of a run is its own, or is not shown."""

import weakref

import pytest
import torch
from json_output import table_of
from synthetic_runs import write_run

from hifi_cli.errors import RunFailed
from hifi_cli.runs import provenance
from hifi_cli.runs import run as runs
from hifi_cli.runs.provenance import reset_peak_memory
from hifi_cli.training.loop import Trainer
from hifi_cli.training.runner import ModelRunner

TRAINING = (
    "a batch of 8 examples in 2 parts does not fit in memory; set gradient_accumulation_steps=4"
)
EVALUATION = "an evaluation batch of 16 does not fit in memory; set a smaller eval_batch_size"


@pytest.mark.parametrize(
    ("largest", "error", "fix", "words"),
    [
        (3, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"), TRAINING, []),
        (4, MemoryError(), EVALUATION, []),
        (
            3,
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            TRAINING,
            [],
        ),
        (4, RuntimeError("could not create a primitive"), EVALUATION, []),  # oneDNN's
        (
            8,
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
            "a batch of 8 examples in 1 part does not fit in memory; set gradient_accumulation_steps=2",
            ["gradient_accumulation_steps=1"],
        ),
    ],
)
def test_the_error_names_the_setting_that_saves_memory(
    make, workspace, monkeypatch, largest, error, fix, words
):
    forward = ModelRunner.forward

    def limited(self, inputs, packed):
        if len(inputs["input_ids"]) > largest:
            raise error
        return forward(self, inputs, packed)

    monkeypatch.setattr(ModelRunner, "forward", limited)
    # A GPU records the steps of batches in one part.
    records = property(lambda runner: "gradient_accumulation_steps=1" in words, lambda *_: None)
    monkeypatch.setattr(ModelRunner, "may_record", records, raising=False)
    monkeypatch.setattr("hifi_cli.training.step_graphs.unsupported_because", lambda *_: "")
    with pytest.raises(RunFailed, match=fix):
        runs.run(
            make("full-ft", "gradient_accumulation_steps=2", "eval_batch_size=16", *words),
            workspace,
        )


def test_a_run_begins_without_the_models_of_the_runs_before(make, workspace, monkeypatch):
    """Models are in circles of references, and wait for Python's collector otherwise."""
    models, alive_at_start = [], []
    create, reset = Trainer.__init__, reset_peak_memory

    def note(self, *arguments, **keys):
        create(self, *arguments, **keys)
        models.append(weakref.ref(self.model))

    def count(device):
        is_own = reset(device)
        alive_at_start.append(sum(model() is not None for model in models))
        return is_own

    monkeypatch.setattr(Trainer, "__init__", note)
    monkeypatch.setattr("hifi_cli.runs.run.reset_peak_memory", count)
    monkeypatch.setattr(provenance, "_memory_is_shared", False)
    methods = ("full-ft", "bitfit", "lora")
    results = [runs.run(make(method, "epochs=1"), workspace) for method in methods]
    # The memory is read from before the run's own trainer is made.
    assert alive_at_start == [0, 0, 0]
    assert [result.memory_is_own for result in results] == [True, False, False]


def test_memory_that_is_not_a_runs_own_is_shown_nowhere(hifi):
    place = {"protocol": "laptop", "backbone": "minilm"}
    write_run("results", "full-ft", "rte", 1, 0.5, **place, peak_memory_bytes=100)
    write_run("results", "bitfit", "rte", 1, 0.5, **place, peak_memory_bytes=50)
    shared = {"peak_memory_bytes": 900, "memory_is_own": False}
    write_run("results", "bitfit", "rte", 2, 0.5, **place, **shared)
    write_run("results", "lora", "rte", 1, 0.5, **place, **shared)
    # HiFi's table has no row of BitFit, and its note does not count that method's runs.
    for name, counted in {"cost": "2 runs", "hifi-1": "1 run "}.items():
        table = table_of(hifi(f"table {name} --format json"))
        rows = {row["method"]: row["memory"] for row in table["rows"]}
        assert rows.get("bitfit", 0.5) == 0.5
        assert rows["lora"] is None
        (note,) = [note for note in table["notes"] if note.startswith("memory left out")]
        assert counted in note
        assert ("(BitFit; LoRA)" in note) == ("bitfit" in rows)
    listed = hifi("ls runs --format csv").out
    assert "900" not in listed
