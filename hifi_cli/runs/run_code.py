"""Code that a user's own files name: its digest, and that of a run is neither run nor copied unless the user trusts it."""

from hifi_cli.config import registry
from hifi_cli.config.methods import code_file
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import digest, file_digest
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.tasks import metrics, task_spec


def refuse_code(directory: RunDirectory, *, trust: bool) -> None:
    """Refuse a run whose own files name code, a method's or a metric's, unless the user trusts it.

    Raises:
        UsageError: it does.
    """
    with directory.opened(trust=trust) as config:
        own, metric = registry.user_file("tasks", config.task), task_spec.load(config.task).evaluate
        for stage in config.stages:
            file = registry.user_file("methods", stage.method)
            if file and (code := code_file(file)):
                registry.check_trusted(file, str(code))
    if own and metric and metrics.is_code(metric) and not trust:
        raise UsageError(
            f"{own} names a metric that is code, '{metric}', and that file is part of the run in {directory.path}:"
            " give --trust if you know the code and trust it"
        )


def method_code(config: RunConfig) -> str | None:
    """The SHA-256 of the user's own Python file that implements a run's method, or of those of two stages; None without one."""
    files = [registry.user_file("methods", stage.method) for stage in config.stages]
    digests = dict.fromkeys(file_digest(file.parent / code) for file in files if file and (code := code_file(file)))
    return digest([*digests], 64) if len(digests) > 1 else next(iter(digests), None)
