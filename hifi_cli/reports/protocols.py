"""The settings that a protocol has for a method, and those of a run that differ from them."""

from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.decides import decides
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import HifiError


def protocol_config(
    *, task: str, method: str, backbone: str, protocol: str, **keys: Any
) -> RunConfig | None:
    """Return the configuration that a protocol has for a method, task and backbone.

    Args:
        task: the task's name.
        method: the method's name.
        backbone: its name. Whether it is a directory or on the hub does not matter.
        protocol: the protocol's name.
        keys: settings with other values than the protocol's.

    Returns:
        None where one of the names is unknown here.
    """
    is_known = backbone in registry.names("backbones")
    place = backbone if is_known else f"local/{backbone}"
    try:
        config = resolve(
            task=task,
            method=method,
            backbone=place,
            protocol=protocol,
            overrides=[f"{key}={override_value(value)}" for key, value in keys.items()],
        )
    except HifiError:
        return None
    named = config.backbone.model_copy(update={"name": backbone})
    return config.model_copy(update={"backbone": named})


def changed_settings(run: Any, config: RunConfig) -> str:
    """Return the settings of a run that are not its protocol's: `epochs 1 (protocol: 6)`.

    Args:
        run: a row of `Study.runs`.
        config: the protocol's configuration for the run's method and task.
    """
    if config.setting_hash == run.setting_hash:
        return ""
    expected = flatten(config.model_dump(mode="json"))
    texts = []
    for key, value in flatten(run.config).items():
        if not decides(RunConfig, key, "protocol") or value == expected.get(key):
            continue
        usual = override_value(expected.get(key))
        texts.append(f"{key} {override_value(value)} (protocol: {usual})")
    return ", ".join(texts)
