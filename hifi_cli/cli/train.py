"""`hifi train`: every combination of the named tasks, methods and seeds, one run each, in one process."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import flatten, parse
from hifi_cli.config.run_config import RunConfig, TrainingConfig
from hifi_cli.config.sources import parse_override, repeats_run
from hifi_cli.config.unused import may_be_unused, why_unused
from hifi_cli.errors import RunFailed, UsageError, logger
from hifi_cli.files import MAX_JSON_BYTES, command_line, read_file
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.signs import signs_of
from hifi_cli.text import abbreviate

# The modules that import torch are imported by the functions below that call them, because torch
# takes seconds to import, and `hifi train --help` needs none of them.
if TYPE_CHECKING:
    from hifi_cli.runs.workspace import Workspace

# The trackers of accelerate, which would import torch to name them.
TRACKERS = (
    "aim",
    "comet_ml",
    "mlflow",
    "tensorboard",
    "wandb",
    "clearml",
    "dvclive",
    "swanlab",
    "trackio",
)
_SOURCE_COLUMN = 44  # of a dry run; a longer value moves its source to the right


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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print every setting with its source and the size of a run, and stop.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
    allow_unused: Annotated[
        bool,
        typer.Option(
            "--allow-unused",
            help="Accept settings that no method of the command uses, as a grid's commands do.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
    report_to: Annotated[
        list[str] | None,
        options.several(
            "--report-to",
            choices=TRACKERS,
            help="Also send the metrics to these trackers of accelerate.",
            panel=options.OUTPUT,
        ),
    ] = None,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Train and evaluate runs; finished ones are skipped. Heads are scored and selected if the method needs them."""
    from hifi_cli.methods.find import check_settings
    from hifi_cli.runs.heads import needs_heads
    from hifi_cli.runs.log import check_trackers
    from hifi_cli.runs.run import run
    from hifi_cli.runs.workspace import Workspace
    from hifi_cli.training import processes

    given_heads, their_backbone = _read_heads(heads) if heads else ([], None)
    words = [*(overrides or []), *given_heads]
    configs = options.resolve_runs(
        task, method, backbone, protocol, seeds=seeds, files=files, overrides=words
    )
    if files and repeats_run(configs[0]):
        # The run is repeated with the copies of the user's own files beside its config.yaml, not
        # with files of the same name elsewhere.
        directory = RunDirectory(files[0].parent)
        configs = [directory.with_user_yamls(config, trust=trust) for config in configs]
        ranking = registry.own_file(configs[0].heads.rank)
        if ranking and not ranking.is_file():
            raise UsageError(
                f"{files[0]} names the ranking {ranking.name}, and there is no {ranking}: give the"
                " file as heads.rank=PATH"
            )
    if their_backbone not in (None, configs[0].backbone.name):
        raise UsageError(
            f"{heads} holds heads of backbone '{their_backbone}', not of '{configs[0].backbone.name}'"
        )
    if heads and (others := [config.method for config in configs if not needs_heads(config)]):
        raise UsageError(
            f"--heads {heads}: {others[0]} tunes no selected heads, as --method hifi-layerwise does"
        )
    if not allow_unused:
        _refuse_unused(configs, overrides or [])
    check_trackers(report_to or ())
    workspace = Workspace(results_dir, data_dir, trust=trust)
    if dry_run:
        return _print_plans(configs, workspace)
    directories = [RunDirectory.of(config, results_dir) for config in configs]
    for config in configs:  # before any of them trains
        check_settings(config)
        finished = None if force else workspace.identities.check_finished(config)
        if not finished:
            workspace.rows(config.task)
    results = []
    for index, config in enumerate(configs, start=1):
        if len(configs) > 1:
            logger.info(f"run {index} of {len(configs)}: {config.run_label}")
        results.append(run(config, workspace, force=force, report_to=report_to or ()))
    for sign in signs_of(results):
        logger.warning(f"note: {sign}")
    table = command_line(["hifi", "table", *options.arguments(results_dir=results_dir)])
    logger.info(f"results are in {results_dir}; next: {table}")
    if format == "json" and processes.is_main():
        pairs = zip(directories, results, strict=True)
        options.print_json([{"path": at.path, "result": result} for at, result in pairs])
    processes.destroy_process_group()
    if diverged := [
        config.run_label
        for config, result in zip(configs, results, strict=True)
        if not result.is_done
    ]:
        raise RunFailed(
            f"{len(diverged)} of {len(results)} runs diverged ({abbreviate(diverged)}) and have no"
            " scores; train them again with --force and another setting, such as a smaller"
            " learning_rate"
        )


def _refuse_unused(configs: Sequence[RunConfig], overrides: Sequence[str]) -> None:
    """Refuse a `key=value` of the command line that changes none of the command's runs.

    Raises:
        UsageError: there is one.
    """
    from hifi_cli.runs.heads import needs_heads

    # Words about a data file need not be YAML, and are of no conditional section
    words = [word for word in overrides if may_be_unused(word.partition("=")[0].strip())]
    conditional = [key for word in words for key in flatten(parse_override(word))]
    if not conditional:
        return
    tuning_heads = {config.method: needs_heads(config) for config in configs}
    for key in conditional:
        reasons = [
            why_unused(key, config, needs_heads=tuning_heads[config.method]) for config in configs
        ]
        if all(reasons):
            raise UsageError(f"{key} changes nothing: {reasons[0]}; leave it out")


def _read_heads(file: Path) -> tuple[list[str], str | None]:
    """The heads in a file as `key=value`, and their backbone; a plain list names none."""
    from hifi_cli.runs.heads import HeadSelection

    text = read_file(file, MAX_JSON_BYTES).decode(errors="replace").strip()
    if text.startswith("["):
        return [f"heads.given={text}"], None
    selection = HeadSelection.read(file)
    return [f"heads.given={selection.heads}"], selection.backbone


def _print_plans(configs: Sequence[RunConfig], workspace: "Workspace") -> None:
    """Configurations as YAML documents; comments have the source of each value, and the run's plan.

    On a terminal, a run after the first shows only what differs from the one before, and long texts
    take several lines.
    """
    from hifi_cli.runs.plan import plan

    width = Console().width if sys.stdout.isatty() else sys.maxsize
    before: dict[str, Any] = {}
    known: set[tuple[str, str]] = set()
    for config in configs:
        values = config.model_dump(mode="json") | {"settings": _settings(config)}
        if config.stage1:
            values["stage1"]["settings"] = _settings(config.stage1)
        flat = flatten(values)
        print("--- # as before, except for" if before else "---")
        differing = {key: value for key, value in flat.items() if before.get(key, ...) != value}
        _print_yaml(differing if before else values, config)
        lines = plan(config, workspace)
        for name, text in lines:
            if (name, text) not in known:
                print(
                    textwrap.fill(
                        text,
                        width,
                        initial_indent=f"# {name:10} ",
                        subsequent_indent=f"{'#':13}",
                        break_long_words=False,
                        break_on_hyphens=False,
                    ),
                    flush=True,
                )
        if sys.stdout.isatty():
            before, known = flat, {*lines}


def _print_yaml(values: Mapping[str, Any], config: RunConfig, section: str = "") -> None:
    """A mapping as YAML, a key each line; `section` is the dotted key of the mapping."""
    indent = "  " * section.count(".")
    for key, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{options.yaml_value(key)}:")
            _print_yaml(value, config, f"{section}{key}.")
        else:
            line = f"{indent}{options.yaml_value(key)}: {options.yaml_value(value)}"
            print(f"{line:{_SOURCE_COLUMN}}  # {config.source_of(f'{section}{key}')}")


def _settings(stage: TrainingConfig) -> dict[str, Any]:
    """The settings of a method, with the defaults of those that no source sets."""
    from hifi_cli.methods.find import implementation_of

    settings = implementation_of(stage.method).Settings
    return parse(settings, stage.settings, f"method {stage.method}, settings").model_dump(
        mode="json"
    )
