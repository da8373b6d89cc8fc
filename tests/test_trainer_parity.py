"""Without dropout, training gives the weights that transformers' Trainer gives on the same batches."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

from hifi_cli.tasks.encode import training_order
from hifi_cli.training import loop
from hifi_cli.training.data import load_splits, prepare

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # in peft
SETTINGS = ["dropout=0.0", "warmup=0.25", "weight_decay=0.1", "learning_rate=1e-3", "max_grad_norm=0.5"]
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
                    lengths, strategy = list(map(len, examples)), config.train_sampling_strategy
                    batches = training_order(lengths, BATCH_SIZE, strategy=strategy, seed=config.seed, epoch=epoch)
                    return iter([index for batch in batches for index in batch])

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
    OrderedTrainer(model=model, args=arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)).train()


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_full_fine_tuning_ends_with_the_trainers_weights(make, resources, encoders, tmp_path, strategy):
    config = make("full-ft", *SETTINGS, f"train_sampling_strategy={strategy}")
    prepared = prepare(config, resources)
    examples = load_splits(config, resources).train
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModelForSequenceClassification.from_pretrained(encoders["bert"], num_labels=2, **rates)
    model.load_state_dict(prepared.encoder.model.state_dict())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tokenizer = resources.pretrained(config).tokenizer

    train_with_trainer(model, examples, config, tokenizer, tmp_path)
    loop.Trainer(prepared.runner, prepared.method, examples).train()

    trained = prepared.encoder.model.state_dict()
    for name, value in model.state_dict().items():
        moved = (value - before[name]).norm()
        assert (trained[name] - value).norm() <= 2e-3 * moved + 1e-5, name  # a key bias has no gradient but rounding


def test_lora_ends_with_the_weights_of_peft_in_the_trainer(make, resources, encoders, tmp_path):
    from peft import LoraConfig, get_peft_model

    config = make("lora", *SETTINGS)
    prepared = prepare(config, resources)
    examples = load_splits(config, resources).train
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModelForSequenceClassification.from_pretrained(encoders["bert"], num_labels=2, **rates)
    lora = LoraConfig(
        task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "key"], modules_to_save=["pooler", "classifier"]
    )
    peft = get_peft_model(model, lora)
    start = prepared.method.delta(prepared.encoder.model)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            plain = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
            assert parameter.requires_grad == (plain in start), name
            if parameter.requires_grad:
                parameter.copy_(start[plain])
    before = {name: value.clone() for name, value in start.items()}

    train_with_trainer(peft, examples, config, resources.pretrained(config).tokenizer, tmp_path)
    loop.Trainer(prepared.runner, prepared.method, examples).train()

    trained = prepared.method.delta(prepared.encoder.model)
    for name, parameter in peft.named_parameters():
        if parameter.requires_grad:
            plain = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
            moved = (parameter - before[plain]).norm()
            assert (trained[plain] - parameter).norm() <= 2e-3 * moved + 1e-5, name  # a key bias has no gradient but rounding
