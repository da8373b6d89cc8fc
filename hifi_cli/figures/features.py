"""How far fine-tuning moves the features that the task head reads (EH-FT, figure 1)."""

from collections.abc import Iterator
from operator import is_
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.grids.cells import GridCell
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.reload import reload
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values, single_sequences
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import load_splits

READS_WEIGHTS = True  # of its finished runs
cells = FigureRequest.cell_per_seed


class Settings(ConfigModel):
    """Which examples are used."""

    examples: int = 1000
    """Highest number of training examples."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the features' L2 change, mean and standard deviation over training examples, one row per run.

    `epoch` is the epoch whose model the run kept, counted from 1.
    """
    rows = []
    for cell, examples, pad, before in with_pretrained_features(request):
        run, changes = request.run(cell), features_of_run(cell, request, examples, pad) - before
        distances = np.linalg.norm(changes, axis=1)
        rows.append(
            {
                "task": run["task"],
                "method": run["method"],
                "label": label_of("methods", run["method"]),
                "seed": run["seed"],
                "epoch": int(run["epochs" if run["report"] == "last" else "epoch_best"]),
                "examples": len(examples),
                "mean": distances.mean(),
                "std": distances.std(),
                "score": run[run["report"]],
                "metric": run["metric"],
            }
        )
    data = pd.DataFrame(rows)
    request.notes += [_which_epoch(request, data), request.over_seeds]
    return data


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a bar per method with its number: mean over seeds of the mean L2 change; error bars: standard deviation."""
    tasks = list(data["task"].unique())
    figure, axes = style.task_grid(tasks, height=0.6 + 0.24 * data["method"].nunique())
    for ax, task in zip(axes, tasks, strict=True):
        methods = data[data["task"] == task].groupby("label", sort=False)["mean"]
        style.bars(ax, None, methods, color="#6f9fc8")
        ax.invert_yaxis()
        ax.margins(x=0.15)
        ax.set_title(style.panel_title(record, task))
        ax.set_xlabel("$L_2$ change of the features")
    return figure


def with_pretrained_features(request: FigureRequest) -> Iterator[tuple[GridCell, list[Example], dict[str, int], Any]]:
    """Yield each run with its training examples, their padding values, and their features in the pretrained encoder.

    Runs on the same examples share these features: they do not depend on method and seed.
    """
    previous: list[Example] = []
    for cell in request.cells():
        chosen = load_splits(cell.config, request.resources).train[: request.settings.examples]
        if len(chosen) != len(previous) or not all(map(is_, chosen, previous)):
            pretrained = request.resources.pretrained(cell.config)
            pad, examples = padding_values(pretrained.tokenizer), single_sequences(chosen)
            before = features(Encoder(pretrained.model), examples, pad)
            previous = chosen
        yield cell, examples, pad, before


def features_of_run(
    cell: GridCell, request: FigureRequest, examples: list[Example], pad: dict[str, int]
) -> NDArray[np.float64]:
    """Return the features in the model that a finished run kept."""
    directory = cell.run_directory(request.resources.results_dir)
    with reload(directory.path, request.resources) as (prepared, _):
        return features(prepared.encoder, examples, pad)


@torch.inference_mode()
def features(encoder: Encoder, examples: list[Example], pad: dict[str, int], batch_size: int = 64) -> NDArray[np.float64]:
    """Return the first token's hidden state in the last layer, without dropout: [examples, hidden size]."""
    encoder.model.eval()
    states = np.zeros((len(examples), encoder.hidden_size))
    for indices in evaluation_order(examples, batch_size):
        batch = collate([examples[index] for index in indices], pad)
        inputs = {name: values.to(encoder.device) for name, values in batch.items()}
        states[indices] = encoder.base(**inputs).last_hidden_state[:, 0].double().cpu().numpy()
    return states


def _which_epoch(request: FigureRequest, data: style.Frame) -> str:
    """Say which epoch's model is measured, of each method."""
    if request.config(request.spec.tasks[0]).report == "last":
        return "the model of the last epoch"
    epochs = data.groupby("label", sort=False)["epoch"]
    listed = "; ".join(f"{label} {', '.join(map(str, numbers))}" for label, numbers in epochs)
    return (
        f"the model of the epoch with the best validation score ({listed}); for the last epoch:"
        " report=last variant=last at the end of the command"
    )
