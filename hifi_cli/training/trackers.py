"""Experiment trackers that also get the log lines of a run: those of accelerate that the user names."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError
from hifi_cli.results.directory import RunDirectory

_PROJECT = "hifi"


def check(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed.

    Raises:
        MissingError: the package of one is not installed.
    """
    for name in names:
        if find_spec(name) is None:
            raise MissingError(f"--report-to {name}: it is not installed: pip install {name}")


def start(names: Sequence[str], run: str, config: RunConfig, directory: RunDirectory) -> list[Any]:
    """Start trackers and give them the run's configuration; TensorBoard writes into the run's directory."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    arguments: dict[str, dict[str, Any]] = {
        "tensorboard": {"run_name": "tensorboard", "logging_dir": directory.path},
        "wandb": {"run_name": _PROJECT, "name": run, "dir": directory.path},
        "trackio": {"run_name": _PROJECT, "name": run},
    }
    started = []
    for name in names:
        tracker = LOGGER_TYPE_TO_CLASS[name](**arguments[name])
        tracker.start()
        tracker.store_init_configuration(flat(config.model_dump(mode="json")))
        started.append(tracker)
    return started


def flat(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Flatten nested keys, with dots between them; lists and null become strings, which trackers accept."""
    return {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in flatten(values).items()
        if value != {}
    }
