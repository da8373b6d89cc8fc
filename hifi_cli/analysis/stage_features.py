"""How far the features move within stage 1 and from stage 1 to stage 2 of two-stage methods (EH-FT, section 2.3)."""

import numpy as np

from hifi_cli.analysis import features
from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.instrumented_training import train
from hifi_cli.analysis.required_runs import RequiredRun, run_per_seed
from hifi_cli.config.registry import label_of
from hifi_cli.errors import UsageError
from hifi_cli.results.reload import reload
from hifi_cli.runs.trainer import Callback, Trainer

READS_WEIGHTS = True  # of its finished runs
TRAINS = True  # stage 1, whose model no run stores
PAIRS = {
    "pretrained-stage1": ("pretrained", "stage1"),
    "stage1-stage2": ("stage1", "stage2"),
    "pretrained-stage2": ("pretrained", "stage2"),
}


class Settings(features.Settings):
    """Which examples are used, and what the paper prints."""

    published: dict[str, float] = {}
    """The printed distance between the stages, by method."""


class StopAfterStage1(Callback):
    """Ends the training after the last step of stage 1."""

    def on_train_begin(self, trainer: Trainer) -> None:
        trainer.max_steps = trainer.phase_ends[-2]


def required_runs(request: FigureRequest) -> list[RequiredRun]:
    """Return a run for every task, method and seed.

    Raises:
        UsageError: a method has one stage.
    """
    required = run_per_seed(request)
    for run in required:
        if run.config.stage1 is None:
            raise UsageError(f"method {run.config.method} has one stage; this figure is for EH-FT and LP-FT")
    return required


def compute(request: FigureRequest) -> FigureTable:
    """Compute the features' L2 distances, mean and standard deviation over training examples, three rows per run.

    The model of stage 2 is the run's own. Runs do not store the model of stage 1: its steps are trained again, with the run's
    seed.
    """
    rows: list[Row] = []
    for run, examples, pad, pretrained in features.with_pretrained_features(required_runs(request), request):
        config, resources = run.config, request.resources
        states = {"pretrained": pretrained}
        stage1 = train(config, resources, StopAfterStage1())
        states["stage1"] = features.features(stage1.encoder, examples, pad)
        with reload(run.directory.path, resources) as (prepared, _):
            states["stage2"] = features.features(prepared.encoder, examples, pad)
        for name, (first, second) in PAIRS.items():
            distances = np.linalg.norm(states[second] - states[first], axis=1)
            rows.append(
                {
                    "task": config.task,
                    "method": config.method,
                    "label": label_of("methods", config.method),
                    "seed": config.seed,
                    "examples": len(examples),
                    "pair": name,
                    "mean": distances.mean(),
                    "std": distances.std(),
                    "published": request.settings.published.get(config.method) if name == "stage1-stage2" else None,
                }
            )
    return FigureTable(rows, [f"stage 2: the model of the reported epoch; {request.over_seeds}"])
