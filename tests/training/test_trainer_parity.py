"""Without dropout, training gives the weights that transformers' Trainer gives on the same batches."""

from itertools import chain

import pytest
import torch
from peft import LoraConfig, get_peft_model
from prepared_models import prepared_run, pretrained_of, splits_of
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from hifi_cli.tasks.encode import epoch_batches
from hifi_cli.training import loop
from hifi_cli.training.loop import Splits

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # in peft
SETTINGS = [
    "dropout=0.0",
    "warmup=0.25",
    "weight_decay=0.1",
    "learning_rate=1e-3",
    "max_grad_norm=0.5",
]
EPOCHS, BATCH_SIZE = 2, 8


def train_with_trainer(model, examples, config, tokenizer, directory):
    """The stock Trainer, given the order of the examples."""

    class OrderedTrainer(Trainer):
        def _get_train_sampler(self, *_, **__):
            epochs = iter(range(EPOCHS))

            class Order(torch.utils.data.Sampler):
                def __len__(self):
                    return len(examples)

                def __iter__(self):
                    epoch = next(epochs)
                    batches = epoch_batches(config, config.batch_size, examples, epoch)
                    ordered = chain.from_iterable(batches)
                    return iter([examples.index(example) for example in ordered])

            return Order()

    arguments = TrainingArguments(
        output_dir=str(directory),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup,  # below 1: a share of all steps
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = [{**example.sequences[0], "labels": int(example.row.label)} for example in examples]
    OrderedTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
    ).train()


def stock_model(encoders):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return AutoModelForSequenceClassification.from_pretrained(
        encoders["bert"], num_labels=2, **rates
    )


def assert_equal_training(ours, theirs, start):
    """Both moved by the same; a key bias has no gradient but rounding."""
    for name, value in theirs.items():
        moved = (value - start[name]).norm()
        assert (ours[name] - value).norm() <= 2e-3 * moved + 1e-5, name


def test_full_fine_tuning_ends_with_the_trainers_weights(make, workspace, encoders, tmp_path):
    config = make("full-ft", *SETTINGS, "train_sampling_strategy=group_by_length")
    prepared, examples = prepared_run(config, workspace), splits_of(config, workspace).train
    model = stock_model(encoders)
    model.load_state_dict(prepared.encoder.model.state_dict())
    start = {name: value.clone() for name, value in model.state_dict().items()}
    train_with_trainer(
        model, examples, config, pretrained_of(config, workspace).tokenizer, tmp_path
    )
    loop.Trainer(prepared, prepared.method, Splits(examples)).train()
    assert_equal_training(prepared.encoder.model.state_dict(), model.state_dict(), start)


def test_lora_ends_with_the_weights_of_peft_in_the_trainer(make, workspace, encoders, tmp_path):
    config = make("lora", *SETTINGS)
    prepared, examples = prepared_run(config, workspace), splits_of(config, workspace).train
    lora = LoraConfig(
        task_type="SEQ_CLS",
        r=8,
        lora_alpha=16,
        target_modules=["query", "key"],
        modules_to_save=["pooler", "classifier"],
    )
    peft = get_peft_model(stock_model(encoders), lora)
    start = {
        name: value.clone() for name, value in prepared.method.delta(prepared.encoder.model).items()
    }
    plain_names = {
        name: name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
        for name, _ in peft.named_parameters()
    }
    theirs = {
        plain_names[name]: value for name, value in peft.named_parameters() if value.requires_grad
    }
    assert theirs.keys() == start.keys()
    with torch.no_grad():
        for name, value in theirs.items():
            value.copy_(start[name])
    train_with_trainer(peft, examples, config, pretrained_of(config, workspace).tokenizer, tmp_path)
    loop.Trainer(prepared, prepared.method, Splits(examples)).train()
    assert_equal_training(prepared.method.delta(prepared.encoder.model), theirs, start)


@pytest.mark.parametrize(
    ("method", "decay"), [("full-ft", 0.0), ("full-ft", 0.1), ("eh-ft-bitfit", 0.1)]
)
def test_leaving_out_words_that_do_not_occur_changes_no_weight(method, decay, make, workspace):
    config = make(
        method, *SETTINGS, f"weight_decay={decay}", "limit=6", "batch_size=2", "kernels=torch"
    )
    weights = []
    for occurring in (True, False):
        prepared, splits = prepared_run(config, workspace), splits_of(config, workspace)
        prepared.encoder.model.double()
        trainer = loop.Trainer(prepared, prepared.method, splits, trains_all_words=not occurring)
        trainer.train()
        assert (trainer.stage.word_rows is not None) == occurring
        weights.append({**prepared.encoder.model.state_dict(), **trainer.delta})
    assert len(trainer.encoder.word_embedding.weight) > 1 + len(
        {*chain(*(e.sequences[0]["input_ids"] for e in splits.train))}
    )
    torch.testing.assert_close(*weights, rtol=1e-12, atol=1e-14)
