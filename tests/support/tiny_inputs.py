"""Tiny random encoders and small data sets in their official layouts, and settings that fit them."""

import json
import random
from pathlib import Path
from typing import Any

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
QUICK = ["epochs=2", "batch_size=8", "precision=fp32", "heads.k=2", "scoring.samples=12"]
# The same as arguments of `hifi train` for any method: two of the settings are of methods that select heads
QUICK_WORDS = [*QUICK, "--allow-unused"]
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
    "road": ["settings.options.group_size=8"],
    "c3a": ["settings.options.block_size=8"],
    "diff-pruning": ["settings.kept_fraction=0.05"],
}
FAMILIES = ("bert", "roberta")
# The families that `make test` tries: the usual one, relative positions, mixed attention, a decoder.
OFTEN_TESTED_FAMILIES = ("bert", "deberta-v2", "modernbert", "qwen3")
FAMILY_SETTINGS = {  # of models of the other families; local attention reaches two tokens
    "distilbert": {"hidden_dim": INNER},
    "electra": {"embedding_size": 8},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 4,
        "share_att_key": True,
    },
    "eurobert": {"mask_token_id": 3},
    "qwen2": {"num_key_value_heads": HEADS},
    "qwen3": {"num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS},
    "mistral": {"num_key_value_heads": HEADS},
    "gemma3_text": {"num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "sliding_window": 4},
    "rembert": {"input_embedding_size": 8, "cls_token_id": 1, "sep_token_id": 2},
    "modernbert": {
        "global_attn_every_n_layers": 2,
        "local_attention": 4,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}


def random_encoder(family: str, **settings: Any) -> Any:
    """A random model of any family that classifies two classes, whose heads differ enough that rounding does not decide."""
    import pytest
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as WITH_CLASSIFIER,
    )

    # The lowest transformers that is allowed lacks some families.
    if family not in CONFIG_MAPPING or CONFIG_MAPPING[family].model_type not in WITH_CLASSIFIER:
        pytest.skip(f"transformers {transformers.__version__} has no {family} with a classifier")
    shape = {
        "vocab_size": len(WORDS) + 4,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": 40,
        "initializer_range": 0.2,
    }
    config = AutoConfig.for_model(family, **(shape | FAMILY_SETTINGS.get(family, {}) | settings))
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config).eval()


def write_encoder(directory: Path, family: str = "bert") -> Path:
    """A random encoder with a word-level tokenizer, in Hugging Face's layout."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertConfig,
        BertModel,
        PreTrainedTokenizerFast,
        RobertaConfig,
        RobertaModel,
    )

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = {word: index for index, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    second = 1 if family == "bert" else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = (
        ["input_ids", "token_type_ids", "attention_mask"]
        if family == "bert"
        else ["input_ids", "attention_mask"]
    )
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
            parameter.mul_(3.0) if parameter.dim() > 1 else parameter.add_(
                0.05 * torch.randn_like(parameter)
            )
    model.save_pretrained(directory)
    return directory


def write_data(directory: Path, rows: int = 48) -> Path:
    """RTE (a pair task whose label is whether the second text starts as the first), CoLA and STS-B in GLUE's layout."""
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 9)))

    for split, number in (("train", rows), ("dev", rows // 2)):
        pairs = [(sentence(), sentence()) for _ in range(number)]
        flags = [index % 2 for index in range(number)]
        starts = ["dog" if flag else "cat" for flag in flags]
        lines = [
            f"{i}\t{starts[i]} {a}\t{starts[i]} {b}\t{'not_entailment' if flags[i] else 'entailment'}"
            for i, (a, b) in enumerate(pairs)
        ]
        write_lines(
            directory / "RTE" / f"{split}.tsv", ["index\tsentence1\tsentence2\tlabel", *lines]
        )
        write_lines(
            directory / "CoLA" / f"{split}.tsv",
            [f"x\t{flags[i]}\t\t{starts[i]} {a}" for i, (a, _) in enumerate(pairs)],
        )
        header = (
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
        )
        lines = [
            f"{i}\tg\tf\ty\t{i}\ts\ts\t{starts[i]} {a}\t{b}\t{4.0 * flags[i] + 0.5:.3f}"
            for i, (a, b) in enumerate(pairs)
        ]
        write_lines(directory / "STS-B" / f"{split}.tsv", [header, *lines])
    return directory


def write_lines(path: Path, lines: list[str]) -> None:
    """A text file of these lines, in folders that it makes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


ROWS_OF_A_KIND = 24


def write_target_words(root: Path) -> Path:
    """Write small data of WiC: pairs of texts, each with a word at a place of its own."""
    lines = []
    for number in range(24):
        before = ["old", "small old", "the small old"]
        firsts, seconds = before[number % 3], before[number % 2]
        row = {"idx": number, "word": "dog", "label": number % 4 < 2}
        for which, text in ((1, firsts), (2, seconds)):
            row[f"sentence{which}"] = f"{text} dog {'man ' * (number % 5)}cat"
            row[f"start{which}"] = len(text) + 1
            row[f"end{which}"] = len(text) + 4
        lines.append(json.dumps(row))
    for name in ("train", "val"):
        write_lines(root / "WiC" / f"{name}.jsonl", lines)
    return root


def write_task_kinds_data(root: Path) -> Path:
    """COPA, SWAG, SQuAD, MultiRC and MNLI: the right answer begins with a word of its own; CoNLL-2003: words of their own."""
    rng = random.Random(0)

    def text(words: int = 4) -> str:
        return " ".join(rng.choice(WORDS[6:]) for _ in range(words))

    for name in ("train", "val"):
        copa, multirc, questions = [], [], []
        swag = ["sent1,sent2,ending0,ending1,ending2,ending3,label"]
        for at in range(ROWS_OF_A_KIND):
            label, endings = at % 2, [f"cat {text()}", f"cat {text()}"]
            endings[label] = f"dog {text()}"
            choices = {"choice1": endings[0], "choice2": endings[1]}
            copa.append(
                json.dumps(
                    {
                        "premise": f"{text()}.",
                        **choices,
                        "question": "cause",
                        "label": label,
                        "idx": at,
                    }
                )
            )
            swag.append(
                ",".join([text(), "the", *endings, f"cat {text()}", f"cat {text()}", str(label)])
            )
            answers = [
                {"text": ending, "idx": place, "label": int(place == label)}
                for place, ending in enumerate(endings)
            ]
            passage = {
                "text": text(),
                "questions": [{"question": text(2), "idx": at, "answers": answers}],
            }
            multirc.append(json.dumps({"idx": at, "passage": passage}))
            answer = {"text": ("dog", "cat")[label], "answer_start": len(before := text(9)) + 1}
            question = {"id": f"q{at}", "question": "the animal", "answers": [answer]}
            questions.append(
                {"context": f"{before} {answer['text']} {text(12)}", "qas": [question]}
            )
        write_lines(root / "COPA" / f"{name}.jsonl", copa)
        write_lines(root / "MultiRC" / f"{name}.jsonl", multirc)
        write_lines(root / "swag" / f"{name}.csv", swag)
        squad = json.dumps({"data": [{"title": "t", "paragraphs": questions}]})
        write_lines(root / "squad" / f"{'train' if name == 'train' else 'dev'}-v1.1.json", [squad])
    for name, shift in (("train", 0), ("dev_matched", 0), ("dev_mismatched", 1)):
        pairs = [
            (
                ("dog", "cat", "bird")[at % 3],
                ("entailment", "neutral", "contradiction")[(at + shift) % 3],
            )
            for at in range(ROWS_OF_A_KIND)
        ]
        write_lines(
            root / "MNLI" / f"{name}.tsv",
            [
                "index\tsentence1\tsentence2\tgold_label",
                *(
                    f"{at}\t{word} {text()}\t{word}\t{label}"
                    for at, (word, label) in enumerate(pairs)
                ),
            ],
        )
    for name in ("train", "valid", "test"):
        write_lines(root / "conll2003" / f"{name}.txt", conll_lines(random.Random(name)))
    return root


ENTITIES = {
    "PER": ["old", "man"],
    "ORG": ["dog"],
    "LOC": ["cat-bird"],
    "MISC": ["fish", "fish", "never"],
}


def conll_lines(rng: random.Random, rows: int = ROWS_OF_A_KIND) -> list[str]:
    """Sentences of CoNLL-2003's four columns, with two entities each, the words of which occur nowhere else."""
    lines = ["-DOCSTART- -X- -X- O", ""]
    for _ in range(rows):
        for name in rng.sample(sorted(ENTITIES), 2):
            lines += [f"{rng.choice(WORDS[10:16])} V B-VP O" for _ in range(rng.randint(1, 3))]
            lines += [
                f"{word} N B-NP {'I' if at else 'B'}-{name}"
                for at, word in enumerate(ENTITIES[name])
            ]
        lines += [". . O O", ""]
    return lines
