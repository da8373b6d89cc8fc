"""The runs that a figure's numbers rest on: `NAME.runs.json`, beside `NAME.csv`.

The CSV holds numbers alone, so that every program reads it as before. Many rows are of several runs,
or of none that is stored, and a column would repeat the digests of one run for hundreds of rows: the
runs have a file of their own, which names the bytes of the CSV that it belongs to.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from hifi_cli.digests import file_digest
from hifi_cli.records.record import Record, RunResult, StoredFile, labelled_splits

# A training or measurement of the figure's own shares these with the study's run of its name.
_INPUTS = ("task_digest", "data", "backbone_weights", "method_code")
# A finished run must still have these. Its weights are the last, because a run may store none.
_FINISHED = ("config_hash", *_INPUTS, "draws", "delta_sha256")


class FigureRun(Record):
    """A run that numbers of a figure rest on, by what decides its numbers."""

    run: str
    """Its path, `runs/...`; of what the figure computed itself, the path that such a run would have."""
    is_finished: bool
    """Whether it is a finished run of the results directory; else the figure trained or measured it."""
    config_hash: str
    task_digest: str | None
    data: dict[str, str]
    """Digest of the rows of every labelled split."""
    backbone_weights: str | None
    method_code: str | None
    draws: dict[str, int]
    """Versions of the random draws; of what the figure measured itself, those of the run's training."""
    delta_sha256: str | None = None
    """SHA-256 of the weights that a finished run stored; None: it stored none, or is not finished."""

    @classmethod
    def of(cls, path: str, result: RunResult) -> "FigureRun":
        """Describe a finished run."""
        return cls(
            run=path,
            is_finished=True,
            config_hash=result.config_hash,
            task_digest=result.task_digest,
            data=labelled_splits(result.data),
            backbone_weights=result.backbone_weights,
            method_code=result.method_code,
            draws=result.draws,
            delta_sha256=result.delta_sha256,
        )


def read_numbers(csv: Path) -> pd.DataFrame:
    """Read the numbers of a figure; only an empty cell is missing."""
    # By default pandas takes words such as None and NA, which a class may be called, as missing.
    return pd.read_csv(csv, keep_default_na=False, na_values=[""])


class FigureRuns(StoredFile):
    """The content of `NAME.runs.json`."""

    csv_sha256: str
    """SHA-256 of the CSV."""
    runs: list[FigureRun]
    """In the order in which the figure asked for them."""


def file_beside(csv: Path) -> Path:
    """Return where the runs of a figure's CSV are stored."""
    return csv.with_suffix(".runs.json")


def write_beside(csv: Path, runs: list[FigureRun]) -> None:
    """Store the runs that the numbers of a written CSV rest on."""
    FigureRuns(csv_sha256=file_digest(csv), runs=runs).write(file_beside(csv))


def csvs_of(directory: Path) -> list[Path]:
    """Return the stored numbers of a results directory's or a packed study's figures, sorted."""
    return sorted((directory / "figures").glob("*.csv"))


def find_other_runs(csv: Path, results: Mapping[str, RunResult]) -> Iterator[str]:
    """Find what contradicts that a figure's numbers rest on the runs of a study.

    Args:
        csv: its numbers; the runs stand beside it.
        results: of the study, by path.

    Yields:
        Problems: another CSV, a finished run that the study lacks, and the fields that differ.
    """
    stored = FigureRuns.read(file_beside(csv))
    if file_digest(csv) != stored.csv_sha256:
        yield f"has other bytes than {file_beside(csv).name} says (csv_sha256)"
    for run in stored.runs:
        if run.run not in results:
            if run.is_finished:
                yield f"rests on {run.run}, which is not here"
            continue
        here = FigureRun.of(run.run, results[run.run])
        fields = _FINISHED if run.is_finished else _INPUTS
        differing = [name for name in fields if getattr(run, name) != getattr(here, name)]
        if differing:
            yield f"rests on another {run.run}, which differs in {', '.join(differing)}"
