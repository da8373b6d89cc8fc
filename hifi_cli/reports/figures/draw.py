"""Draw a figure from its CSV."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path
from hifi_cli.reports.figures.figure_spec import FigureMetadata, module_name, read_metadata
from hifi_cli.reports.figures.style import Frame, add_caption, house_style

FORMATS = (".png", ".pdf", ".svg")


def check_format(path: Path) -> None:
    """Refuse a picture whose format is not supported.

    Raises:
        UsageError: its name ends in another suffix.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: the name must end in {', '.join(FORMATS)}")


def draw(csv: Path, out: Path) -> None:
    """Draw a CSV that `hifi figure` wrote, as the JSON next to it says.

    Raises:
        MissingError: the CSV or its JSON is missing.
        UsageError: one of them is damaged.
    """
    if not csv.is_file():
        raise MissingError(f"{csv} does not exist; hifi figure NAME computes it")
    metadata = read_metadata(csv)
    try:
        with house_style():
            figure = _drawing(metadata.inputs.kind)(pd.read_csv(csv), metadata)
            add_caption(figure, metadata)
            no_date = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # the same numbers give the same file
            with atomic_path(out) as temporary:
                suffix = out.suffix.lower()
                figure.savefig(temporary, format=suffix[1:], metadata=no_date.get(suffix))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{csv} and its .json do not hold this figure ({problem}); --force computes it again") from error


def _drawing(kind: str) -> Callable[[Frame, FigureMetadata], Figure]:
    module = importlib.import_module(f"hifi_cli.reports.figures.{module_name(kind)}")
    function: Callable[[Frame, FigureMetadata], Figure] = module.draw
    return function
