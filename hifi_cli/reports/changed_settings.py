"""Settings of finished runs that are not those that their protocol has for the method, task and backbone."""

from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import HifiError
from hifi_cli.files import file_digest
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import RunResult

_NAMED = {"task", "method", "backbone", "protocol", "seed", "shots", "variant", "limit"}  # a table shows them itself
_HOW = {"device", "log_every", "eval_batch_size", "gradient_accumulation_steps", "kernels", "padding_free"}
_LONGEST = 40  # characters of a value
_configs: dict[tuple[object, ...], RunConfig | None] = {}  # there are fewer settings than runs


def protocol_config(directory: RunDirectory, result: RunResult) -> RunConfig | None:
    """Return the configuration that a run's protocol has for its method, task, backbone and shots; None where one is unknown.

    A user's own task and method are those whose copies the run keeps.
    """
    own = {(path.parent.name, path.stem): path for path in sorted(directory.user_files.glob("*/*.yaml"))}
    digests = tuple((*name, file_digest(path)) for name, path in own.items())
    key = (result.task, result.method, result.backbone, result.protocol, result.shots, digests)
    if key not in _configs:
        _configs[key] = _resolve(result, own)
    return _configs[key]


def _resolve(result: RunResult, own: dict[tuple[str, str], Path]) -> RunConfig | None:
    given = {key: registry.user_file(*key) for key in (("protocols", result.protocol), ("backbones", result.backbone))}
    files = {**{key: path for key, path in given.items() if path}, **own}
    shipped = result.backbone in registry.names("backbones")
    own_backbone = files.get(("backbones", result.backbone), f"local/{result.backbone}")  # of a directory only the name matters
    try:
        with registry.only_user_files(files):
            config = resolve(
                task=result.task,
                method=result.method,
                backbone=result.backbone if shipped else str(own_backbone),
                protocol=result.protocol,
                overrides=[f"shots={override_value(result.shots)}"],
            )
    except HifiError:
        return None
    return config.model_copy(update={"backbone": config.backbone.model_copy(update={"name": result.backbone})})


def own_settings(directory: RunDirectory, result: RunResult) -> dict[str, tuple[Any, Any]]:
    """Return the keys of a run's configuration that differ from its protocol's, by dotted key, with both values.

    Nothing is known, and none returned, where the protocol, the method or the task is unknown here.
    """
    config = protocol_config(directory, result)
    if config is None or config.setting_hash == result.setting_hash:
        return {}
    own, expected = flatten(registry.read_yaml(directory.config_file)), flatten(config.model_dump(mode="json"))
    keys = RunConfig.model_fields.keys() - _NAMED
    return {
        key: (value, expected.get(key))
        for key, value in own.items()
        if key.partition(".")[0] in keys and value != expected.get(key)
    }


def changed_settings(directory: RunDirectory, result: RunResult) -> str:
    """Return `own_settings` but those that only say where and how, in words: `learning_rate 1e-5 (0.003)`."""
    return ", ".join(
        f"{key} {_word(own)} ({_word(other)})"
        for key, (own, other) in own_settings(directory, result).items()
        if key not in _HOW
    )


def _word(value: object) -> str:
    if value is None:
        return "none"
    text = f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else override_value(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
