"""The runs that decide claims."""

from collections.abc import Sequence
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.grid_spec import Grid
from hifi_cli.reports.claim_spec import ClaimsFile, NumberClaim, methods_of, tasks_of, unmet


def cells(file: ClaimsFile, grid: str, overrides: Sequence[str] = ()) -> list[GridCell]:
    """Return the runs of claims, each once; none for claims that no run of the protocol can decide.

    Raises:
        UsageError: the overrides set `shots` or `variant`; the claims would not read the runs.
    """
    grid_cells.refuse_own_keys(overrides, ["shots", "variant"], f"grid {grid}")
    cells_by_path: dict[Path, GridCell] = {}
    for claim in file.claims.values():
        if unmet(claim, file):
            continue
        methods: dict[str, dict[str, list[object]]] = {registry.argument_of("methods", name): {} for name in methods_of(claim)}
        tasks = [registry.task_argument(task) for task in tasks_of(claim, file)]
        protocol, backbone = claim.protocol or file.protocol, claim.only_backbone or file.backbone
        is_fixed = isinstance(claim, NumberClaim) and claim.measure != "time"  # the same for every seed
        seeds = file.seeds[:1] if is_fixed else file.seeds
        spec = Grid(grid, None, protocol, backbone, tasks, methods, seeds, [])
        for cell in grid_cells.cells(spec, overrides) if methods else ():
            cells_by_path.setdefault(Path(cell.config.run_path), cell)
    return list(cells_by_path.values())
