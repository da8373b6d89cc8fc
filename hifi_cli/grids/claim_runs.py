"""The runs that decide claims: first seeds for all of them, then more seeds where they inform most, until all are decided."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hifi_cli.config.registry import name_of
from hifi_cli.errors import ConflictError, MissingError, UsageError
from hifi_cli.files import locked
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.grid_spec import Grid
from hifi_cli.records.claim_looks import ClaimLooks, Look, LooksAtClaim
from hifi_cli.reports import sequential
from hifi_cli.reports.claim_evidence import ClaimContext
from hifi_cli.reports.claim_names import by_names
from hifi_cli.reports.claim_spec import Claim, ClaimsFile, is_about_scores, methods_of
from hifi_cli.reports.claims import ClaimResult, claim_digest, evaluate_claim
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.table_spec import shots_of

SeedCounts = Mapping[tuple[str, str], int]  # by claim and task


def decided_by_runs(file: ClaimsFile) -> dict[str, Claim]:
    """Return the claims that runs decide; the others need a figure or a measured cost."""
    return {name: claim for name, claim in file.claims.items() if methods_of(claim)}


def cells(file: ClaimsFile, grid: str, counts: SeedCounts, overrides: Sequence[str] = ()) -> list[GridCell]:
    """Return the runs of claims, each once.

    Args:
        counts: number of seeds by claim and task; claims and tasks without an entry have no runs.

    Raises:
        UsageError: the overrides set `shots` or `variant`; the claims would not read the runs.
    """
    grid_cells.refuse_own_keys(overrides, ["shots", "variant"], f"grid {grid}")
    cells_by_path: dict[Path, GridCell] = {}
    for name, claim in decided_by_runs(file).items():
        protocol, backbone = claim.protocol or file.protocol, claim.only_backbone or file.backbone
        shots = str(claim.shots or shots_of(protocol))
        for task in claim.tasks or file.tasks:
            if count := counts.get((name, name_of(task)), 0):
                methods: dict[str, dict[str, list[object]]] = {method: {} for method in dict.fromkeys(methods_of(claim))}
                seeds = seeds_of(file, count)
                spec = Grid(grid, None, protocol, backbone, [task], methods, seeds, [])
                few = [] if shots == shots_of(protocol) else [f"shots={_shots(shots)}"]
                for cell in grid_cells.cells(spec, [*few, *overrides]):
                    cells_by_path.setdefault(Path(cell.config.run_path), cell)
    return list(cells_by_path.values())


def first_counts(file: ClaimsFile) -> dict[tuple[str, str], int]:
    """Return the number of seeds that the file requires first, for every claim and task."""
    return {
        (name, name_of(task)): len(file.seeds) if is_about_scores(claim) else 1
        for name, claim in decided_by_runs(file).items()
        for task in claim.tasks or file.tasks
    }


def seeds_of(file: ClaimsFile, count: int) -> list[int]:
    """Return the file's seeds, and as many more as are required."""
    more_seeds = range(max(file.seeds) + 1, max(file.seeds) + 1 + count)
    return [*file.seeds, *more_seeds][:count]


@dataclass
class SequentialClaims:
    """Claims that are looked at after declared numbers of seeds, until each is decided.

    Every claim has its own looks, so that some claims of a file can be decided first, and others later.

    Attributes:
        name: of the file of claims.

    Raises:
        UsageError: no seed changes the verdict of any of the claims.
        ConflictError: looks were declared for another number of seeds, or taken at claims that were changed since.
    """

    name: str
    file: ClaimsFile
    results_dir: Path
    max_seeds: int

    def __post_init__(self) -> None:
        self.file = by_names(self.file)
        self.path = ClaimLooks.path_of(self.results_dir, self.name, self.file.protocol, self.file.backbone)
        self.claims = {name: claim for name, claim in self.file.claims.items() if is_about_scores(claim)}
        if not self.claims:
            raise UsageError(
                f"--until-decided: more seeds decide none of these claims; hifi claims {self.name} prints what does"
            )
        if not self.path.is_file():
            declared = sequential.declared_looks(min(len(self.file.seeds), self.max_seeds), self.max_seeds)
            self.looks = ClaimLooks(declared=declared, levels=sequential.look_levels(declared))
            return
        self.looks = ClaimLooks.read(self.path)  # its looks stand, also with other --seeds
        if (seeds := self.looks.declared[-1]) != self.max_seeds:
            raise ConflictError(
                f"{self.path} declares looks at up to {seeds} seeds; the number cannot be changed afterwards:"
                f" use --max-seeds {seeds}, or another --results-dir"
            )
        taken = self.looks.claims
        changed = [name for name in self.claims if name in taken and taken[name].digest != self._digest(name)]
        if changed:
            raise ConflictError(
                f"{self.path} has looks at claims that were changed since ({', '.join(changed)}):"
                " undo the change, or use another --results-dir"
            )

    def _digest(self, name: str) -> str:
        return claim_digest(self.claims[name], self.file)

    def _looks_at(self, name: str) -> list[Look]:
        return self.looks.claims[name].looks if name in self.looks.claims else []

    @property
    def undecided(self) -> list[str]:
        """Claims that no look has decided."""
        return [name for name in self.claims if not (self._looks_at(name) and self.looks.claims[name].is_decided)]

    @property
    def number(self) -> int:
        """Number of looks that were taken at the claims of the next look, or at any claim if no look is left."""
        counts = [len(self._looks_at(name)) for name in self.undecided]
        left = [count for count in counts if count < len(self.looks.declared)]
        return min(left) if left else max(len(self._looks_at(name)) for name in self.claims)

    @property
    def next_claims(self) -> list[str]:
        """Claims of the next look: the undecided ones with the fewest looks so far."""
        return [name for name in self.undecided if len(self._looks_at(name)) == self.number < len(self.looks.declared)]

    @property
    def is_over(self) -> bool:
        """Whether every claim is decided, or has no look left."""
        return not self.next_claims

    def next_counts(self) -> dict[tuple[str, str], int]:
        """Return the seeds of each claim and task at the next look.

        The first look has as many seeds on every task. After it, each seed goes to the task where it reduces the variance of
        the claim's mean most.
        """
        target = self.looks.declared[self.number]
        level = sequential.level_at(self.looks.declared, max(1, self.number))  # of the last look: what it left undecided
        own_seeds = seeds_of(self.file, self.max_seeds)
        records = Results(self.results_dir)
        counts: dict[tuple[str, str], int] = {}
        for name in self.next_claims:
            context = ClaimContext.of(self.claims[name], self.file, records, None, COUNTED)
            result = evaluate_claim(name, self.claims[name], self.file, context, level=level)
            spread = {task: _variance(result, task) for task in context.tasks}
            num_seeds = {task: _seeds(result, task, own_seeds) for task in context.tasks}
            if self.number == 0 or any(count < 2 for count in num_seeds.values()):
                counts |= {(name, task): target for task in context.tasks}
                continue
            for task, count in allocate(num_seeds, spread, target * len(num_seeds), self.max_seeds).items():
                counts[name, task] = count
        return counts

    def look(self) -> dict[str, Look]:
        """Decide the claims of the next look at its level, and store and return it, by claim.

        A look that another command has taken meanwhile stands.

        Raises:
            MissingError: an undecided claim has no pair of runs on a task.
            ConflictError: another command has declared other looks meanwhile.
        """
        level = sequential.level_at(self.looks.declared, self.number + 1)
        records = Results(self.results_dir)
        looks: dict[str, Look] = {}
        for name in self.next_claims:
            context = ClaimContext.of(self.claims[name], self.file, records, None, COUNTED)
            result = evaluate_claim(name, self.claims[name], self.file, context, level=level)
            _refuse_without_pairs(result, context)
            # if all runs diverged, later looks may have pairs
            verdict = "undecided" if result.verdict == "not run" else result.verdict
            looks[name] = Look(seeds={task: _seeds(result, task) for task in context.tasks}, verdict=verdict)
        with locked(self.path.with_name(f".{self.path.name}.lock"), wait=True):
            stored = ClaimLooks.read(self.path) if self.path.is_file() else self.looks
            if stored.declared != self.looks.declared:
                raise ConflictError(
                    f"{self.path} declares other looks, of a command that ran meanwhile: start this command again"
                )
            looks = {name: look for name, look in looks.items() if stored.claims.get(name) == self.looks.claims.get(name)}
            taken = {
                name: LooksAtClaim(digest=self._digest(name), looks=[*self._looks_at(name), look])
                for name, look in looks.items()
            }
            self.looks = stored.model_copy(update={"claims": {**stored.claims, **taken}})
            self.looks.write(self.path)
        return looks


def allocate(num_seeds: Mapping[str, int], variances: Mapping[str, float], total: int, max_seeds: int) -> dict[str, int]:
    """Distribute seeds over tasks: each goes where it reduces the variance of the mean over tasks most.

    Args:
        num_seeds: seeds that each task has.
        variances: of the differences of one task.
        total: seeds of all tasks together.
        max_seeds: seeds per task.
    """
    counts = dict(num_seeds)
    floor = 0.01 * max(variances.values(), default=0.0) or 1.0  # a task without any spread so far may still have some
    while sum(counts.values()) < total and min(counts.values()) < max_seeds:
        open_tasks = [task for task in counts if counts[task] < max_seeds]
        best = max(open_tasks, key=lambda task: max(variances[task], floor) / (counts[task] * (counts[task] + 1)))
        counts[best] += 1
    return counts


def _refuse_without_pairs(result: ClaimResult, context: ClaimContext) -> None:
    """Refuse a look that could decide nothing, however many seeds are added.

    Raises:
        MissingError: a comparison of the claim has no pair of runs on a task where no run diverged.
    """
    diverged = {run.result.task for run in context.records(methods_of(result.claim)) if "diverged" in run.flags}
    for entry in (finding.evidence for finding in result.findings):
        without = [task for task in entry.tasks or [""] if not entry.values.get(task) and task not in diverged]
        if without:
            where = f" on {', '.join(without)}" if entry.tasks else ""
            raise MissingError(
                f"no look is taken: claim {result.name} has no runs to compare{where} ({entry.label}), although its runs are"
                " finished; give it the settings that they have (hifi claims says what is left out), and no limit"
            )


def _seeds(result: ClaimResult, task: str, among: Collection[int] | None = None) -> int:
    """Return the smallest number of seeds, or of seeds among some, that a comparison of the claim has on a task."""
    seeds = [finding.evidence.values.get(task, {}).keys() for finding in result.findings]
    return min(len(compared if among is None else compared & {*among}) for compared in seeds)


def _variance(result: ClaimResult, task: str) -> float:
    """Return the largest variance of the differences of an undecided comparison on a task."""
    groups = [list(f.evidence.values.get(task, {}).values()) for f in result.findings if f.verdict == "undecided"]
    return max((float(np.var(values, ddof=1)) for values in groups if len(values) > 1), default=0.0)


def _shots(shots: str) -> str:
    return "null" if shots == "full" else shots
