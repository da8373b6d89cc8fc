"""`hifi train`: every combination of the named tasks, methods and seeds, one run each, in one process."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import flatten, parse
from hifi_cli.config.run_config import RunConfig, TrainingConfig
from hifi_cli.config.sources import NAMING_KEYS, ResolvedConfig, with_overrides
from hifi_cli.errors import RunFailed, UsageError, first_of
from hifi_cli.files import command_line
from hifi_cli.heads.select import HeadSelection
from hifi_cli.methods import base as methods
from hifi_cli.results.record import RunDirectory
from hifi_cli.training import machine
from hifi_cli.training import run as runs
from hifi_cli.training.data import ResourceCache

Training = TypeVar("Training", bound=TrainingConfig)
_SOURCE_COLUMN = 60  # a longer line does not move the column of sources


def train(
    overrides: options.Overrides = None,
    task: options.Tasks = None,
    method: options.Methods = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    files: options.Files = None,
    heads: Annotated[
        Path | None,
        typer.Option(
            help="Tune the heads in this file: of hifi select, or a JSON list with a list of head numbers for each layer.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    force: options.Force = False,
    trust: options.Trust = False,
    dry_run: options.DryRun = False,
    report_to: options.ReportTo = None,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Train and evaluate runs; finished ones are skipped. Heads are scored and selected if the method needs them."""
    given_heads, their_backbone = _read_heads(heads) if heads else ("", None)
    words = [*(overrides or []), *([f"heads.given={given_heads}"] if given_heads else [])]
    if files and {*NAMING_KEYS} <= registry.read_yaml(files[0]).keys():
        named = {
            "--task": task,
            "--method": method,
            "--backbone": backbone,
            "--protocol": protocol,
            "-c": files[1:],
        }
        if given := [option for option, value in named.items() if value]:
            raise UsageError(
                f"{files[0]} repeats a run, which decides {given[0]}: leave it out, or set keys by key=value"
            )
        resolved = _repeated(files[0], seeds, words, trust=trust)
    else:
        resolved = options.resolve_runs(
            task, method, backbone, protocol, seeds=seeds, files=files, overrides=words
        )
    for run in resolved if their_backbone else ():
        if their_backbone != run.config.backbone.name:
            raise UsageError(
                f"{heads} holds heads of backbone '{their_backbone}', not of '{run.config.backbone.name}'"
            )
    runs.check_trackers(report_to or ())
    resources = ResourceCache(results_dir, data_dir, trust=trust)
    if dry_run:
        return _print_plans(resolved, resources)
    for config in {(run.config.task, run.config.method): run.config for run in resolved}.values():
        methods.check_settings(config)  # of all runs, before any of them trains
    directories = [RunDirectory.of(run.config, results_dir) for run in resolved]
    if not force:
        for run, directory in zip(resolved, directories, strict=True):  # before any of them trains
            directory.check_is_of(run.config)
    results = []
    for number, run in enumerate(resolved, start=1):
        if len(resolved) > 1:
            options.logger.info(f"run {number} of {len(resolved)}: {runs.name(run.config)}")
        results.append(runs.run(run.config, resources, force=force, report_to=report_to or ()))
    table = command_line(["hifi", "table", *options.arguments(results_dir=results_dir)])
    options.logger.info(f"results are in {results_dir}; next: {table}")
    if format == "json" and machine.is_main():
        pairs = zip(directories, results, strict=True)
        options.print_json(
            [{"path": directory.path, "result": result} for directory, result in pairs]
        )
    machine.destroy_process_group()
    diverged = [
        runs.name(run.config)
        for run, result in zip(resolved, results, strict=True)
        if not result.is_done
    ]
    if diverged:
        raise RunFailed(
            f"{len(diverged)} of {len(results)} runs diverged ({first_of(diverged)}) and have no scores; train them again with"
            " --force and another setting, such as a smaller learning_rate"
        )


def _read_heads(file: Path) -> tuple[str, str | None]:
    """The heads in a file as JSON, one list per layer, and their backbone; a plain list names none."""
    if file.is_file() and (text := file.read_text(encoding="utf-8").strip()).startswith("["):
        return text, None
    selection = HeadSelection.read(file)
    return str(selection.heads), selection.backbone


def _repeated(
    file: Path, seeds: str | None, overrides: list[str], *, trust: bool
) -> list[ResolvedConfig]:
    """The configuration of a run's config.yaml, with other seeds and keys. The YAMLs that the run keeps are used again.

    Raises:
        UsageError: a key or value is wrong, or the run's own YAMLs name code that is not trusted.
    """
    config = RunDirectory(file.parent).with_own_yamls(
        parse(RunConfig, registry.read_yaml(file), str(file)), trust=trust
    )
    numbers = options.parse_seeds(seeds) or [config.seed]
    return [with_overrides(config, overrides, name=f"-c {file}", seed=seed) for seed in numbers]


def print_configs(
    resolved: Iterable[ResolvedConfig], comments: Iterable[Sequence[str]] = ()
) -> None:
    """Resolved configurations as YAML documents, with the source of each value in a comment.

    On a terminal, only what differs from the first is printed of the others.

    Args:
        comments: other lines about each.
    """
    first: dict[str, Any] = {}
    known: Sequence[str] = ()
    for run, about in zip(resolved, chain(comments, repeat(())), strict=False):
        values = run.config.model_dump(mode="json")
        flat = flatten(values)
        differing = (
            {key: value for key, value in flat.items() if first.get(key, ...) != value}
            if first
            else values
        )
        lines = list(_yaml_lines(differing, run.sources))
        width = max((len(text) for text, _ in lines if len(text) <= _SOURCE_COLUMN), default=0)
        print("--- # as the first, except for" if first else "---")
        print(
            *(f"{text:{width}}  # {source}" if source else text for text, source in lines), sep="\n"
        )
        print("".join(f"{line}\n" for line in about if line not in known), end="", flush=True)
        if sys.stdout.isatty() and not first:
            first, known = flat, about


def _yaml_lines(
    values: dict[str, Any], sources: dict[str, str], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """The lines of a YAML mapping, each with the source of its value; the first line of a section has none."""
    indent = "  " * prefix.count(".")
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{options.yaml_value(key)}:", ""
            yield from _yaml_lines(value, sources, f"{prefix}{key}.")
        else:
            yield (
                f"{indent}{options.yaml_value(key)}: {options.yaml_value(value)}",
                sources[f"{prefix}{key}"],
            )


def _print_plans(resolved: Sequence[ResolvedConfig], resources: ResourceCache) -> None:
    """The resolved configurations, each followed by comments with the run's directory, steps, size and what is missing."""
    from hifi_cli.training.plan import plan  # for --dry-run alone

    whole = [
        replace(run, config=_with_method_defaults(run.config, run.sources)) for run in resolved
    ]
    print_configs(
        whole,
        ([f"# {name:10} {text}" for name, text in plan(run.config, resources)] for run in resolved),
    )


def _with_method_defaults(config: Training, sources: dict[str, str], prefix: str = "") -> Training:
    """The configuration with the settings that no source sets, at the defaults of the method's implementation."""
    defaults = methods.implementation_of(config.method).Settings().model_dump(mode="json")
    for name in defaults:
        sources.setdefault(f"{prefix}settings.{name}", f"default of method {config.method}")
    changes: dict[str, Any] = {"settings": defaults | config.settings}
    if stage1 := getattr(config, "stage1", None):
        changes["stage1"] = _with_method_defaults(stage1, sources, "stage1.")
    return config.model_copy(update=changes)
