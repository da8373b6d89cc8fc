"""The processes of a grid on a cluster, through Parsl: a site's YAML has Parsl's own names and arguments."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.grids import processes
from hifi_cli.grids.processes import Submit

# So long Parsl may take to end.
_END_SECONDS = 20


class SiteSpec(ConfigModel):
    """A site: Parsl's own names and arguments."""

    description: str = ""
    """The site, in one line."""
    provider: dict[str, Any]
    """`kind`, a class of parsl.providers, and its arguments; `launcher`, a class of parsl.launchers
    by name, or a mapping of its `kind` and arguments."""
    executor: dict[str, Any] = {}
    """Arguments of parsl's HighThroughputExecutor: `available_accelerators`, `cpu_affinity`, ..."""


def load_site(site: str) -> SiteSpec:
    """Load a site.

    Args:
        site: its name, or the path of its YAML.

    Raises:
        MissingError: no such file.
        UsageError: no such name, or the YAML is wrong.
    """
    return parse(SiteSpec, registry.load("sites", site), str(registry.find("sites", site)))


@contextmanager
def site_executor(site: str, run_dir: Path) -> Iterator[Submit]:
    """Yield what starts commands on the workers of a site. Its pilot jobs are cancelled at the end, and at an error or Ctrl-C.

    Raises:
        MissingError: Parsl is not installed, or no pilot job can run.
        UsageError: the site's YAML is wrong.
    """
    try:
        import parsl
    except ImportError:
        raise MissingError("--site needs Parsl: pip install 'hifi-cli[grid]'") from None
    spec = load_site(site)
    try:
        provider = _provider(spec.provider)
        executor = parsl.HighThroughputExecutor(label="hifi", provider=provider, **spec.executor)
    except Exception as error:
        # The type of such an error depends on the provider.
        raise UsageError(f"site {site}: {_one_line(error)}") from error
    # Parsl starts its own scripts by name; they are next to this interpreter.
    scripts = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    config = parsl.Config(
        executors=[executor],
        run_dir=str(run_dir),
        # A command whose worker vanished continues from its checkpoint.
        retries=20,
        # It gives idle blocks back while others are still busy.
        strategy="htex_auto_scale",
        strategy_period=1,
    )
    kernel = parsl.load(config)
    app = parsl.python_app(execute)
    try:
        yield lambda command, log: app(command, str(log.absolute()), str(Path.cwd()))
    except Exception as error:
        if executor.bad_state_is_set:
            # Parsl refuses every further command.
            reason = _one_line(executor.executor_exception)
            raise MissingError(f"site {site}: no node to run on: {reason}") from error
        raise
    finally:
        # First, because Parsl's own end hangs where its interchange got the same signal.
        provider.cancel(list(provider.resources))
        ending = threading.Thread(target=kernel.cleanup, daemon=True)
        ending.start()
        ending.join(timeout=_END_SECONDS)
        parsl.clear()


def execute(command: list[str], log: str, directory: str) -> int:
    """Run a command on a worker, which imports this function; returns its exit code.

    Args:
        command: of `hifi`.
        log: the file that its output is appended to.
        directory: where it runs.
    """
    return processes.start(command, Path(log), os.environ, cwd=directory).wait()


def _provider(arguments: Mapping[str, Any]) -> Any:
    """Make the provider of a site: an object of Parsl's, as its YAML says."""
    from parsl import launchers, providers

    launcher = launcher_of(arguments)
    arguments = {key: value for key, value in arguments.items() if key != "launcher"}
    if launcher:
        launcher_class = getattr(launchers, launcher.pop("kind"))
        arguments["launcher"] = launcher_class(**launcher)
    volumes = arguments.get("persistent_volumes")
    if volumes:
        # Parsl wants tuples for Kubernetes, which YAML does not have.
        arguments["persistent_volumes"] = [tuple(volume) for volume in volumes]
    provider_class = getattr(providers, arguments.pop("kind"))
    return provider_class(**arguments)


def launcher_of(provider: Mapping[str, Any]) -> dict[str, Any]:
    """Return `kind` and arguments of the launcher that a provider of a site's YAML names; empty if none."""
    launcher = provider.get("launcher") or {}
    if isinstance(launcher, dict):
        return dict(launcher)
    return {"kind": launcher}


def _one_line(error: BaseException | None) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())
