"""The rows of a figure's finished trainings, stored so that no training is repeated after an interruption or for more seeds."""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config.run_config import RunConfig
from hifi_cli.files import read_json, write_text
from hifi_cli.runs import run as runs

logger = logging.getLogger("hifi")


@dataclass
class FinishedTrainings:
    """The rows that each training of a figure has given.

    Attributes:
        path: a JSON file; none: nothing is stored.
        inputs_hash: of the figure's settings, data and weights; rows that were stored for others are not used.
    """

    path: Path | None = None
    inputs_hash: str = ""
    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path and self.path.is_file():
            stored = read_json(self.path, what="rows of finished trainings")
            if stored.get("inputs") == self.inputs_hash:
                self._rows = stored["rows"]

    def rows(self, config: RunConfig, train: Callable[[], Iterable[dict[str, Any]]], part: str = "") -> list[dict[str, Any]]:
        """Return the rows of one configuration: stored ones, or else those of `train`, which are stored.

        Args:
            part: which rows, where one configuration may give others.
        """
        key = config.hash + part
        if key in self._rows:
            logger.info(f"{runs.name(config)}: trained before")
            return self._rows[key]
        logger.info(f"{runs.name(config)}: training")
        self._rows[key] = list(train())
        if self.path:  # json.dumps writes NaN, which a silhouette of one class is
            write_text(self.path, json.dumps({"inputs": self.inputs_hash, "rows": self._rows}))
        return self._rows[key]
