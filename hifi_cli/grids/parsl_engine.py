"""Run jobs on many machines: the same command lines through Parsl's pilot jobs (Slurm, PBS, Kubernetes, ...)."""

import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.grids.devices import THREADS, visible_gpus
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import JobOutcome, last_lines
from hifi_cli.grids.site_worker import WRONG_DEVICES

_FORWARDED = ("PYTHONPATH", *THREADS)  # variables that workers get from here; Parsl's cpu_affinity sets its own threads
_STOP_SECONDS = 20


class ExecutorSpec(ConfigModel, extra="allow"):
    """Arguments of parsl's HighThroughputExecutor; those that decide on GPUs are handled here, see `site_worker`."""

    available_accelerators: NonNegativeInt | list[str] | Literal["auto"] | None = None
    """GPUs of a node, one per worker: their number; or their names, a name given twice for two workers that share the GPU;
    or `auto`, those of this machine; or 0 for workers on the CPU."""
    max_workers_per_node: PositiveInt | None = None
    """Workers of a node; the number of GPUs by default."""


class SiteSpec(ConfigModel):
    """A site: Parsl's own names and arguments."""

    description: str = ""
    """What the site is, in one line."""
    provider: dict[str, Any]
    """`kind`, a class of parsl.providers, and its arguments; `launcher`, a class of parsl.launchers by name, or a mapping of
    its `kind` and arguments."""
    executor: ExecutorSpec = ExecutorSpec()
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
        is_local = spec.provider.get("kind") == "LocalProvider"
        accelerators = _accelerators(spec, site)
        provider = _provider(spec, site)
        blocks, nodes = getattr(provider, "max_blocks", 1), getattr(provider, "nodes_per_block", 1)
        if is_local and accelerators and blocks > 1:
            raise UsageError(f"site {site}: the blocks of a LocalProvider would share this machine's GPUs: set max_blocks to 1")
        self._worker = [sys.executable, "-P", "-m", "hifi_cli.grids.site_worker", json.dumps(accelerators)]
        self._worker.append(str(blocks if is_local else 1))
        with _site_errors(site):
            executor = parsl.HighThroughputExecutor(provider=provider, **_executor_arguments(spec, accelerators, is_local))
        self.processes = int(blocks * nodes * executor.workers_per_node)
        # Parsl starts its own scripts by name; they are next to this interpreter, even if its environment is not activated.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        # No retries by Parsl: the scheduler knows which cells of a lost job are unfinished.
        # htex_auto_scale also gives back the idle blocks of a grid that other blocks are still busy with.
        strategy: dict[str, Any] = {"strategy": "htex_auto_scale", "strategy_period": 1}
        config = parsl.Config(executors=[executor], run_dir=str(run_dir), retries=0, **strategy)
        self._kernel = parsl.load(config)
        self._provider, self._executor, self._site = provider, executor, site
        self._app = parsl.bash_app(bash_command)

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":
        """Submit a job; its future ends with an outcome, or with MissingError if no further job of the site can run.

        This is the case if a node has not the GPUs of the site, or if every block failed.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        variables = "".join(f"{name}={shlex.quote(os.environ[name])} " for name in _FORWARDED if os.environ.get(name))
        arguments = [*self._worker, *job.process_arguments(self.options)]
        command = f"cd {shlex.quote(str(Path.cwd()))} && {variables}exec {shlex.join(arguments)}"
        output = str(log.resolve())
        submitted = self._app(command, stdout=(output, "a"), stderr=(output, "a"))
        ended: Future[JobOutcome] = Future()

        def end(future: "Future[Any]") -> None:
            outcome = _outcome(future)
            if outcome.exit_code == WRONG_DEVICES:
                ended.set_exception(MissingError((last_lines(log) or ["hifi: see its log"])[-1].removeprefix("hifi: ")))
            elif outcome.lost and self._executor.bad_state_is_set:  # Parsl then refuses every further job too
                reason = _first_error(self._executor.executor_exception)
                ended.set_exception(MissingError(f"site {self._site}: no node to run on: {reason}"))
            else:
                ended.set_result(outcome)

        submitted.add_done_callback(end)
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


def _accelerators(spec: SiteSpec, site: str) -> int | list[str] | None:
    """Return the GPUs of each node, with `auto` replaced by this machine's.

    Raises:
        MissingError: `auto`, and this machine has none.
        UsageError: `auto` for another machine, or another number of workers.
    """
    accelerators, workers = spec.executor.available_accelerators, spec.executor.max_workers_per_node
    if accelerators == "auto":
        if spec.provider.get("kind") != "LocalProvider":
            raise UsageError(
                f"site {site}: available_accelerators: auto is for a LocalProvider; give the number of GPUs per node"
            )
        accelerators = visible_gpus()
        if not accelerators:
            raise MissingError(
                f"site {site}: this machine has no visible GPU (nvidia-smi -L); use --engine local, or set"
                " available_accelerators: 0"
            )
    promised = len(accelerators) if isinstance(accelerators, list) else accelerators
    if promised and workers and workers != promised:
        raise UsageError(
            f"site {site}: max_workers_per_node is {workers}, but available_accelerators has {promised} GPUs: leave"
            " max_workers_per_node out, or list a name for each worker; workers with the same name share that GPU"
        )
    return accelerators


def _executor_arguments(spec: SiteSpec, accelerators: int | list[str] | None, is_local: bool) -> dict[str, Any]:
    """Return the executor's arguments; Parsl gets no accelerators, as `site_worker` assigns them."""
    promised = len(accelerators) if isinstance(accelerators, list) else accelerators
    workers = promised or spec.executor.max_workers_per_node
    return {
        "label": "hifi",
        "encrypted": True,  # whatever Parsl's default: a task that arrives over the network is executed
        **({"address": "127.0.0.1"} if is_local else {}),
        **(spec.executor.model_extra or {}),
        **({"max_workers_per_node": workers} if workers else {}),
    }


@contextmanager
def _site_errors(site: str) -> Iterator[None]:
    """Turn what Parsl's constructors raise, which depends on the provider, into one line about the site."""
    from parsl.errors import OptionalModuleMissing

    try:
        yield
    except OptionalModuleMissing as error:
        raise MissingError(f"site {site}: {error}: pip install {' '.join(error.module_names)}") from error
    except Exception as error:
        raise UsageError(f"site {site}: {error}") from error


def _provider(spec: SiteSpec, site: str) -> Any:
    from parsl import launchers, providers

    arguments = dict(spec.provider)
    provider = _parsl_class(providers, arguments.pop("kind", None), site, "provider.kind")
    if not isinstance(arguments.get("walltime", ""), str):
        raise UsageError(
            f"site {site}: provider.walltime is the number {arguments['walltime']}, because YAML reads an unquoted 12:00:00 in"
            ' base 60: put it in quotes, "HH:MM:SS"'
        )
    if launcher := arguments.pop("launcher", None):
        launcher_arguments = dict(launcher) if isinstance(launcher, dict) else {"kind": launcher}
        launcher_class = _parsl_class(launchers, launcher_arguments.pop("kind", None), site, "provider.launcher")
        with _site_errors(site):
            arguments["launcher"] = launcher_class(**launcher_arguments)
    if volumes := arguments.get("persistent_volumes"):  # of Kubernetes: tuples, which YAML does not have
        arguments["persistent_volumes"] = [tuple(volume) for volume in volumes]
    with _site_errors(site):
        return provider(**arguments)


def _parsl_class(module: Any, name: object, site: str, key: str) -> Any:
    if name not in module.__all__:
        suggestion = registry.nearest(str(name), module.__all__)
        raise UsageError(f"site {site}: {key} '{name}'{suggestion} (one of {', '.join(module.__all__)})")
    return getattr(module, str(name))


def _first_error(error: Exception | None) -> str:
    """Return the first of the blocks' errors, which Parsl numbers in one text, as one line."""
    return " ".join(str(error).partition("Error 2:")[0].removeprefix("Error 1:").split())


def _outcome(submitted: "Future[Any]") -> JobOutcome:
    from parsl.app.errors import BashExitFailure

    error = submitted.exception()
    if error is None:
        return JobOutcome(0)
    if isinstance(error, BashExitFailure):
        return JobOutcome(int(error.exitcode))
    return JobOutcome(None, lost=True, reason=f"{type(error).__name__}: {error}")  # a worker, its pool or its block vanished
