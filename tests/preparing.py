"""A method on its model, prepared or trained, for tests that look inside."""

import torch

from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.evaluate import reload
from hifi_cli.tasks.batches import collate


def prepare(make, resources, method, *overrides, **how):
    config = make(method, *overrides, **how)
    return runs.prepare(config, resources, runs.chosen_heads(config, resources)), config


def batch_of(config, resources, count=6):
    return collate(runs.split_examples(config, resources).train[:count], {"input_ids": 0, "token_type_ids": 0})


def logits(model, batch):
    model.eval()
    with torch.no_grad():
        return model(**batch).logits


def trained_state(make, resources, method, *overrides):
    """The merged model of a finished run, beside the pretrained one with the same fresh head."""
    config = make(method, *overrides)
    before = {name: value.clone() for name, value in resources.encoder(config)[0].model.state_dict().items()}
    results = runs.run(config, resources)
    with reload(RunDirectory.of(config, resources.results_dir).path, resources) as (prepared, _):
        prepared.method.merge(prepared.encoder)
    return before, prepared, results
