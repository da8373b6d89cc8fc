"""Jobs: command lines that score heads or train some cells in one process, in an order that leaves no worker waiting."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hifi_cli.files import command_line, digest
from hifi_cli.grids.cells import Cell, chooses_heads


@dataclass(frozen=True)
class Places:
    """The directories a command line names, and whether batches may be cut to what memory holds."""

    results_dir: Path
    data_dir: Path | None = None
    auto_batch: bool = False

    @property
    def words(self) -> list[str]:
        data = ["--data-dir", str(self.data_dir)] if self.data_dir else []
        return ["--results-dir", str(self.results_dir), *data]


@dataclass(frozen=True)
class Job:
    """One process.

    Attributes:
        cells: those it trains, in its order; for `score` the one whose setting it scores by.
        needs: the scoring that must be done before, if any.
        force: replace what is there, which is damaged.
    """

    command: str
    cells: tuple[Cell, ...]
    needs: str | None = None
    force: bool = False

    @property
    def name(self) -> str:
        """For messages and the log's name."""
        first = self.cells[0]
        if self.command == "score":
            return f"score/{first.config.task}"
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        return f"{first.name}{more}"

    @property
    def cost(self) -> float:
        return sum(cell.cost for cell in self.cells)

    def words(self, places: Places) -> list[str]:
        """The command's words after `hifi`."""
        first = self.cells[0]
        words = [self.command, "--task", first.task, "--backbone", first.backbone, "--protocol", first.protocol]
        if self.command == "train":
            methods, seeds = (dict.fromkeys(str(getattr(cell, key)) for cell in self.cells) for key in ("method", "seed"))
            words += ["--method", ",".join(methods), "--seeds", ",".join(seeds)]
            words += [*(["--force"] if self.force else []), *(["--auto-batch"] if places.auto_batch else [])]
        return [*words, *places.words, *first.words]

    def line(self, places: Places) -> str:
        """The plain command line, for people."""
        return command_line(["hifi", *self.words(places)])

    def arguments(self, places: Places) -> list[str]:
        """What is executed: the same by this interpreter, whatever is on the PATH and in the working directory."""
        return [sys.executable, "-P", "-m", "hifi_cli", *self.words(places)]


def scoring_of(cell: Cell) -> str | None:
    """What tells the head scores a cell needs from others; None when it needs none."""
    if not chooses_heads(cell.method) or cell.config.heads.given:
        return None
    decides = cell.config.model_dump(mode="json", include={"scoring", "truncation", "swap_texts", "stride"})
    warmed = [cell.words, cell.seed] if cell.config.scoring.warm_steps else []
    return digest([cell.task, cell.backbone, cell.protocol, decides, warmed])


def scoring_jobs(cells: Iterable[Cell]) -> dict[str, Job]:
    """One job per scoring that any of the cells needs."""
    found: dict[str, Job] = {}
    for cell in cells:
        if (key := scoring_of(cell)) and key not in found and not cell.config.scoring.warm_steps:
            found[key] = Job("score", (cell,))
    return found


def training_jobs(cells: Sequence[Cell], processes: int, *, damaged: Iterable[Cell] = ()) -> list[Job]:
    """Cells that share backbone, task and settings in one process each, the longest jobs first.

    Of several processes none gets more than a fraction of all there is to do at a time, so that they end together.
    """
    force = set(damaged)
    most = max(1, len(cells) // (3 * processes) if processes > 1 else len(cells))

    def kind(cell: Cell) -> tuple[str, str, tuple[str, ...], str, bool]:
        return cell.task, cell.backbone, cell.words, scoring_of(cell) or "", cell in force

    jobs: list[Job] = []
    for (*_, needs, forced), group in groupby(sorted(cells, key=kind), kind):
        for block in blocks(list(group), most):
            jobs.append(Job("train", tuple(block), needs or None, forced))
    return sorted(jobs, key=lambda job: -job.cost)


def blocks(cells: list[Cell], most: int) -> list[list[Cell]]:
    """The cells in blocks of methods x seeds, as one command line can name them."""
    seeds: dict[str, list[Cell]] = {}
    for cell in cells:
        seeds.setdefault(cell.method, []).append(cell)
    blocks: list[list[Cell]] = []
    by_seeds = sorted(seeds.values(), key=lambda found: [cell.seed for cell in found])
    for _, methods in groupby(by_seeds, lambda found: [cell.seed for cell in found]):
        rows = list(methods)
        width = len(rows[0])
        if width > most:
            blocks += [row[at : at + most] for row in rows for at in range(0, width, most)]
            continue
        step = most // width
        blocks += [[cell for row in rows[at : at + step] for cell in row] for at in range(0, len(rows), step)]
    return blocks
