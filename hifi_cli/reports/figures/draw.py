"""From a figure's CSV to a picture."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, check_schema, read_json
from hifi_cli.reports.figures import features, head_ranking, landscapes, scores, training_curves
from hifi_cli.reports.figures.figure_spec import COMPANION_SCHEMA, refuse_unknown
from hifi_cli.reports.figures.style import Frame, Meta, caption, house_style

FORMATS = (".png", ".pdf", ".svg")
DRAWINGS: dict[str, Callable[[Frame, Meta], Figure]] = {
    "richness": scores.richness,
    "correlation": scores.correlation,
    "robustness": scores.robustness,
    "singular-values": scores.singular_values,
    "damping": head_ranking.damping,
    "ranking": head_ranking.ranking,
    "sweep": training_curves.sweep,
    "distance": training_curves.distance,
    "convergence": training_curves.convergence,
    "landscape": landscapes.landscape,
    "features": features.features,
    "tsne": features.tsne,
}


def check_format(path: Path) -> None:
    """Refuse a picture of another format than those known.

    Raises:
        UsageError: its name ends in another suffix.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--out {path}: a picture ends in {', '.join(FORMATS)}")


def draw(numbers: Path, out: Path) -> None:
    """Draw a CSV that `hifi figure` wrote, by what its companion `.json` says.

    Raises:
        MissingError: the CSV or its companion is not there.
        UsageError: one of them is damaged.
        SchemaError: the companion was written by a version with another layout.
    """
    if not numbers.is_file():
        raise MissingError(f"no numbers at {numbers}; hifi figure NAME computes them")
    beside = numbers.with_suffix(".json")
    content = read_json(beside, what="figure's companion")
    check_schema(content, COMPANION_SCHEMA, beside)
    try:
        meta = Meta(**{key: content[key] for key in Meta.__dataclass_fields__})
        drawing = str(content["drawing"])
        refuse_unknown(drawing, list(DRAWINGS), "drawing")
        with house_style():
            figure = DRAWINGS[drawing](pd.read_csv(numbers), meta)
            caption(figure, meta)
            dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # the same numbers give the same file
            with atomic_path(out) as temporary:
                suffix = out.suffix.lower()
                figure.savefig(temporary, format=suffix[1:], metadata=dates.get(suffix))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{numbers} and its .json do not hold this figure ({problem}); --force computes it again") from error
