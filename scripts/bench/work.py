"""What every contestant is given: the same tokens of the same rows, the same encoder, the same batch size."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import ResourceCache

BATCH_SIZE, EVAL_BATCH_SIZE = 32, 64
MAX_LENGTH = 128
LEARNING_RATE = 5e-5
REAL_TASKS, GENERATED_TASKS = ("mrpc", "cola", "rte"), ("demo-entailment", "demo-acceptability")
SHAPES = {"bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}}


@dataclass
class Work:
    """Rows of a task for an encoder.

    Attributes:
        backbone: a backbone's name, or the directory of an encoder.
        rows: training examples of an epoch.
    """

    resources: ResourceCache
    task: str
    backbone: str
    rows: int

    def config(self, method: str, **keys: Any) -> RunConfig:
        """Our configuration of a method on this work."""
        defaults = {"precision": "fp32", "batch_size": BATCH_SIZE, "max_length": MAX_LENGTH, "learning_rate": LEARNING_RATE}
        keys = {**defaults, "limit": self.rows, **keys}
        overrides = [f"{key}={value}" for key, value in keys.items()]
        return resolve(task=self.task, method=method, backbone=self.backbone, protocol="laptop", overrides=overrides)

    @cached_property
    def examples(self) -> list[Example]:
        """The first `rows` training examples, tokenized."""
        return self.resources.examples(self.config("full-ft"), "train", MAX_LENGTH)[: self.rows]

    @cached_property
    def validation(self) -> list[Example]:
        """As many validation examples for each training example as the task has."""
        config = self.config("full-ft")
        train, validation = (self.resources.examples(config, split, MAX_LENGTH) for split in ("train", "validation"))
        return validation[: max(1, round(self.rows * len(validation) / len(train)))]

    @property
    def tokens(self) -> int:
        """Tokens of an epoch, without padding."""
        return sum(map(len, self.examples))


def tasks() -> tuple[str, ...]:
    """Real tasks where HIFI_DATA_DIR names their files, generated ones otherwise."""
    return REAL_TASKS if "HIFI_DATA_DIR" in os.environ else GENERATED_TASKS


def resources(results: Path) -> ResourceCache:
    """The data, tokenizers and encoders that the runs share."""
    data = os.environ.get("HIFI_DATA_DIR")
    return ResourceCache(results, Path(data) if data else None)


def encoder_of(shape: str, tokenizer_of: str, directory: str) -> str:
    """The directory, with an encoder of a published shape in it; its weights are random, which does not matter to its speed."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    tokenizer.save_pretrained(directory)
    BertModel(BertConfig(vocab_size=len(tokenizer), **SHAPES[shape])).save_pretrained(directory)
    return directory
