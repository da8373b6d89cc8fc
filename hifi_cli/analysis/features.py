"""How far fine-tuning moves the features that the task head reads (EH-FT, figure 1)."""

from collections.abc import Iterable, Iterator
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.required_runs import RequiredRun
from hifi_cli.analysis.required_runs import run_per_seed as required_runs
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.registry import label_of
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.reload import reload
from hifi_cli.runs.splits import load_splits
from hifi_cli.tasks.batches import collate, evaluation_order, padding_values
from hifi_cli.tasks.tokenization import Example, single_sequences

READS_WEIGHTS = True  # of its finished runs


class Settings(ConfigModel):
    """Which examples are used."""

    examples: int = 1000
    """Highest number of training examples."""


def compute(request: FigureRequest) -> FigureTable:
    """Compute the features' L2 change, mean and standard deviation over training examples, one row per run.

    `epoch` is the epoch whose model the run kept, counted from 1.
    """
    rows: list[Row] = []
    for run, examples, pad, before in with_pretrained_features(required_runs(request), request):
        config, resources = run.config, request.resources
        with reload(run.directory.path, resources) as (prepared, result):
            distances = np.linalg.norm(features(prepared.encoder, examples, pad) - before, axis=1)
        rows.append(
            {
                "task": config.task,
                "method": config.method,
                "label": label_of("methods", config.method),
                "seed": config.seed,
                "epoch": result.epoch(result.kept_score),
                "examples": len(examples),
                "mean": distances.mean(),
                "std": distances.std(),
                "score": result.score(),
                "metric": result.primary_metric,
            }
        )
    return FigureTable(rows, [_note_on_epochs(request, rows), request.over_seeds])


def with_pretrained_features(
    required: Iterable[RequiredRun], request: FigureRequest
) -> Iterator[tuple[RequiredRun, list[Example], dict[str, int], NDArray[np.float64]]]:
    """Yield each run with its training examples, their padding values, and their features in the pretrained encoder.

    Runs on the same examples share these features: they do not depend on method and seed.
    """
    previous: list[Example] = []
    for run in required:
        chosen = load_splits(run.config, request.resources).train[: request.settings.examples]
        if len(chosen) != len(previous) or not all(map(is_, chosen, previous)):
            pretrained = request.resources.pretrained(run.config)
            pad, examples = padding_values(pretrained.tokenizer), single_sequences(chosen)
            before = features(Encoder(pretrained.model), examples, pad)
            previous = chosen
        yield run, examples, pad, before


def _note_on_epochs(request: FigureRequest, rows: list[Row]) -> str:
    """Say which epoch's model is measured, of each method."""
    if request.config(request.spec.tasks[0]).report == "last":
        return "the model of the last epoch"
    epochs: dict[str, list[int]] = {}
    for row in rows:
        epochs.setdefault(row["label"], []).append(row["epoch"])
    listed = "; ".join(f"{label} {', '.join(map(str, numbers))}" for label, numbers in epochs.items())
    return (
        f"the model of the epoch with the best validation score ({listed}); for the last epoch:"
        " report=last variant=last at the end of the command"
    )


@torch.inference_mode()
def features(encoder: Encoder, examples: list[Example], pad: dict[str, int], batch_size: int = 64) -> NDArray[np.float64]:
    """Return the first token's hidden state in the last layer, without dropout: [examples, hidden size]."""
    encoder.model.eval()
    states = np.zeros((len(examples), encoder.hidden_size))
    for indices in evaluation_order(examples, batch_size):
        batch = {name: values.to(encoder.device) for name, values in collate([examples[i] for i in indices], pad).items()}
        states[indices] = encoder.base(**batch).last_hidden_state[:, 0].double().cpu().numpy()
    return states
