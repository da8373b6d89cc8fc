"""Tiny random encoders and small data, written here, so that no test needs anything from elsewhere."""

import logging
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.runs.resources import ResourceCache

torch.set_num_threads(1)
logging.getLogger("hifi").setLevel(logging.INFO)

WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "bird",
    "fish",
    "man",
    "woman",
    "boy",
    "girl",
    "sees",
    "likes",
    "hears",
    "knows",
    "big",
    "small",
    "old",
    "new",
    "not",
    "never",
    "and",
    "here",
    "there",
    "now",
]
LAYERS, HEADS, HIDDEN, INNER = 2, 4, 32, 48
QUICK = ["epochs=2", "batch_size=8", "heads.k=2", "scoring.samples=12"]
TINY = {  # settings that a two-layer encoder of width 32 can have
    "top-k": ["settings.k=1"],
    "top-k-6": ["settings.k=1"],
    "top-k-12": ["settings.k=1"],
    "compacter": ["settings.reduction=4"],
    "adapter": ["settings.bottleneck=8"],
    "prefix-tuning": ["settings.length=4", "settings.mlp=0"],
    "prefix-tuning-mlp": ["settings.length=4", "settings.mlp=8"],
    "eh-ft-prefix": ["stage1.settings.length=16", "stage1.settings.mlp=0"],
    "eh-ft-prefix-reserve": ["stage1.settings.length=16", "stage1.settings.mlp=0"],
    "diff-pruning": ["settings.share=0.05"],
}
FAMILIES = ("bert", "roberta")


def write_encoder(directory: Path, family: str = "bert") -> Path:
    """A random encoder with a word-level tokenizer, in Hugging Face's layout."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = {word: number for number, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    second = 1 if family == "bert" else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if family == "bert" else ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=names,
    ).save_pretrained(directory)
    shape = {
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    model = (
        BertModel(BertConfig(**shape))
        if family == "bert"
        else RobertaModel(RobertaConfig(**shape, type_vocab_size=1), add_pooling_layer=False)
    )
    with torch.no_grad():  # as loud as a trained one: tiny random encoders say nearly nothing
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.dim() > 1 else parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return directory


def write_data(directory: Path, rows: int = 48) -> Path:
    """RTE (a pair task whose label is whether the second text starts as the first), CoLA and STS-B in GLUE's layout."""
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 9)))

    for folder in ("RTE", "CoLA", "STS-B"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    for split, number in (("train", rows), ("dev", rows // 2)):
        pairs = [(sentence(), sentence()) for _ in range(number)]
        flags = [index % 2 for index in range(number)]
        starts = ["dog" if flag else "cat" for flag in flags]
        lines = [
            f"{i}\t{starts[i]} {a}\t{starts[i]} {b}\t{'not_entailment' if flags[i] else 'entailment'}"
            for i, (a, b) in enumerate(pairs)
        ]
        _write(directory / "RTE" / f"{split}.tsv", ["index\tsentence1\tsentence2\tlabel", *lines])
        _write(directory / "CoLA" / f"{split}.tsv", [f"x\t{flags[i]}\t\t{starts[i]} {a}" for i, (a, _) in enumerate(pairs)])
        header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
        lines = [f"{i}\tg\tf\ty\t{i}\ts\ts\t{starts[i]} {a}\t{b}\t{4.0 * flags[i] + 0.5:.3f}" for i, (a, b) in enumerate(pairs)]
        _write(directory / "STS-B" / f"{split}.tsv", [header, *lines])
    return directory


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny encoder of each family."""
    root = tmp_path_factory.mktemp("encoders")
    return {family: write_encoder(root / f"tiny-{family}", family) for family in FAMILIES}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def make(encoders: dict[str, Path]) -> Callable[..., RunConfig]:
    """Configurations of tiny runs."""

    def build(
        method: str = "full-ft",
        *overrides: str,
        family: str = "bert",
        task: str = "rte",
        seed: int = 1,
        backbone: Path | None = None,
    ) -> RunConfig:
        directory, changed = str(backbone or encoders[family]), [*QUICK, *TINY.get(method, []), *overrides]
        return resolve(task=task, method=method, backbone=directory, protocol="hifi", seed=seed, overrides=changed)

    return build


@pytest.fixture
def resources(tmp_path: Path, data: Path) -> ResourceCache:
    """A results directory of the test's own."""
    return ResourceCache(tmp_path / "results", data)


@dataclass
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def hifi(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Answer]:
    """Runs the command line in this process, in an empty directory."""
    from hifi_cli.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # no test may reach for the network

    def run(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hifi", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        logging.getLogger("hifi").propagate = True  # as before the command, for tests that read the log
        return Answer(int(stopped.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def tiny(hifi: Callable[..., Answer], encoders: dict[str, Path], data: Path) -> Callable[..., Answer]:
    """`hifi COMMAND` on the tiny BERT and data."""

    def run(command: str, *words: object) -> Answer:
        quick = QUICK if command == "train" else []
        return hifi(command, "--task", "rte", "--backbone", encoders["bert"], "--data-dir", data, *words, *quick)

    return run
