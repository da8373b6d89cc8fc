"""How far fine-tuning moves the features that the task head reads (EH-FT, figure 1)."""

import numpy as np
import torch
from numpy.typing import NDArray

from hifi_cli.analysis.base import FigureRequest, Points, Row
from hifi_cli.analysis.required_runs import Need, need
from hifi_cli.config.run_config import ConfigModel
from hifi_cli.models.encoder import Encoder
from hifi_cli.reports.table_spec import label_of
from hifi_cli.runs import evaluate, head_selection
from hifi_cli.runs.run import split_examples
from hifi_cli.tasks.batches import collate, evaluation_order
from hifi_cli.tasks.tokenization import Example, single_sequences


class Settings(ConfigModel):
    """`examples`: training examples at most."""

    examples: int = 1000


def needs(asked: FigureRequest) -> list[Need]:
    """A run for every task, method and seed, from where `hifi train` puts it."""
    return [
        need(asked, task, method, seed)
        for task in asked.spec.tasks
        for method in asked.spec.methods
        for seed in asked.spec.seeds
    ]


def compute(asked: FigureRequest) -> Points:
    """Mean and deviation over training examples of the features' L2 change, one row per run."""
    rows: list[Row] = []
    for one in needs(asked):
        config, resources = one.config, asked.resources
        pretrained = resources.pretrained(config)
        pad = head_selection.padding(pretrained.tokenizer)
        examples = single_sequences(split_examples(config, resources).train[: asked.settings.examples])
        before = features(Encoder(pretrained.model), examples, pad)
        with evaluate.reload(one.directory.path, resources) as (prepared, results):
            distances = np.linalg.norm(features(prepared.encoder, examples, pad) - before, axis=1)
        rows.append(
            {
                "task": config.task,
                "method": config.method,
                "label": label_of("methods", config.method),
                "seed": config.seed,
                "examples": len(examples),
                "mean": distances.mean(),
                "std": distances.std(),
                "score": results["scores"][results["report"]],
                "metric": results["primary_metric"],
            }
        )
    return Points(rows, [f"the model of the reported epoch; {asked.over_seeds}"])


@torch.inference_mode()
def features(encoder: Encoder, examples: list[Example], pad: dict[str, int], batch_size: int = 64) -> NDArray[np.float64]:
    """The first token's state in the last layer, dropout off: [examples, hidden size]."""
    encoder.model.eval()
    device = next(encoder.model.parameters()).device
    found = np.zeros((len(examples), encoder.hidden_size))
    for indices in evaluation_order([len(example) for example in examples], batch_size):
        batch = {name: values.to(device) for name, values in collate([examples[i] for i in indices], pad).items()}
        found[indices] = encoder.base(**batch).last_hidden_state[:, 0].double().cpu().numpy()
    return found
