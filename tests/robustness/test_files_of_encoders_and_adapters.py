"""Encoders whose files do not fit together, and adapter_config.json files with options: they work, or are refused by name."""

import json
import shutil
from pathlib import Path

import pytest
from prepared_models import encoder_of, pretrained_of
from tiny_inputs import HIDDEN, LAYERS, WORDS

from hifi_cli.errors import UsageError
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.prepare import build_and_prepare

ROWS = "text,label\n" + "".join(f"the {word},{at % 2}\n" for at, word in enumerate(WORDS[:24]))
PAIRS = "sentence1,sentence2,label\n" + "".join(
    f"the {word},a {word},{at % 2}\n" for at, word in enumerate(WORDS[:24])
)


@pytest.fixture
def train(hifi, encoders, tmp_path):
    """Trains on a table with a copy of a tiny encoder, whose files were changed before."""
    directory = tmp_path / "encoder"

    def run(change, family="bert", rows=ROWS):
        shutil.copytree(encoders[family], directory)
        change(directory)
        (tmp_path / "rows.csv").write_text(rows)
        words = ["--task", "rows.csv", "--method", "linear-probing", "--backbone", directory]
        return hifi("train", *words, "epochs=1", "validation=0.3")

    return run


def edit(file, **values):
    """A change of a JSON file's keys."""

    def change(directory):
        content = json.loads((directory / file).read_text())
        (directory / file).write_text(json.dumps(content | values))

    return change


def add_token(directory, content="the"):
    """Give a word of the rows a token that the encoder has no embedding of."""
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[content] = len(vocabulary)
    file.write_text(json.dumps(tokenizer))


def test_a_token_without_an_embedding_is_named(train):
    answer = train(add_token)
    assert answer.code == 2
    size = len(WORDS) + 4
    assert f"embeddings for {size:,}: 'the' has none" in answer.err
    assert "report it" not in answer.err
    assert not list(Path("results").glob("**/config.yaml"))


def test_a_token_of_no_row_does_no_harm(train):
    answer = train(lambda directory: add_token(directory, "unseenword"))
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    "values",
    [
        {"return_dict": False},
        {"is_decoder": True, "add_cross_attention": True},
        {"output_attentions": True, "output_hidden_states": True},
        {"torchscript": True, "use_cache": True},
    ],
    ids=str,
)
def test_keys_of_a_config_json_do_no_harm(train, values):
    answer = train(edit("config.json", **values))
    assert answer.code == 0, answer.err
    assert ("it is read as an encoder" in answer.err) == ("is_decoder" in values)
    (changed,) = Path("results/runs").glob("**/predictions.jsonl")
    predictions = changed.read_text()
    shutil.rmtree("results")
    shutil.rmtree("encoder")
    assert train(lambda directory: None).code == 0
    assert changed.read_text() == predictions


def test_token_types_that_the_encoder_does_not_know_are_left_out(train):
    def number_the_second_text(directory):
        file = directory / "tokenizer.json"
        content = json.loads(file.read_text())
        for part in content["post_processor"]["pair"][3:]:
            next(iter(part.values()))["type_id"] = 1
        file.write_text(json.dumps(content))
        edit(
            "tokenizer_config.json",
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        )(directory)

    answer = train(number_the_second_text, family="roberta", rows=PAIRS)
    assert answer.code == 0, answer.err
    assert "knows one token type" in answer.err


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_is_named(train, file):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    answer = train(lambda directory: (directory / file).write_text(pointer))
    assert answer.code == 3
    assert f"encoder/{file} is a pointer of Git LFS" in answer.err


# --- adapter_config.json

LORA = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 16,
    "target_modules": ["query", "value"],
    "modules_to_save": ["classifier", "score"],
}
PER_MODULE = 4 * 2 * HIDDEN  # the numbers of one module's A and B


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, 2 * LAYERS * PER_MODULE),
        ({"layers_to_transform": 1}, 2 * PER_MODULE),
        ({"layers_to_transform": [0]}, 2 * PER_MODULE),
        ({"layers_to_transform": [0, 1], "layers_pattern": "layer"}, 4 * PER_MODULE),
        ({"rank_pattern": {"value": 8}}, LAYERS * 3 * PER_MODULE),
        ({"exclude_modules": ["value"]}, LAYERS * PER_MODULE),
        ({"use_rslora": True, "megatron_core": "megatron.core"}, 2 * LAYERS * PER_MODULE),
    ],
    ids=str,
)
def test_options_of_an_adapter_work(make, workspace, tmp_path, options, numbers):
    assert trained_numbers(make, workspace, tmp_path, LORA | options) == numbers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers_to_transform": 9}, "layers_to_transform=9: the encoder has the layers 0 to"),
        ({"modules_to_save": ["classifier", "word_embeddings"]}, "modules_to_save: word_embedd"),
        ({"modules_to_save": ["dense"]}, "modules_to_save: dense would stay frozen"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices: not supported here"),
        ({"target_parameters": ["weight"]}, "target_parameters: not supported here"),
        ({"init_lora_weights": "eva"}, "init_lora_weights=eva: not supported here"),
        ({"rank_pattern": {"qurey": 8}}, "'qurey' is the end of no adapted module's name"),
        ({"alpha_pattern": {"encoder.layer.0": 8}}, "alpha_pattern: names with a point"),
        ({"some_new_option": 3}, "some_new_option"),
        ({"target_modules": ".*query"}, "target_modules: write a list"),
    ],
    ids=str,
)
def test_options_that_would_do_nothing_are_refused_by_name(
    make, workspace, tmp_path, options, message
):
    with pytest.raises(UsageError) as refused:
        trained_numbers(make, workspace, tmp_path, LORA | options)
    assert message in str(refused.value)


def test_a_file_of_another_library_is_named(hifi, tmp_path):
    config = {"config": {"reduction_factor": 16}, "hidden_size": 768, "model_type": "bert"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"name": "sent"}))
    answer = hifi("train --protocol demo --method adapter_config.json")
    assert answer.code == 2
    assert "a file of the library adapters (AdapterHub), not of peft" in answer.err


def trained_numbers(make, workspace, tmp_path, content):
    """How many numbers train in the backbone with an adapter_config.json."""
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(content))
    config = make(str(file))
    encoder = encoder_of(config, workspace)
    pretrained = pretrained_of(config, workspace)
    method = build_and_prepare(config, encoder, None, pretrained.missing_keys)
    head = Encoder(encoder.model).task_head.keys()
    trained = method.trainable_parameters(encoder.model)
    return sum(value.numel() for name, value in trained.items() if name not in head)


# --- methods in files

CODE = "from hifi_cli.methods.base import Method\n\n\nclass Mine(Method):\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    pass\n", "mine.py: Mine has no prepare(self, encoder), which says what trains"),
        (
            "    def on_phase_start(self, model, gradients):\n        pass\n",
            "Mine.on_phase_start is called on_stage_start now: rename it",
        ),
        (
            "    def before_step(self, model, step):\n        pass\n",
            "Mine.before_step is called with (model, step, steps) now",
        ),
        ("    def prepared(self, encoder):\n        pass\n", "Mine has no prepare"),
        (
            "    def prepare(self, encoder):\n        encoder.model.requires_grad_(False)\n",
            "method mine trains nothing: after its prepare no parameter requires a gradient",
        ),
    ],
)
def test_a_method_that_trains_nothing_is_refused(tiny, tmp_path, body, message):
    (tmp_path / "mine.py").write_text(CODE + body)
    (tmp_path / "mine.yaml").write_text(
        "description: mine\nlabel: Mine\nsource: ours\nimplementation: ./mine.py\n"
    )
    answer = tiny("train --method mine.yaml")
    assert answer.code == 2, answer.err
    assert message in answer.err.splitlines()[-1]
