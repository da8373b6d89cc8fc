"""What a run would do, for `--dry-run`: nothing is written, and the network is not asked."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, MissingError
from hifi_cli.methods.base import Stage
from hifi_cli.methods.find import check_settings
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import load_backbone_on_meta
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs.heads import needs_heads, placeholder_heads
from hifi_cli.runs.identity import run_to_start_from
from hifi_cli.runs.run import trained_sizes
from hifi_cli.runs.splits import split_train
from hifi_cli.runs.workspace import (
    Workspace,
    batch_size,
    build_and_prepare,
    load_task,
    task_head_of,
)
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.task_spec import Row
from hifi_cli.text import counted_noun
from hifi_cli.training.device import select_device
from hifi_cli.training.loop import StepPlan

T = TypeVar("T")


def plan(config: RunConfig, workspace: Workspace) -> list[tuple[str, str]]:
    """Plan a run; the data are read if they are on this machine.

    Returns:
        What each line is about, and its text: the run's directory, the optimizer steps if every row
        is one example, the parameters, what a decoder's task head reads, and what is missing.

    Raises:
        UsageError: what the run itself would refuse: a setting, or the data.
    """
    task = load_task(config)
    check_settings(config)
    missing: list[str] = []

    def unless_missing(find: Callable[[], T]) -> T | None:
        try:
            return find()
        except MissingError as error:
            missing.append(str(error))
            return None

    unless_missing(lambda: select_device(config.device))
    is_local = unless_missing(
        lambda: task_sources.find_directory(task, workspace.data_dir) or not task.hub
    )
    data = unless_missing(lambda: workspace.rows(config.task)) if is_local else None
    sized = unless_missing(lambda: model_size(config))
    if config.start_from:
        unless_missing(lambda: run_to_start_from(str(config.start_from), workspace.results_dir))
    examples = batch = batch_size(config, task)
    if data or not config.shots:  # without data, the official number of rows
        numbers = range(task.rows.get("train", 0))
        rows = data.rows("train") if data else [Row(str(number), (), None) for number in numbers]
        examples = len(split_train(config, task, rows)[0])
    epochs = counted_noun(config.epochs, "epoch")
    steps = f"{epochs} of an unknown number of examples in batches of {batch}"
    if examples:
        of_run = config.model_copy(update={"batch_size": batch})
        # It refuses fewer steps than stages.
        count = StepPlan.of(of_run, examples, sized[2] if sized else []).total
        steps = f"{counted_noun(count, 'step')}: {epochs} of {examples:,} examples in batches of {batch}"
    parameters = "unknown without the backbone's configuration"
    if sized:
        total, sizes, *_ = sized
        texts = [
            f"{trained:,} trained ({trained / total:.2%}), {inside:,} of them in the backbone"
            for trained, inside in sizes
        ]
        parameters = f"{total:,}; {'; then '.join(texts) or 'training or the selected heads decide which train'}"
    directory = RunDirectory.of(config, workspace.results_dir)
    return [
        ("directory", f"{directory.path} ({_directory_state(directory, config)})"),
        ("steps", steps),
        *([("data", "not on this machine: the hub would be asked")] if is_local is False else []),
        ("parameters", parameters),
        *(
            [("pooling", "the last token's state, as of every decoder")]
            if sized and sized[3] and not task.rules.reads_all_tokens
            else []
        ),
        *(("missing", text) for text in missing or ["nothing"]),
    ]


def model_size(config: RunConfig) -> tuple[int, list[tuple[int, int]], list[Stage], bool]:
    """Count the parameters of a run on a model without values, as if its pooler were pretrained.

    Returns:
        Parameters of the plain model; trained ones, in all and in the backbone, of each stage for
        which training does not decide them; the stages of the run's method; whether the backbone is
        a decoder.

    Raises:
        MissingError: the backbone's configuration is not on this machine.
        UsageError: the method's settings do not fit.
    """
    head, dropout = task_head_of(config), config.dropout
    encoder = Encoder(load_backbone_on_meta(config.backbone, task_head=head, dropout=dropout))
    total = sum(value.numel() for value in encoder.model.parameters())
    method = build_and_prepare(config, encoder, placeholder_heads(config, encoder), [])
    sizes, stages = [], method.stages()
    with suppress(NotImplementedError):  # torch's: values of weights or gradients decide
        # heads of a group share keys and values: how many numbers train depends on the selected ones
        depends_on_selection = (
            encoder.num_key_value_heads < encoder.num_heads
            and needs_heads(config)
            and not config.heads.given
        )
        for index, stage in enumerate([] if depends_on_selection else stages):
            if index:
                stage.prepare_model(encoder)
            stage.method.on_stage_start(encoder.model, iter(()))
            sizes.append(trained_sizes(stage.method, encoder))
    return total, sizes, stages, encoder.is_causal


def _directory_state(directory: RunDirectory, config: RunConfig) -> str:
    try:
        directory.check_is_of(config)
    except ConflictError:
        return "holds a run of another configuration: --force replaces it"
    if directory.results.is_file():
        return f"{directory.read_result().status}: skipped without --force"
    return "begun: would be resumed" if directory.checkpoint.is_file() else "new"
