"""Settings of finished runs that are not those that their protocol has for the method, task and backbone."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import HifiError
from hifi_cli.files import file_digest

_NAMED = {"task", "method", "backbone", "protocol", "seed", "shots", "variant", "limit"}  # a table shows them itself
_HOW = {"device", "log_every", "eval_batch_size", "gradient_accumulation_steps", "kernels", "padding_free"}
_LONGEST = 40  # characters of a value
Run = Mapping[str, Any]  # task, method, backbone, protocol, shots, setting and config of a finished run
_configs: dict[tuple[object, ...], RunConfig | None] = {}  # there are fewer settings than runs


def config_of(run: Run, own_files: Path) -> RunConfig | None:
    """Return the configuration that a run's protocol has for its method, task, backbone and shots; None where one is unknown.

    Args:
        own_files: where the run keeps copies of the user's own task and method.
    """
    own = {(path.parent.name, path.stem): path for path in sorted(own_files.glob("*/*.yaml"))} if own_files.is_dir() else {}
    digests = tuple((*name, file_digest(path)) for name, path in own.items())
    key = (run["task"], run["method"], run["backbone"], run["protocol"], run["shots"], digests)
    if key not in _configs:
        names = {key: run[key] for key in ("task", "method", "backbone", "protocol")}
        _configs[key] = protocol_config(**names, overrides=[f"shots={override_value(run['shots'])}"], own=own)
    return _configs[key]


def protocol_config(
    *,
    task: str,
    method: str,
    backbone: str,
    protocol: str,
    overrides: Sequence[str] = (),
    own: Mapping[tuple[str, str], Path] | None = None,
) -> RunConfig | None:
    """Return the configuration that a protocol has for a method, task and backbone; None where one of them is unknown here.

    Args:
        backbone: its name; where it is a directory or on the hub does not matter.
        own: a user's own YAMLs, by kind and name; None: those that the user named in this process.
    """
    given = {key: path for key in (("backbones", backbone), ("protocols", protocol)) if (path := registry.user_file(*key))}
    shipped = backbone in registry.names("backbones")
    source = backbone if shipped else str(given.get(("backbones", backbone), f"local/{backbone}"))
    try:
        with nullcontext() if own is None else registry.only_user_files({**given, **own}):
            config = resolve(task=task, method=method, backbone=source, protocol=protocol, overrides=overrides)
    except HifiError:
        return None
    return config.model_copy(update={"backbone": config.backbone.model_copy(update={"name": backbone})})


def own_settings(run: Run, own_files: Path) -> dict[str, tuple[Any, Any]]:
    """Return the keys of a run's configuration that differ from its protocol's, by dotted key, with both values.

    Nothing is known, and none returned, where the protocol, the method or the task is unknown here.
    """
    config = config_of(run, own_files)
    if config is None or config.setting_hash == run["setting"]:
        return {}
    own, expected = flatten(run["config"]), flatten(config.model_dump(mode="json"))
    keys = RunConfig.model_fields.keys() - _NAMED
    return {
        key: (value, expected.get(key))
        for key, value in own.items()
        if key.partition(".")[0] in keys and value != expected.get(key)
    }


def changed_settings(run: Run, own_files: Path) -> str:
    """Return `own_settings` but those that only say where and how, in words: `learning_rate 1e-5 (0.003)`."""
    return ", ".join(
        f"{key} {_word(own)} ({_word(other)})" for key, (own, other) in own_settings(run, own_files).items() if key not in _HOW
    )


def _word(value: object) -> str:
    if value is None:
        return "none"
    text = f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else override_value(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
