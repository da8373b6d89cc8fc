"""The random draws that a run must have made, by its record, and those of which it has no version."""

from hifi_cli.config.draws import used_draws
from hifi_cli.errors import HifiError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult

# Every run draws this, whatever its configuration.
_ALWAYS = {"order of data"}


def draws_made(result: RunResult, directory: RunDirectory) -> set[str] | None:
    """Return the names of the components that drew in a run.

    Args:
        result: the record.
        directory: has the copies of the user's own methods.

    Returns:
        None: not known, because another version of the program wrote the configuration, or because
        the method's YAML is not here.
    """
    config = result.run_config()
    if config is None:
        return None
    devices = [process.device_type for process in result.processes]
    try:
        # Trust is harmless here: no code is executed.
        config = directory.with_user_yamls(config, trust=True)
        return used_draws(config, devices, selects_heads=result.heads is not None)
    except HifiError:
        return None


def draws_without_version(result: RunResult, directory: RunDirectory) -> list[str]:
    """Return the components that drew in a run and of which its record has no version, sorted.

    Records of schema 1 have no versions at all, and are compared with none that has.
    """
    if result.schema_version == 1:
        return []
    made = draws_made(result, directory) or _ALWAYS
    return sorted(made - result.draws.keys())
