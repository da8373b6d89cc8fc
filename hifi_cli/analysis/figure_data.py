"""One figure's numbers: computed where they are missing or do not fit any more, kept as CSV with their origin beside."""

import importlib
import logging
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

import hifi_cli.analysis
from hifi_cli.analysis.base import FigureRequest, Points
from hifi_cli.analysis.required_runs import Need, supply
from hifi_cli.config.run_config import parse
from hifi_cli.files import atomic_path, digest, locked, read_json, write_json
from hifi_cli.reports.figures import figure_spec as specs
from hifi_cli.reports.figures.figure_spec import FigureSpec
from hifi_cli.runs import provenance
from hifi_cli.runs.resources import ResourceCache

_ORIGIN = ("hifi", "git", "python", "libraries", "device")  # not the command: figures are passed on, its paths are not
logger = logging.getLogger("hifi")


def kinds() -> list[str]:
    """The names of all analyses."""
    found = [one.name for one in pkgutil.iter_modules(hifi_cli.analysis.__path__)]
    return sorted(name.replace("_", "-") for name in found if hasattr(_module(name), "compute"))


def request(
    spec: FigureSpec, resources: ResourceCache, *, given: tuple[str, ...] = (), train: bool = False
) -> tuple[ModuleType, FigureRequest]:
    """The analysis a figure wants, and its request with validated settings.

    Raises:
        UsageError: an unknown kind or setting.
    """
    specs.refuse_unknown(spec.kind, kinds(), "kind of figure")
    kind = _module(spec.kind)
    settings = parse(kind.Settings, spec.settings, f"figure of kind {spec.kind}, settings")
    return kind, FigureRequest(spec, resources, settings, given, train)


def needs(kind: ModuleType, asked: FigureRequest) -> list[Need]:
    """The finished runs a figure is drawn from; none for most."""
    wanted: list[Need] = kind.needs(asked) if hasattr(kind, "needs") else []
    return wanted


def make(kind: ModuleType, asked: FigureRequest, path: Path, *, force: bool = False) -> None:
    """Compute a figure's CSV, unless the one there was computed from the same inputs.

    The companion `.json` says what it was computed from and what a picture must say.

    Raises:
        MissingError: runs, data or weights are missing.
        UsageError: a setting does not fit.
    """
    beside = path.with_suffix(".json")
    with locked(path.with_name(f".{path.stem}.lock"), wait=True):
        supply(needs(kind, asked), asked)
        inputs = _inputs(kind, asked)
        before = read_json(beside, what="figure's companion") if path.is_file() and beside.is_file() else {}
        fits = (before.get("schema"), before.get("inputs_hash")) == (specs.COMPANION_SCHEMA, digest(inputs))
        if fits and not force:
            logger.info(f"numbers: {path} (computed before)")
            now = {**before, **_words(asked, before["found"])}
        else:
            points: Points = kind.compute(asked)
            beside.unlink(missing_ok=True)  # a table without its origin is recomputed; one with another's would be a lie
            with atomic_path(path) as temporary:
                pd.DataFrame(points.rows).to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
            made_by = {key: value for key, value in provenance.describe().items() if key in _ORIGIN}
            origin = {"inputs_hash": digest(inputs), "inputs": inputs, "provenance": made_by}
            now = {"schema": specs.COMPANION_SCHEMA, **_words(asked, points.notes), **origin}
            logger.info(f"numbers: {path}")
        if now != before:
            write_json(beside, now)


def _words(asked: FigureRequest, found: list[str]) -> dict[str, Any]:
    """What a picture says besides its numbers.

    Args:
        found: the notes of the analysis.
    """
    spec = asked.spec
    return {
        "description": spec.description,
        "source": spec.source,
        "drawing": spec.drawing or spec.kind,
        "tasks": {task: asked.resources.task(task).label for task in spec.tasks},
        "backbone": asked.config(spec.tasks[0]).backbone.name,
        "protocol": spec.protocol,
        "notes": [note for note in (spec.note, *found, *_limits(asked)) if note],
        "found": found,
    }


def _inputs(kind: ModuleType, asked: FigureRequest) -> dict[str, Any]:
    """Everything that decides the numbers."""
    spec, resources = asked.spec, asked.resources
    configs = [asked.config(task, method, seed) for task in spec.tasks for method in spec.methods for seed in spec.seeds]
    return {
        "kind": spec.kind,
        "settings": asked.settings.model_dump(mode="json"),
        "configs": [config.hash for config in configs],
        "data": {task: resources.rows(task).fingerprint for task in spec.tasks},
        "backbone": resources.pretrained(configs[0]).weights_id,
        "runs": [need.fingerprint() for need in needs(kind, asked)],
    }


def _limits(asked: FigureRequest) -> list[str]:
    limit = asked.config(asked.spec.tasks[0]).limit
    return [f"only the first {limit} examples of each split are used"] if limit else []


def _module(kind: str) -> ModuleType:
    return importlib.import_module(f"hifi_cli.analysis.{kind.replace('-', '_')}")
