"""HiFi in somebody's own script: three functions on any Hugging Face encoder, the same numbers as the command line's."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from prepared_models import examples_of, heads_of
from tiny_inputs import FAMILIES, HEADS, LAYERS
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hifi_cli import score_heads, select_heads, tune_heads
from hifi_cli.errors import UsageError
from hifi_cli.runs.heads import HeadSelector, sample
from hifi_cli.tasks.encode import collate

pytestmark = pytest.mark.slow


@pytest.fixture(params=FAMILIES)
def model(request, encoders):
    return AutoModelForSequenceClassification.from_pretrained(encoders[request.param]).train()


def batches(encoders, sizes=(3, 2)):
    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    texts = [
        "the dog sees a cat",
        "the bird",
        "a man likes the big old fish here",
        "not now",
        "and never",
    ]
    head_scores, at = [], 0
    for size in sizes:
        head_scores.append(
            {
                **tokenizer(texts[at : at + size], padding=True, return_tensors="pt"),
                "labels": torch.zeros(size),
            }
        )
        at += size
    for batch in head_scores:
        batch.pop("token_type_ids")
    return head_scores


def test_scores_are_those_of_the_command_line(make, workspace, encoders):
    config = make("hifi-layerwise")
    stored = HeadSelector.of(config, workspace).compute_scores()
    model = AutoModelForSequenceClassification.from_pretrained(encoders["bert"])
    train = examples_of(config, workspace, "train", config.scoring.max_length)
    sampled = sample(train, config.scoring.samples, config.scoring.seed)
    head_scores = score_heads(model, [collate(sampled[at : at + 5], {}) for at in range(0, 12, 5)])
    assert head_scores.samples == 12
    np.testing.assert_allclose(
        head_scores.richness, stored.richness, atol=0.1
    )  # 1/12: one index at a singular value's edge
    np.testing.assert_allclose(head_scores.correlation, stored.correlation, rtol=1e-4, atol=1e-9)
    chosen = select_heads(head_scores, k=2)
    assert chosen.heads == heads_of(config, workspace)


def test_scoring_does_not_depend_on_batches_or_heads_and_leaves_the_model_as_it_was(
    model, encoders
):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.base_model.embeddings.eval()
    scores, other = (
        score_heads(model, batches(encoders)),
        score_heads(model, batches(encoders, (1, 1, 3))),
    )
    assert scores.richness.shape == (LAYERS, HEADS) and scores.correlation.shape == (
        LAYERS,
        HEADS,
        HEADS,
    )
    np.testing.assert_allclose(scores.correlation, other.correlation, rtol=1e-4)
    bare = score_heads(
        model.base_model, batches(encoders)
    )  # the encoder alone, as AutoModel gives it
    np.testing.assert_array_equal(bare.correlation, scores.correlation)
    assert model.training and model.classifier.training and not model.base_model.embeddings.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_does_not_fit_is_told_in_one_line(model, encoders):
    scores = score_heads(model, batches(encoders))
    for wrong, message in [
        (lambda: score_heads(model, []), "no batches"),
        (lambda: score_heads(model, [{"input_ids": [[1, 2]]}]), "return_tensors"),
        (lambda: score_heads(model, batches(encoders), xi=2), "xi"),
        (lambda: select_heads(scores, rank="pagerang"), "rank"),
        (lambda: select_heads(scores, strategy="some"), "strategy"),
        (lambda: select_heads(scores, k=9), "only 4 heads"),
        (lambda: tune_heads(model, [[0]]), "2 layers of 4 heads"),
        (lambda: tune_heads(model, [[0], [1, 1]]), "chosen twice"),
    ]:
        with pytest.raises(UsageError, match=message) as error:
            wrong()
        assert "\n" not in str(error.value)
    tune_heads(model, [[1], [0, 3]])
    with pytest.raises(UsageError, match="merge_heads"):
        tune_heads(model, [[1], [0, 3]])


@pytest.mark.filterwarnings(
    "default"
)  # what transformers' Trainer and datasets say is not ours to mend
def test_the_example_in_scripts_runs(encoders, tmp_path, monkeypatch):
    import runpy

    lines = [
        f"{'dog' if i % 2 else 'cat'} sees the fish\t{'yes' if i % 2 else 'no'}" for i in range(64)
    ]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    words = ["--train", tmp_path / "train.tsv", "--model", encoders["bert"], "--to", tmp_path / "out", "--epochs", "30",
             "--learning-rate", "0.01", "--k", "1"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["hifi_with_trainer", *map(str, words)])
    runpy.run_path(
        str(Path(__file__).parent.parent / "scripts" / "hifi_with_trainer.py"), run_name="__main__"
    )
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(tmp_path / "out"), device="cpu")
    assert [answer["label"] for answer in classify(["dog sees the fish", "cat sees the fish"])] == [
        "yes",
        "no",
    ]
