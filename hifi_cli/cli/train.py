"""`hifi train`: every combination of the named tasks, methods and seeds, one run each, in one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import parse_override, repeats_run
from hifi_cli.config.unused import may_be_unused, why_unused
from hifi_cli.errors import MissingError, RunFailed, UsageError, logger
from hifi_cli.files import MAX_JSON_BYTES, read_file
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.records.signs import signs_of
from hifi_cli.records.stored import refuse_packed
from hifi_cli.text import abbreviate, command_line

# The modules that import torch are imported by the functions below that call them, because torch
# takes seconds to import, and `hifi train --help` needs none of them.
if TYPE_CHECKING:
    from hifi_cli.runs.workspace import Workspace


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
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="With --dry-run: exit with 3 if anything is missing.",
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
    report_to: options.ReportTo = None,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Train and evaluate runs; finished ones are skipped. Heads are scored and selected if the method needs them."""
    from hifi_cli.runs.run import run
    from hifi_cli.runs.workspace import Workspace
    from hifi_cli.training import processes

    if strict and not dry_run:
        raise UsageError("--strict is for --dry-run: a run always needs what is missing")
    configs = _resolve(
        task, method, backbone, protocol, seeds, files, overrides or [], heads, trust=trust
    )
    if not allow_unused:
        _refuse_unused(configs, overrides or [])
    options.check_trackers(report_to)
    refuse_packed(results_dir)
    workspace = Workspace(results_dir, data_dir, trust=trust)
    if dry_run:
        from hifi_cli.cli.dry_run import print_plans

        is_complete = print_plans(configs, workspace, format)
        if strict and not is_complete:
            raise typer.Exit(MissingError.exit_code)
        return
    # Every run is checked before the first one trains: a wrong setting of the last run must not
    # show after hours.
    for config in configs:
        _check_run(config, workspace, force=force)
    results = []
    for index, config in enumerate(configs, start=1):
        if len(configs) > 1:
            logger.info(f"run {index} of {len(configs)}: {config.run_label}")
        results.append(run(config, workspace, force=force, report_to=report_to or ()))
    # Said after all runs, so that a line names every run that shows the same sign. The names of the
    # configurations have the user's own YAMLs, where the labels are; those of the records are plain.
    methods = [config.method for config in configs]
    tasks = [config.task for config in configs]
    for sign in signs_of(results, methods=methods, tasks=tasks):
        logger.warning(f"note: {sign}")
    place = options.arguments(results_dir=results_dir)
    words = ["hifi", *options.table_that_shows(configs), *place]
    logger.info(f"results are in {results_dir}; next: {command_line(words)}")
    if format == "json" and processes.is_main():
        paths = [workspace.directory(config).path for config in configs]
        pairs = zip(paths, results, strict=True)
        options.print_json([{"path": path, "result": result} for path, result in pairs])
    # Last, so that a diverged run costs the command's exit code and not the other runs' output.
    processes.destroy_process_group()
    _refuse_diverged(configs, results)


def _resolve(
    tasks: list[str] | None,
    methods: list[str] | None,
    backbone: str | None,
    protocol: str | None,
    seeds: str | None,
    files: list[Path] | None,
    overrides: list[str],
    heads: Path | None,
    *,
    trust: bool,
) -> list[RunConfig]:
    """Resolve the configurations of the command's runs.

    Args:
        heads: a file with the heads to tune.
        trust: whether code may run that belongs to a run which `files` repeats.

    Raises:
        UsageError: a name, key or value is wrong, or the heads are of another backbone or for no
            method of the command.
    """
    from hifi_cli.runs.heads import needs_heads

    all_overrides = list(overrides)
    backbone_of_heads = None
    if heads:
        override_of_heads, backbone_of_heads = _read_heads(heads)
        all_overrides.append(override_of_heads)
    configs = options.resolve_runs(
        tasks, methods, backbone, protocol, seeds=seeds, files=files, overrides=all_overrides
    )
    if files and repeats_run(configs[0]):
        configs = _with_own_yamls(configs, files[0], trust=trust)
    if backbone_of_heads not in (None, configs[0].backbone.name):
        raise UsageError(
            f"{heads} holds heads of backbone '{backbone_of_heads}', not of"
            f" '{configs[0].backbone.name}'"
        )
    if heads:
        for config in configs:
            if not needs_heads(config):
                raise UsageError(
                    f"--heads {heads}: {config.method} tunes no selected heads, as --method"
                    " hifi-layerwise does"
                )
    return configs


def _with_own_yamls(configs: list[RunConfig], file: Path, *, trust: bool) -> list[RunConfig]:
    """Let a repeated run read the copies of the user's own files beside its config.yaml.

    Files of the same name elsewhere may be others.

    Args:
        file: the run's config.yaml.
        trust: whether code in these copies may run.

    Raises:
        UsageError: the copy of a ranking is missing.
    """
    directory = RunDirectory(file.parent)
    configs = [directory.with_user_yamls(config, trust=trust) for config in configs]
    ranking = registry.own_file(configs[0].heads.rank)
    if ranking and not ranking.is_file():
        raise UsageError(
            f"{file} names the ranking {ranking.name}, and there is no {ranking}: give the"
            " file as heads.rank=PATH"
        )
    return configs


def _refuse_diverged(configs: Sequence[RunConfig], results: Sequence[RunResult]) -> None:
    """End the command with an error if runs have diverged.

    Raises:
        RunFailed: some have.
    """
    pairs = zip(configs, results, strict=True)
    diverged = [config.run_label for config, result in pairs if not result.is_done]
    if diverged:
        raise RunFailed(
            f"{len(diverged)} of {len(results)} runs diverged ({abbreviate(diverged)}) and have no"
            " scores; train them again with --force and another setting, such as a smaller"
            " learning_rate"
        )


def _check_run(config: RunConfig, workspace: "Workspace", *, force: bool) -> None:
    """Refuse what a run would refuse, and read its rows: before any run of the command trains.

    Raises:
        ConflictError: its directory holds another run.
        MissingError, UsageError: its data are missing, or a setting or a row is wrong.
    """
    from hifi_cli.methods.find import check_method_settings
    from hifi_cli.runs.inputs import load_task

    check_method_settings(config)
    task = load_task(config)
    if force or not workspace.identities.check_finished(config, task):
        workspace.data(task)


def _refuse_unused(configs: Sequence[RunConfig], overrides: Sequence[str]) -> None:
    """Refuse a `key=value` of the command line that changes none of the command's runs.

    Raises:
        UsageError: there is one.
    """
    from hifi_cli.runs.heads import needs_heads

    conditional: list[str] = []
    for word in overrides:
        # Only keys that some runs do not use are parsed: a word about a data file, as
        # `label=#stars`, need not be YAML.
        if may_be_unused(word.partition("=")[0].strip()):
            conditional += flatten(parse_override(word))
    if not conditional:
        return
    tuning_heads = {config.method: needs_heads(config) for config in configs}
    for key in conditional:
        reasons = [
            why_unused(key, config, needs_heads=tuning_heads[config.method]) for config in configs
        ]
        if all(reasons):
            raise UsageError(f"{key} changes nothing: {reasons[0]}; leave it out")


def _read_heads(file: Path) -> tuple[str, str | None]:
    """Read the heads in a file as `key=value`, and their backbone; a plain list names none.

    Raises:
        UsageError: it holds no heads.
    """
    from hifi_cli.runs.head_files import HeadSelection

    text = read_file(file, MAX_JSON_BYTES).decode(errors="replace").strip()
    if text.startswith("["):
        return f"heads.given={text}", None
    # The file is the user's own, and nothing that a command could make again.
    if not text.startswith("{"):
        raise UsageError(
            f"--heads {file}: neither a file of hifi select nor a JSON list with a list of head"
            " numbers for each layer, such as [[0,3],[],[1]]"
        )
    selection = HeadSelection.read(file)
    return f"heads.given={selection.heads}", selection.backbone
