"""A checkpoint with a single changed bit is either the one that was saved or not used at all."""

import random
from pathlib import Path

import pytest
import torch
from finished_runs import fingerprint, flip_bit

from hifi_cli.errors import Terminated
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training import checkpoint
from hifi_cli.training.checkpoint import Checkpoint


def same(one, other):
    """Whether two states are equal, whatever is in them."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_a_changed_bit_is_found_or_changes_nothing(tmp_path, caplog):
    path = tmp_path / "last.pt"
    checkpoint = Checkpoint(path, {f"part {number}": 64 * "0" for number in range(40)})
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    checkpoint.save({"model": {"weights": weights}, "step": 12}, torch.device("cpu"))
    saved = checkpoint.read()
    content = path.read_bytes()
    draw = random.Random(1)
    found = 0
    for _ in range(400):
        bit = draw.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        # A change in what it belongs to is damage too, and not another run.
        checkpoint.refuse_another_run()
        state = checkpoint.read()
        found += state is None
        assert state is None or same(state, saved)
    assert found > 200
    assert "is damaged" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("at", [0.3, 0.5, 0.7])
def test_a_run_with_a_changed_bit_in_its_checkpoint_starts_anew(
    make, data, tmp_path, monkeypatch, caplog, at
):
    config, save = make("full-ft"), checkpoint.Checkpoint.save

    def then_stop(self, *rest):
        save(self, *rest)
        raise Terminated

    with monkeypatch.context() as patched, pytest.raises(Terminated):
        patched.setattr(checkpoint.Checkpoint, "is_due", lambda _: True)
        patched.setattr(checkpoint.Checkpoint, "save", then_stop)
        runs.run(config, Workspace(tmp_path / "results", data))
    flip_bit(RunDirectory.of(config, tmp_path / "results").checkpoint, at)
    for name in ("results", "undisturbed"):
        runs.run(config, Workspace(tmp_path / name, data))
    assert "last.pt is damaged" in caplog.text
    results, undisturbed = (
        fingerprint(Path(RunDirectory.of(config, tmp_path / name).path))
        for name in ("results", "undisturbed")
    )
    assert results == undisturbed
