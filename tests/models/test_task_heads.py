"""Task heads: EH-FT's two layers, the one logit of two classes, WiC's target words, choices."""

import json
import random
from itertools import product

import pytest
import torch
from prepared_models import encoder_of, prepared_run, pretrained_of, splits_of
from tiny_inputs import FAMILIES, HIDDEN, WORDS

from hifi_cli.models.task_heads import word_states
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks.encode import collate
from hifi_cli.training.losses import task_loss

MLP = ["task_head.kind=mlp", "task_head.width=24", "task_head.activation=relu"]
PAD = {"input_ids": 0, "token_type_ids": 0}


@pytest.fixture(scope="module")
def superglue(tmp_path_factory):
    """WiC whose label is whether the target word comes first in the second sentence, and COPA whose answer begins with `dog`."""
    root, rng = tmp_path_factory.mktemp("superglue"), random.Random(0)
    for name, at in product(("train", "val"), range(48)):
        rest, label = " ".join(rng.choice(WORDS[6:]) for _ in range(4)), at % 2
        first, second = f"{rest} fish", f"fish {rest}" if label else f"{rest} fish"
        starts = {
            f"start{number}": text.index("fish") for number, text in ((1, first), (2, second))
        }
        spans = starts | {f"end{number}": starts[f"start{number}"] + 4 for number in (1, 2)}
        wic = {
            "word": "fish",
            "sentence1": first,
            "sentence2": second,
            "idx": at,
            "label": bool(label),
            **spans,
        }
        choices = {
            f"choice{number + 1}": f"{'dog' if number == label else 'cat'} {rest}"
            for number in range(2)
        }
        copa = {"premise": f"{rest}.", **choices, "question": "cause", "label": label, "idx": at}
        for task, row in (("WiC", wic), ("COPA", copa)):
            (root / task).mkdir(exist_ok=True)
            with (root / task / f"{name}.jsonl").open("a") as file:
                print(json.dumps(row), file=file)
    return root


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("one_logit", [False, True])
def test_the_mlp_reads_the_raw_first_token(make, workspace, family, one_logit):
    config = make("full-ft", *MLP, f"task_head.one_logit={one_logit}", family=family)
    prepared = prepared_run(config, workspace)
    model = prepared.encoder.model.eval()
    examples = splits_of(config, workspace).train[:5]
    batch = collate(examples, PAD)
    first = prepared.encoder.base(**batch).last_hidden_state[:, 0]
    hidden, output = model.task_head.hidden, model.task_head.output
    assert (hidden.in_features, hidden.out_features, output.out_features) == (
        HIDDEN,
        24,
        1 if one_logit else 2,
    )
    by_hand = torch.relu(first @ hidden.weight.T + hidden.bias) @ output.weight.T + output.bias
    torch.testing.assert_close(model(**batch).logits, by_hand)
    assert not any("pooler" in name for name, _ in model.named_parameters())
    assert prepared.encoder.task_head.keys() == {
        f"task_head.{layer}.{kind}" for layer in ("hidden", "output") for kind in ("weight", "bias")
    }


def test_the_mlp_starts_as_configured_and_follows_the_seed(make, workspace):
    heads = [
        encoder_of(
            make("full-ft", *MLP, "task_head.width=512", "task_head.init_std=0.02", seed=seed),
            workspace,
        ).model.task_head
        for seed in (1, 1, 2)
    ]
    for linear in (heads[0].hidden, heads[0].output):
        assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
        assert float(linear.bias.detach().abs().max()) <= linear.in_features**-0.5
    uniform = HIDDEN**-0.5 / 3**0.5
    assert float(heads[0].hidden.bias.detach().std()) == pytest.approx(uniform, rel=0.1)
    assert torch.equal(heads[0].hidden.weight, heads[1].hidden.weight)
    assert not torch.equal(heads[0].hidden.weight, heads[2].hidden.weight)


def test_one_logit_is_binary_cross_entropy(make, workspace):
    config = make("full-ft", *MLP, "task_head.one_logit=true")
    prepared = prepared_run(config, workspace)
    examples = splits_of(config, workspace).train[:6]
    z = torch.tensor([[2.0], [-1.0], [0.3], [0.0], [-3.0], [5.0]])
    y = torch.tensor([float(example.row.label) for example in examples])
    p = torch.sigmoid(z[:, 0])
    by_hand = -(y * p.log() + (1 - y) * (1 - p).log()).sum()
    torch.testing.assert_close(task_loss(prepared.task, z, examples), by_hand)
    two = torch.cat([torch.zeros_like(z), z], 1)  # the same as two logits of which the first is 0
    torch.testing.assert_close(task_loss(prepared.task, two, examples), by_hand)


POOLER, ONE_LOGIT = (
    ["task_head.kind=pooler"],
    [*MLP, "task_head.one_logit=true", "task_head.init_std=0.05"],
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "head", "method"),
    [
        ("rte", POOLER, "full-ft"),
        ("rte", ONE_LOGIT, "eh-ft-bitfit"),
        ("wic", POOLER, "lora"),
        ("wic", ONE_LOGIT, "full-ft"),
        ("copa", POOLER, "eh-ft-bitfit"),
        ("copa", ONE_LOGIT, "lora"),
    ],
    ids=["rte-pooler", "rte-mlp", "wic-pooler", "wic-mlp", "copa-pooler", "copa-mlp"],
)
def test_every_head_learns_and_comes_back_whole(
    make, superglue, data, tmp_path, method, head, task
):
    workspace = Workspace(tmp_path / "results", data if task == "rte" else superglue)
    rate = {"lora": 0.02, "full-ft": 0.004, "eh-ft-bitfit": 0.004}[method]
    config = make(method, *head, "epochs=12", f"learning_rate={rate}", "dropout=0.0", task=task)
    results = runs.run(config, workspace)
    assert results.scores.best > 0.65
    assert (
        evaluate(RunDirectory.of(config, workspace.results_dir).path, workspace).largest_difference
        == 0
    )


def test_word_states_are_means_over_the_words_tokens():
    states = torch.randn(2, 7, 3)
    spans = torch.tensor([[[1, 2], [3, 6]], [[0, 4], [6, 7]]])
    states_of_words = word_states(states, spans)
    for example in range(2):
        for word, (first, last) in enumerate(spans[example].tolist()):
            torch.testing.assert_close(
                states_of_words[example, word], states[example, first:last].mean(0)
            )


@pytest.mark.parametrize("head", [MLP, POOLER], ids=["mlp", "pooler"])
def test_wic_reads_first_token_and_both_words(make, superglue, tmp_path, head):
    workspace = Workspace(tmp_path / "results", superglue)
    config = make("full-ft", *head, task="wic")
    prepared = prepared_run(config, workspace)
    assert prepared.encoder.model.task_head.hidden.in_features == 5 * HIDDEN
    examples = splits_of(config, workspace).train[:4]
    batch = collate(examples, PAD)
    fish = pretrained_of(config, workspace).tokenizer.convert_tokens_to_ids("fish")
    for row, spans in zip(batch["input_ids"], batch["word_spans"], strict=True):
        assert [row[first:last].tolist() for first, last in spans.tolist()] == [[fish], [fish]]
    model = prepared.encoder.model.eval()
    initial = 0.005 if head == MLP else model.config.initializer_range
    assert float(model.task_head.hidden.weight.detach().std()) == pytest.approx(initial, rel=0.1)
    with torch.no_grad():
        logits = model(**batch).logits
        spans_of_words = batch.pop("word_spans").tolist()
        features = []
        for states, spans in zip(model.backbone(**batch)[0], spans_of_words, strict=True):
            one, two = (states[first:last].mean(0) for first, last in spans)
            features.append(torch.cat([states[0], one, two, (one - two).abs(), one * two]))
        hidden = model.task_head.hidden(torch.stack(features))
        activated = hidden.relu() if head == MLP else hidden.tanh()
        torch.testing.assert_close(logits, model.task_head.output(activated))
