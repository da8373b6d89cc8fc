"""Run jobs on many machines: the same command lines through Parsl's pilot jobs (Slurm, PBS, Kubernetes, ...)."""

import os
import shlex
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.local_engine import THREADS
from hifi_cli.grids.scheduler import JobOutcome

_FORWARDED = ("PYTHONPATH", *THREADS)  # variables that workers get from here; Parsl's cpu_affinity sets its own threads
_STOP_SECONDS = 20


class SiteSpec(ConfigModel):
    """A site: Parsl's own names and arguments."""

    description: str = ""
    """What the site is, in one line."""
    provider: dict[str, Any]
    """`kind`, a class of parsl.providers, and its arguments; `launcher`, a class of parsl.launchers by name."""
    executor: dict[str, Any] = {}
    """Arguments of parsl's HighThroughputExecutor, such as `max_workers_per_node` and `available_accelerators`."""


def bash_command(command: str, stdout: Any = None, stderr: Any = None) -> str:  # noqa: ARG001
    """Return the command line: the body of the bash app, which workers import from here."""
    return command


class ParslEngine:
    """Jobs as bash apps on a site."""

    def __init__(self, options: JobOptions, site: str, run_dir: Path) -> None:
        try:
            import parsl
        except ImportError:
            raise MissingError("--engine parsl needs Parsl: pip install 'hifi-cli[grid]'") from None
        spec = parse(SiteSpec, registry.load("sites", site), str(registry.find("sites", site)))
        data_dir = options.data_dir.resolve() if options.data_dir else None
        self.options = replace(options, results_dir=options.results_dir.resolve(), data_dir=data_dir)
        try:
            provider = _provider(spec, site)
            executor = parsl.HighThroughputExecutor(provider=provider, **self._executor(spec))
        except TypeError as error:
            raise UsageError(f"site {site}: {error}") from None
        blocks, nodes = getattr(provider, "max_blocks", 1), getattr(provider, "nodes_per_block", 1)
        self.processes = int(blocks * nodes * (spec.executor.get("max_workers_per_node") or 1))
        # Parsl starts its own scripts by name; they are next to this interpreter, even if its environment is not activated.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        # No retries by Parsl: the scheduler knows which cells of a lost job are unfinished.
        config = parsl.Config(executors=[executor], run_dir=str(run_dir), retries=0, strategy="simple", strategy_period=1)
        self._kernel = parsl.load(config)
        self._provider = provider
        self._app = parsl.bash_app(bash_command)

    @staticmethod
    def _executor(spec: SiteSpec) -> dict[str, Any]:
        local = spec.provider.get("kind") == "LocalProvider"
        # Always encrypted, whatever Parsl's default: a task that arrives over the network is executed.
        return {"label": "hifi", "encrypted": True, **({"address": "127.0.0.1"} if local else {}), **spec.executor}

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":
        """Submit a job; its future always ends with an outcome."""
        log.parent.mkdir(parents=True, exist_ok=True)
        variables = "".join(f"{name}={shlex.quote(os.environ[name])} " for name in _FORWARDED if os.environ.get(name))
        command = f"cd {shlex.quote(str(Path.cwd()))} && {variables}exec {shlex.join(job.process_arguments(self.options))}"
        output = str(log.resolve())
        submitted = self._app(command, stdout=(output, "a"), stderr=(output, "a"))
        ended: Future[JobOutcome] = Future()
        submitted.add_done_callback(lambda future: ended.set_result(_outcome(future)))
        return ended

    def stop(self) -> None:
        """Cancel the blocks; their scheduler then stops the processes in them. Wait for a limited time."""
        ending = threading.Thread(target=self.close, daemon=True)
        ending.start()
        ending.join(_STOP_SECONDS)
        if ending.is_alive():  # Parsl's interchange got the same signal first and does not answer
            self._provider.cancel(list(self._provider.resources))

    def close(self) -> None:
        """Release the blocks."""
        import parsl

        if not self._kernel.cleanup_called:
            self._kernel.cleanup()
        parsl.clear()


def _provider(spec: SiteSpec, site: str) -> Any:
    from parsl import launchers, providers

    arguments = dict(spec.provider)
    kind = arguments.pop("kind", None)
    if kind not in providers.__all__:
        suggestion = registry.nearest(str(kind), providers.__all__)
        raise UsageError(f"site {site}: provider.kind '{kind}'{suggestion} (one of {', '.join(providers.__all__)})")
    if launcher := arguments.pop("launcher", None):
        if launcher not in launchers.__all__:
            raise UsageError(f"site {site}: provider.launcher '{launcher}' (one of {', '.join(launchers.__all__)})")
        arguments["launcher"] = getattr(launchers, launcher)()
    return getattr(providers, kind)(**arguments)


def _outcome(submitted: "Future[Any]") -> JobOutcome:
    from parsl.app.errors import BashExitFailure

    error = submitted.exception()
    if error is None:
        return JobOutcome(0)
    if isinstance(error, BashExitFailure):
        return JobOutcome(int(error.exitcode))
    return JobOutcome(None, lost=True, reason=f"{type(error).__name__}: {error}")  # a worker, its pool or its block vanished
