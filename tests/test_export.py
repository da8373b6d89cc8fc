"""A finished run leaves as a plain Hugging Face directory, or as a directory for open_model: the same logits either way."""

import pytest
import torch
from conftest import FAMILIES
from formulas import FORMULAS
from transformers import AutoModelForSequenceClassification

import hifi_cli
from hifi_cli.errors import MissingError
from hifi_cli.runs import run as runs
from hifi_cli.runs.directory import RunDirectory
from hifi_cli.tasks.batches import collate

ADDING = {"adapter", "compacter", "prefix-tuning", "prefix-tuning-mlp", "eh-ft-prefix-reserve"}


def expected(config, workspace, count=6):
    examples = runs.split_examples(config, workspace).reported[:count]
    stored = RunDirectory.of(config, workspace.results_dir).read_predictions()[:count]
    return collate(examples, {"input_ids": 0, "token_type_ids": 0}), torch.tensor([row["logits"] for row in stored])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", sorted(FORMULAS))
def test_every_method_leaves_with_the_same_logits(make, workspace, hifi, data, tmp_path, method, family):
    config = make(method, "epochs=1", "learning_rate=0.003", family=family)
    runs.run(config, workspace)
    batch, logits = expected(config, workspace)
    run = RunDirectory.of(config, workspace.results_dir).path
    if method in ADDING:
        answer = hifi("export", run, "--to", tmp_path / "out", "--data-dir", data)
        assert answer.code == 2
        assert "--format delta" in answer.err and not (tmp_path / "out").exists()
        assert hifi("export", run, "--to", tmp_path / "out", "--data-dir", data, "--format", "delta").code == 0
        with pytest.raises((OSError, ValueError)):
            AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
        model, _ = hifi_cli.open_model(tmp_path / "out")
    else:
        assert hifi("export", run, "--to", tmp_path / "out", "--data-dir", data).code == 0
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora", "diff-pruning", "eh-ft-bitfit", "child-tuning-d"])
@pytest.mark.parametrize("head", [[], ["head.kind=mlp", "head.width=16", "head.one_logit=true"]])
def test_every_run_leaves_as_a_delta(make, workspace, hifi, data, tmp_path, method, head):
    config = make(method, "epochs=1", "learning_rate=0.003", *head)
    runs.run(config, workspace)
    batch, logits = expected(config, workspace)
    run = RunDirectory.of(config, workspace.results_dir).path
    assert hifi("export", run, "--to", tmp_path / "out", "--data-dir", data, "--format", "delta").code == 0
    model, tokenizer = hifi_cli.open_model(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-4, atol=1e-5)
    assert tokenizer("the dog")["input_ids"]


def test_an_own_head_has_no_plain_form_and_a_wrong_format_is_named(make, workspace, hifi, data, tmp_path):
    config = make("full-ft", "epochs=1", "head.kind=mlp", "head.width=16")
    runs.run(config, workspace)
    run = RunDirectory.of(config, workspace.results_dir).path
    answer = hifi("export", run, "--to", tmp_path / "out", "--data-dir", data)
    assert answer.code == 2 and "task head" in answer.err
    answer = hifi("export", run, "--to", tmp_path / "out", "--data-dir", data, "--format", "delt")
    assert answer.code == 2 and "did you mean 'delta'" in answer.err


def test_open_model_says_what_is_missing(tmp_path):
    with pytest.raises(MissingError, match=r"hifi\.json"):
        hifi_cli.open_model(tmp_path)
