"""Cells of grids, and their results written by hand."""

from synthetic_runs import store_run

from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_spec
from hifi_cli.runs.identity import IdentityReader
from hifi_cli.tasks import task_spec


def cells(*words, name="demo", **changes):
    """The cells of a shipped grid, with changed keys and overrides."""
    return grid_cells.cells(grid_spec.load(name, changes), name, words)


def write_cell(cell, results_dir, state="done", score=0.5, **measured):
    """Store a run's result; `measured` are fields of its record."""
    directory, config = results_dir / cell.config.run_path, cell.config.model_dump(mode="json")
    task = task_spec.load(cell.config.task)
    identity = IdentityReader(results_dir, None).identity(cell.config, task)
    content = {
        **{key: config[key] for key in ("task", "method", "protocol", "seed")}, "backbone": config["backbone"]["name"],
        "status": state, "primary_metric": "accuracy", "report": "best", "scores": dict.fromkeys(("last", "best", "max"), score),
        "params": {"trainable": 40, "trainable_backbone": 20, "stored": 40, "stored_bytes": 160, "total": 1000}, "collapsed": False,
        "epochs": dict.fromkeys(("total", "last", "best", "max"), 2),
        "setting_hash": cell.config.setting_hash,
        "task_digest": identity.task_digest, "data": identity.data_digests or {}, "backbone_weights": identity.encoder_digest or "w",
        "selection": "validation", "reason": "the training loss is nan at step 3",
    }  # fmt: skip
    store_run(directory, config, {**content, **measured})
