"""Clusters: the commands of a grid through Parsl's pilot jobs (Slurm, PBS, Kubernetes, ...)."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.grids.executor import Submit, process_arguments

_LOSSES = 20  # vanished workers of one command, before the grid stops
_STOP_SECONDS = 20


class SiteSpec(ConfigModel):
    """A site: Parsl's own names and arguments."""

    description: str = ""
    """What the site is, in one line."""
    provider: dict[str, Any]
    """`kind`, a class of parsl.providers, and its arguments; `launcher`, a class of parsl.launchers
    by name, or a mapping of its `kind` and arguments."""
    executor: dict[str, Any] = {}
    """Arguments of parsl's HighThroughputExecutor: `available_accelerators`, `cpu_affinity`, ..."""


def execute(command: list[str], log: str, directory: str) -> int:
    """Run a command on a worker, which imports this function, and return its exit code."""
    with Path(log).open("ab") as output:
        return subprocess.call(
            process_arguments(command),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def site_executor(site: str, run_dir: Path) -> Iterator[Submit]:
    """The workers of a site. Its pilot jobs are cancelled at the end, and at an error or Ctrl-C.

    Raises:
        MissingError: Parsl is not installed, or no pilot job can run.
        UsageError: the site's YAML is wrong.
    """
    try:
        import parsl
    except ImportError:
        raise MissingError("--site needs Parsl: pip install 'hifi-cli[grid]'") from None
    spec = parse(SiteSpec, registry.load("sites", site), str(registry.find("sites", site)))
    try:
        provider = _provider(spec.provider)
        executor = parsl.HighThroughputExecutor(label="hifi", provider=provider, **spec.executor)
    except Exception as error:  # what these constructors raise depends on the provider
        raise UsageError(f"site {site}: {' '.join(str(error).split())}") from error
    # Parsl starts its own scripts by name; they are next to this interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    config = parsl.Config(
        executors=[executor],
        run_dir=str(run_dir),
        retries=_LOSSES,
        retry_handler=_retry_cost,
        strategy="htex_auto_scale",  # gives idle blocks back while others are still busy
        strategy_period=1,
    )
    kernel = parsl.load(config)
    app = parsl.python_app(execute)
    try:
        yield lambda command, log: app(command, str(log.absolute()), str(Path.cwd()))
    except Exception as error:
        if executor.bad_state_is_set:  # Parsl then refuses every further command
            reason = " ".join(str(executor.executor_exception).split())
            raise MissingError(f"site {site}: no node to run on: {reason}") from error
        raise
    finally:
        # First, because Parsl's own end hangs where its interchange got the same signal.
        provider.cancel(list(provider.resources))
        ending = threading.Thread(target=kernel.cleanup, daemon=True)
        ending.start()
        ending.join(_STOP_SECONDS)
        parsl.clear()


def _retry_cost(error: Exception, _task: Any) -> float:
    """Only a command whose worker vanished is submitted again; it continues from its checkpoint."""
    from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost

    return 1 if isinstance(error, (ManagerLost, WorkerLost)) else _LOSSES + 1


def _provider(arguments: Mapping[str, Any]) -> Any:
    from parsl import launchers, providers

    arguments = dict(arguments)
    if launcher := arguments.pop("launcher", None):
        launcher = dict(launcher) if isinstance(launcher, dict) else {"kind": launcher}
        arguments["launcher"] = getattr(launchers, launcher.pop("kind"))(**launcher)
    if volumes := arguments.get("persistent_volumes"):  # of Kubernetes: tuples, which YAML does not have
        arguments["persistent_volumes"] = [tuple(volume) for volume in volumes]
    return getattr(providers, arguments.pop("kind"))(**arguments)
