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
from hifi_cli.config.run_config import DEFAULT, RunConfig, TrainingConfig
from hifi_cli.config.sources import parse_override, repeats_run
from hifi_cli.config.unused import may_be_unused, why_unused
from hifi_cli.errors import MissingError, RunFailed, UsageError, logger
from hifi_cli.files import MAX_JSON_BYTES, command_line, read_file
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.records.signs import signs_of
from hifi_cli.text import abbreviate

# The modules that import torch are imported by the functions below that call them, because torch
# takes seconds to import, and `hifi train --help` needs none of them.
if TYPE_CHECKING:
    from hifi_cli.runs.plan import Planner
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
# The column of a dry run's sources; a longer value moves its source to the right.
_SOURCE_COLUMN = 44


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
    from hifi_cli.runs.log import check_trackers
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
    check_trackers(report_to or ())
    workspace = Workspace(results_dir, data_dir, trust=trust)
    if dry_run:
        is_complete = _print_plans(configs, workspace, format)
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
    # Said after all runs, so that a line names every run that shows the same sign.
    for sign in signs_of(results):
        logger.warning(f"note: {sign}")
    table = command_line(["hifi", "table", *options.arguments(results_dir=results_dir)])
    logger.info(f"results are in {results_dir}; next: {table}")
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

    words = list(overrides)
    backbone_of_heads = None
    if heads:
        given_heads, backbone_of_heads = _read_heads(heads)
        words.append(given_heads)
    configs = options.resolve_runs(
        tasks, methods, backbone, protocol, seeds=seeds, files=files, overrides=words
    )
    if files and repeats_run(configs[0]):
        configs = _with_own_files(configs, files[0], trust=trust)
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


def _with_own_files(configs: list[RunConfig], file: Path, *, trust: bool) -> list[RunConfig]:
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
    from hifi_cli.methods.find import check_settings
    from hifi_cli.runs.inputs import load_task

    check_settings(config)
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
    """Read the heads in a file as `key=value`, and their backbone; a plain list names none."""
    from hifi_cli.runs.head_files import HeadSelection

    text = read_file(file, MAX_JSON_BYTES).decode(errors="replace").strip()
    if text.startswith("["):
        return f"heads.given={text}", None
    selection = HeadSelection.read(file)
    return f"heads.given={selection.heads}", selection.backbone


# --- a dry run


def _print_plans(configs: Sequence[RunConfig], workspace: "Workspace", form: str) -> bool:
    """Print what the runs of a command would be; say whether nothing is missing.

    Args:
        configs: of the runs.
        workspace: has data and results.
        form: `text`, or `json` for a list of all values, their sources and the plan of each run.
    """
    from hifi_cli.runs.plan import Planner

    planner = Planner(workspace)
    if form == "json":
        plans = [planner.plan(config) for config in configs]
        documents = [_document(*pair) for pair in zip(configs, plans, strict=True)]
        options.print_json(documents)
    else:
        plans = _print_documents(configs, planner)
    missing = [text for lines in plans for name, text in lines if name == "missing"]
    return set(missing) == {"nothing"}


def _document(config: RunConfig, plan: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Give the values of a run, the source of each by dotted key, and its plan."""
    values = _values(config)
    return {
        "config": values,
        "sources": {key: config.source_of(key) for key in flatten(values)},
        "plan": [{"about": name, "text": text} for name, text in plan],
    }


def _print_documents(
    configs: Sequence[RunConfig], planner: "Planner"
) -> list[list[tuple[str, str]]]:
    """Print the first run as a YAML document and of each other run what differs from the one before.

    Comments have the source of each value, and the run's plan. On a terminal, long texts take
    several lines.

    Returns:
        The plans.
    """
    width = Console().width if sys.stdout.isatty() else sys.maxsize
    before: dict[str, Any] = {}
    plans: list[list[tuple[str, str]]] = []
    for config in configs:
        values = _values(config)
        flat = flatten(values)
        if before:
            print("--- # as before, except for")
            changed = {key: flat[key] for key in flat if before.get(key, ...) != flat[key]}
            _print_yaml(changed, config)
        else:
            print("---")
            _print_whole(values, config)
        before = flat
        lines = planner.plan(config)
        printed = plans[-1] if plans else []
        for line in lines:
            if line not in printed:
                _print_plan_line(*line, width)
        plans.append(lines)
    return plans


def _print_whole(values: Mapping[str, Any], config: RunConfig) -> None:
    """Print a configuration as YAML: first the keys and sections in which anything is set."""
    of_default = {}
    others = {}
    for key, value in values.items():
        inner = {key: value}
        sources = {config.source_of(name) for name in flatten(inner)}
        if sources <= {DEFAULT}:
            of_default[key] = value
        else:
            others[key] = value
    _print_yaml(others, config)
    print("# defaults")
    _print_yaml(of_default, config)


def _print_plan_line(name: str, text: str, width: int) -> None:
    """Print a line of a plan as a comment of YAML, wrapped at a width."""
    wrapped = textwrap.fill(
        text,
        width,
        initial_indent=f"# {name:10} ",
        subsequent_indent=f"{'#':13}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print(wrapped, flush=True)


def _values(config: RunConfig) -> dict[str, Any]:
    """Give a configuration with the methods' settings, those too that no source sets."""
    values = config.model_dump(mode="json")
    values["settings"] = _settings(config)
    if config.stage1:
        values["stage1"]["settings"] = _settings(config.stage1)
    return values


def _print_yaml(values: Mapping[str, Any], config: RunConfig, section: str = "") -> None:
    """Print a mapping as YAML, a key each line; `section` is the dotted key of the mapping."""
    indent = "  " * section.count(".")
    for key, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{options.yaml_value(key)}:")
            _print_yaml(value, config, f"{section}{key}.")
        else:
            line = f"{indent}{options.yaml_value(key)}: {options.yaml_value(value)}"
            print(f"{line:{_SOURCE_COLUMN}}  # {config.source_of(f'{section}{key}')}")


def _settings(stage: TrainingConfig) -> dict[str, Any]:
    """Give the settings of a method, with the defaults of those that no source sets."""
    from hifi_cli.methods.find import implementation_of

    settings_class = implementation_of(stage.method).Settings
    settings = parse(settings_class, stage.settings, f"method {stage.method}, settings")
    return settings.model_dump(mode="json")
