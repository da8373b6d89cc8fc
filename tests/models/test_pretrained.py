"""Encoders in local directories: what tells their weights apart, and what is refused."""

import shutil
from pathlib import Path

import pytest
import torch
from prepared_models import encoder_of
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from hifi_cli.models.encoder_files import weights_digest_of_schema_1


def test_weights_in_several_files_tell_encoders_apart(encoders, tmp_path):
    model, ids = AutoModel.from_pretrained(encoders["bert"]), []
    for change in (0.0, 1.0):
        with torch.no_grad():
            model.encoder.layer[0].attention.self.query.weight.add_(change)
        directory = tmp_path / str(change)
        model.save_pretrained(directory, max_shard_size="40KB")
        assert (
            len(list(directory.glob("model-*.safetensors"))) > 1
            and not (directory / "model.safetensors").exists()
        )
        ids.append(weights_digest_of_schema_1(directory))
    assert len(set(ids)) == 2 and all(len(digest) == 64 for digest in ids)


@pytest.mark.parametrize("head", ["pooler", "mlp"])
def test_weights_under_other_names_are_no_encoder(tiny, encoders, tmp_path, head):
    other = tmp_path / "other" / encoders["bert"].name
    shutil.copytree(encoders["bert"], other)
    weights = {
        f"student.{name}": value for name, value in load_file(other / "model.safetensors").items()
    }
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    answer = tiny("train", "--method", "full-ft", "--backbone", other, f"task_head.kind={head}")
    assert answer.code == 3 and not list(Path("results").rglob("results.json"))
    assert (
        "its weights lack 37 of the encoder's" in answer.err
        and "first bert.embeddings.LayerNorm.bias" in answer.err
    )


def test_a_fine_tuned_checkpoint_s_own_classifier_is_not_used(make, workspace, encoders, tmp_path):
    """Not with the same number of labels, and not with another: each seed draws a new one."""
    directory = tmp_path / "tuned" / "tiny-bert"
    shutil.copytree(encoders["bert"], directory)
    for labels in (2, 3):
        model = AutoModelForSequenceClassification.from_pretrained(
            encoders["bert"], num_labels=labels
        )
        torch.nn.init.constant_(model.classifier.weight, 7.0)
        model.save_pretrained(directory)
        first, second = (
            encoder_of(
                make("full-ft", seed=seed, backbone=directory), workspace
            ).model.classifier.weight
            for seed in (1, 2)
        )
        assert first.shape == (2, model.config.hidden_size)
        assert first.abs().max() < 1 and not torch.equal(first, second)
        workspace._last_pretrained = None


def test_damaged_weights_are_refused_in_a_line(tiny, encoders, tmp_path):
    other = tmp_path / "other" / encoders["bert"].name
    shutil.copytree(encoders["bert"], other)
    (other / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes()[:1000])
    answer = tiny("train --method full-ft --backbone", other)
    assert answer.code == 3 and f"no usable encoder in {other}: " in answer.err.splitlines()[-1]
