"""What `--format json` of each command prints; `hifi ls schema output/COMMAND` prints its JSON Schema."""

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from hifi_cli.records.head_files import HeadScores, HeadSelection
from hifi_cli.records.run_checks import VerificationResult
from hifi_cli.records.run_files import RunResult
from hifi_cli.reports.formats.json_table import TableJson
from hifi_cli.reports.run_listing import ListedRun
from hifi_cli.runs.results_transfer import TransferState


class _Output(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ScoreOutput(_Output):
    """The scores of a task's heads."""

    path: str
    """The scores file."""
    scores: HeadScores
    """Its content."""


class SelectOutput(_Output):
    """The heads that were selected for a task."""

    path: str
    """The heads file."""
    selection: HeadSelection
    """Its content."""


class TrainOutput(_Output):
    """A finished run."""

    path: str
    """Directory of the run."""
    result: RunResult
    """The content of results.json; scores are fractions of 1."""


class MetricOutput(_Output):
    """A metric of a run that was evaluated again, as a fraction of 1."""

    now: float | None
    """Computed now; null: not computed."""
    stored: float | None
    """As the run stored it; null: not stored."""


class EvalOutput(_Output):
    """A run that was evaluated again."""

    path: str
    """Directory of the run."""
    metrics: dict[str, MetricOutput]
    """Every metric by its name."""
    largest_logit_difference: float
    """Between the logits now and the stored ones."""
    reproduced: bool
    """Whether the stored results were reproduced."""


class VerifyOutput(_Output):
    """A finished run that was verified."""

    path: str
    """Directory of the run."""
    verdict: VerificationResult
    """Whether the stored results hold."""
    problems: list[str]
    """What does not hold, or what is missing."""
    metrics: dict[str, MetricOutput]
    """Every metric by its name; empty where the model was not rebuilt."""
    largest_logit_difference: float | None
    """Between the logits now and the stored ones."""


class TransferOutput(_Output):
    """A run or a file that was pushed or pulled."""

    path: str
    """Its path in the results directory."""
    state: TransferState
    """What became of it."""
    files: list[str]
    """The files that were copied."""
    problem: str
    """Why it was not copied."""


class CellOutput(_Output):
    """A run of a grid."""

    task: str
    """Task of the run."""
    method: str
    """Method of the run."""
    seed: int
    """Seed of the run."""
    path: str
    """Directory of the run."""
    state: str
    """done, diverged, failed or unfinished."""
    score: float | None
    """The score that the protocol reports, in percent; null: there is none."""
    reason: str = ""
    """Why it failed or diverged."""
    command: str
    """The command that runs it alone."""


class GridOutput(_Output):
    """A grid, after it ran."""

    name: str
    """Name of the grid."""
    seconds: float
    """Time that the grid took."""
    finished_before: int
    """Number of runs that were finished before it started."""
    cells: list[CellOutput]
    """All runs of the grid."""


class CommandOutput(_Output):
    """A command that `--print` prints: it scores heads or trains runs that are missing."""

    command: str
    """The command line."""
    task: str
    """Task of its runs."""
    methods: list[str]
    """Methods of its runs; empty: it scores heads."""
    seeds: list[int]
    """Seeds of its runs; empty: it scores heads."""


class PredictionOutput(_Output):
    """The prediction for a row of a file."""

    id: str
    """The row's id, or its number."""
    prediction: str | float | list[str] | None = None
    """A label, a list of labels, a number, or an answer's text; tags of words have `tags` instead."""
    tokens: list[str] | None = None
    """The words that were tagged."""
    tags: list[str] | None = None
    """The tag of each word."""
    probabilities: dict[str, float] = {}
    """By label; not for numbers and answers."""


class KeyOutput(_Output):
    """A configuration key that `hifi ls` explains."""

    key: str
    """The key, with dots."""
    default: bool | int | float | str | None
    """Its default; null also for a section."""
    description: str
    """What it means."""


class NameOutput(_Output):
    """A name that `hifi ls` lists, or a YAML file."""

    kind: str
    """What it names: tasks, methods, ..."""
    name: str
    """The name."""
    description: str
    """What it is, in one line."""
    source: str = ""
    """Where it comes from."""
    content: dict[str, Any] | None = None
    """Its YAML, where a single name or file is given."""


class FileOutput(_Output):
    """A file or directory that a command wrote."""

    path: str
    """Its path."""


OUTPUTS: dict[str, Any] = {
    "score": list[ScoreOutput],
    "select": list[SelectOutput],
    "train": list[TrainOutput],
    "eval": list[EvalOutput] | list[FileOutput],
    "verify": list[VerifyOutput],
    "results": list[TransferOutput],
    "predict": list[PredictionOutput],
    "export": FileOutput,
    "grid": GridOutput | list[CommandOutput],
    "table": TableJson | list[TableJson],
    "compare": TableJson | list[TableJson],
    "claims": TableJson | list[TableJson],
    "report": FileOutput,
    "figure": FileOutput | list[CommandOutput],
    "cp": FileOutput,
    "ls": list[NameOutput | KeyOutput],
    "ls-runs": list[ListedRun],
}


def schema_of_output(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints with `--format json`."""
    return {"title": f"hifi {command.replace('-', ' ')} --format json", **TypeAdapter(OUTPUTS[command]).json_schema()}
