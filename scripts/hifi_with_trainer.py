"""HiFi with transformers' Trainer, without the `hifi` command: score, select, tune, merge, save.

python scripts/hifi_with_trainer.py --train train.tsv --model bert-base-uncased --to my-model

TRAIN is a TSV file with the columns text (and text2, for pairs) and label.
"""

import argparse
from pathlib import Path

from datasets import Dataset, load_dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from hifi_cli import merge_heads, score_heads, select_heads, tune_heads


def read(path: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[Dataset, list[str]]:
    """Return the tokenized rows with label indices, and the label names."""
    rows = load_dataset("csv", data_files=str(path), delimiter="\t", split="train", quoting=3)
    names = sorted(set(map(str, rows["label"])))
    texts = [column for column in ("text", "text2") if column in rows.column_names]

    def encode(batch: dict[str, list[str]]) -> dict[str, list[int]]:
        tokens = tokenizer(*(batch[column] for column in texts), truncation=True, max_length=128)
        return {**tokens, "labels": [names.index(str(label)) for label in batch["label"]]}

    return rows.map(encode, batched=True, remove_columns=rows.column_names), names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--model", default="bert-base-uncased")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--samples", type=int, default=300)
    given = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    train, names = read(given.train, tokenizer)
    model = AutoModelForSequenceClassification.from_pretrained(
        given.model,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    collate = DataCollatorWithPadding(tokenizer)

    # The four lines of HiFi: score heads on some training samples, select, tune, and merge at the end.
    sample = train.shuffle(seed=0).select(range(min(given.samples, len(train))))
    scores = score_heads(model, DataLoader(sample, batch_size=32, collate_fn=collate))
    tune_heads(model, select_heads(scores, k=given.k))
    settings = TrainingArguments(
        dataloader_pin_memory=False,
        output_dir=str(given.to / "checkpoints"),
        num_train_epochs=given.epochs,
        learning_rate=given.learning_rate,
        per_device_train_batch_size=32,
        save_strategy="no",
        report_to="none",
    )
    Trainer(model=model, args=settings, train_dataset=train, data_collator=collate).train()
    merge_heads(model).save_pretrained(given.to)
    tokenizer.save_pretrained(given.to)


if __name__ == "__main__":
    main()
