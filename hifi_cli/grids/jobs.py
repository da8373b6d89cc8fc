"""Jobs: command lines that score heads or train some cells in one process, longest first."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hifi_cli.config.sources import train_arguments
from hifi_cli.files import command_line, digest
from hifi_cli.grids.cells import GridCell


@dataclass(frozen=True)
class JobOptions:
    """The options that all command lines of a grid share."""

    results_dir: Path
    data_dir: Path | None = None

    @property
    def arguments(self) -> list[str]:
        """The options as they stand on a command line."""
        data = ["--data-dir", str(self.data_dir)] if self.data_dir else []
        return ["--results-dir", str(self.results_dir), *data]


@dataclass(frozen=True)
class Job:
    """One process that scores heads or trains cells.

    Attributes:
        command: `train` or `score`.
        cells: the cells it trains, in order; for `score` the one cell whose settings it uses.
        needs: key of the scoring that must be finished first, if any.
        force: whether existing files, which are damaged, are replaced.
    """

    command: str
    cells: tuple[GridCell, ...]
    needs: str | None = None
    force: bool = False

    @property
    def name(self) -> str:
        """A name for messages and for the log file."""
        first = self.cells[0]
        if self.command == "score":
            return f"score/{first.config.task}"
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        return f"{first.name}{more}"

    @property
    def cost(self) -> float:
        """The expected duration, in the unit of `GridCell.cost`."""
        return sum(cell.cost for cell in self.cells)

    def arguments(self, options: JobOptions) -> list[str]:
        """Return the arguments of `hifi`."""
        first = self.cells[0]
        if self.command == "score":
            words = [word for word in first.overrides if not word.startswith("stage1")]  # what is scored has one stage
            arguments = ["score", "--task", first.task, "--backbone", first.backbone, "--protocol", first.protocol]
        else:
            words = list(first.overrides)
            methods, seeds = ({getattr(cell, key): None for cell in self.cells} for key in ("method", "seed"))
            arguments = train_arguments([first.task], methods, first.backbone, first.protocol, seeds, force=self.force)
        return [*arguments, *options.arguments, *words]

    def command_line(self, options: JobOptions) -> str:
        """Return the plain command line, for people."""
        return command_line(["hifi", *self.arguments(options)])

    def process_arguments(self, options: JobOptions) -> list[str]:
        """Return what is executed: the same command by this interpreter, independent of PATH and working directory."""
        return [sys.executable, "-P", "-m", "hifi_cli", *self.arguments(options)]


def scoring_key(cell: GridCell) -> str | None:
    """Return a key that cells share if they need the same head scores; None for a cell that needs none."""
    if not cell.chooses_heads or cell.config.heads.given:
        return None
    settings = cell.config.model_dump(mode="json", include={"scoring", "truncation", "swap_texts", "stride"})
    warm_up = [cell.overrides, cell.seed] if cell.config.scoring.warm_steps else []
    return digest([cell.task, cell.backbone, cell.protocol, settings, warm_up])


def scoring_jobs(cells: Iterable[GridCell]) -> dict[str, Job]:
    """Return one job for each scoring that any of the cells needs, by its key."""
    jobs: dict[str, Job] = {}
    for cell in cells:
        if (key := scoring_key(cell)) and key not in jobs and not cell.config.scoring.warm_steps:
            jobs[key] = Job("score", (cell,))
    return jobs


def training_jobs(cells: Sequence[GridCell], processes: int, *, repeated: Iterable[GridCell] = ()) -> list[Job]:
    """Group cells that share backbone, task and settings into jobs, the longest jobs first.

    With several processes, no job holds more than a fraction of all cells, so that the processes end together.

    Args:
        repeated: cells whose stored run is replaced: it is damaged, or lacks what is needed.
    """
    repeated_cells = set(repeated)
    max_cells = max(1, len(cells) // (3 * processes) if processes > 1 else len(cells))

    def group_key(cell: GridCell) -> tuple[str, str, tuple[str, ...], str, bool]:
        return cell.task, cell.backbone, cell.overrides, scoring_key(cell) or "", cell in repeated_cells

    jobs: list[Job] = []
    for (*_, needs, force), group in groupby(sorted(cells, key=group_key), group_key):
        for block in blocks(list(group), max_cells):
            jobs.append(Job("train", tuple(block), needs or None, force))
    return sorted(jobs, key=lambda job: -job.cost)


def blocks(cells: list[GridCell], max_cells: int) -> list[list[GridCell]]:
    """Split cells into blocks of methods x seeds, which one command line can name, in the order in which it trains them."""
    by_method: dict[str, list[GridCell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        by_method.setdefault(cell.method, []).append(cell)
    blocks: list[list[GridCell]] = []

    def seeds(row: list[GridCell]) -> list[int]:
        return [cell.seed for cell in row]

    for _, methods in groupby(sorted(by_method.values(), key=seeds), seeds):
        rows = list(methods)
        width = len(rows[0])
        if width > max_cells:
            blocks += [row[start : start + max_cells] for row in rows for start in range(0, width, max_cells)]
            continue
        step = max_cells // width
        blocks += [[cell for row in rows[start : start + step] for cell in row] for start in range(0, len(rows), step)]
    return blocks
