"""Checks of what a record says about its training: draws, processes, heads, rows and its start.

Each function yields one sentence for each problem. Records of schema 1 lack most of it.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import ceil

from hifi_cli.config.draws import VERSIONS_OF_METHODS, present_versions
from hifi_cli.config.run_config import HeadsConfig, RunConfig
from hifi_cli.config.specs import method_spec
from hifi_cli.digests import digest
from hifi_cli.errors import HifiError
from hifi_cli.records.check_record import find_in_earlier_epochs
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import SCHEMA, SPLITS, RunResult
from hifi_cli.records.recorded_draws import draws_made, draws_without_version
from hifi_cli.run_paths import relative_run_path
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import abbreviate, counted_noun

# Seconds by which the clocks of a run and of its processes may differ: each is rounded by itself.
_CLOCKS = 1.0
_PRESENCE = {True: "there", False: "missing"}
# The implementations of methods with several stages. The epochs of all but the last are not selected.
IN_STAGES = {"diff_pruning", "two_stage"}
# Fields that schema 2 added: a record of schema 1 has none of them.
_OF_SCHEMA_2 = ("task_digest", "draws", "processes")


def find_in_schema(result: RunResult) -> Iterator[str]:
    """Find a record that says another schema than its fields have."""
    held = [key for key in _OF_SCHEMA_2 if getattr(result, key)]
    if result.schema_version == 1 and held:
        yield f"is of schema 1, and has {' and '.join(held)} as those of schema 2"
    if result.schema_version == SCHEMA and result.task_digest is None:
        yield "task_digest is missing"


def find_in_draws(result: RunResult, directory: RunDirectory) -> Iterator[str]:
    """Find random draws that the run must have made and does not name, or names and cannot have made.

    Args:
        result: the record.
        directory: has the copies of the user's own methods.
    """
    if missing := draws_without_version(result, directory):
        yield f"draws lacks the version of {abbreviate(missing)}"
    used = draws_made(result, directory)
    if used is None:
        return
    # A name that this program does not know is of another version of it.
    known = result.draws.keys() & present_versions().keys()
    if others := sorted(known - used):
        yield f"draws names {abbreviate(others)}, which the run does not draw by its configuration"


def find_in_stages(result: RunResult, directory: RunDirectory) -> Iterator[str]:
    """Find an epoch that beats the best one, where the method has no stage before the last.

    Args:
        result: the record.
        directory: has the copies of the user's own methods.
    """
    if not result.is_done:
        return
    try:
        # Trust is harmless here: no code is executed.
        method = directory.user_name("methods", result.method, trust=True)
        implementation = method_spec(method).implementation
    except HifiError:
        # The method's YAML is not here.
        return
    # The stages of a method of the user's own are not known.
    if implementation in VERSIONS_OF_METHODS and implementation not in IN_STAGES:
        yield from find_in_earlier_epochs(result)


def find_in_processes(result: RunResult) -> Iterator[str]:
    """Find processes that cannot have trained the run, and times that are not theirs."""
    if result.schema_version == 1:
        return
    if not result.processes:
        yield "processes is empty, and no run trains without one"
        return
    yield from _find_in_steps(result)
    yield from _find_in_sizes_of_processes(result)
    processes = result.processes
    precision = " and ".join(sorted({process.precision for process in processes}))
    if precision != result.precision:
        yield f"precision is {result.precision}, and that of its processes {precision}"
    # A diverged run has the seconds up to its last epoch alone.
    seconds = sum(process.seconds for process in processes)
    if result.time_s is not None and abs(seconds - result.time_s) > _CLOCKS * len(processes):
        yield f"time_s is {result.time_s:g}, and its processes trained for {seconds:.1f} s"
    if seconds - result.wall_s > _CLOCKS * len(processes):
        yield f"wall_s is {result.wall_s:g}, and its processes trained for {seconds:.1f} s"
    expected = {
        "device": " and ".join(dict.fromkeys(process.device for process in processes)),
        "threads": processes[-1].threads,
        "processes": processes[-1].processes,
    }
    for key, value in expected.items():
        stored = result.provenance.get(key, value)
        if stored != value:
            yield f"provenance.{key} is {stored}, and that of its processes {value}"


def _find_in_steps(result: RunResult) -> Iterator[str]:
    """Find steps that no process trained, or two of them, and steps that are no whole epochs."""
    processes = result.processes
    is_gapless = processes[0].first_step == 1
    for process, following in pairwise(processes):
        is_gapless &= following.first_step == process.last_step + 1
    # A process may have been stopped before its first step.
    if not is_gapless or any(each.last_step < each.first_step - 1 for each in processes):
        yield "processes do not train each step once, from 1 on"
    steps = processes[-1].last_step
    if result.epochs and (not steps or steps % result.epochs.total):
        count = counted_noun(steps, "step")
        yield f"processes have {count}, which are no {counted_noun(result.epochs.total, 'epoch')}"


def _find_in_sizes_of_processes(result: RunResult) -> Iterator[str]:
    """Find processes with numbers that none has."""
    for number, process in enumerate(result.processes, start=1):
        steps = process.last_step - process.first_step + 1
        repeated = process.repeated_steps or 0
        if process.threads < 1 or process.processes < 1 or process.seconds < 0:
            yield (
                f"process {number} says {process.threads} threads, {process.processes} processes"
                f" and {process.seconds:g} s"
            )
        if not 0 <= repeated <= max(steps, 0):
            yield f"process {number} repeated {repeated:,} of {counted_noun(steps, 'step')}"


def find_in_heads(result: RunResult) -> Iterator[str]:
    """Find attention heads that are not those of their digest or of the configuration."""
    # A key of another version of the program is none of those about heads.
    keys = result.config.keys() & RunConfig.model_fields.keys()
    known = {key: result.config[key] for key in keys}
    config = result.model_copy(update={"config": known}).run_config()
    # None: a section has such a key.
    if config is None:
        return
    expected = None
    if result.heads and not config.heads_vary_with_seed:
        expected = digest(result.heads, 64)
    if result.heads_sha256 != expected:
        yield "heads_sha256 is not that of its heads"
    given = config.heads.given
    if result.heads is not None and any(head < 0 for layer in result.heads for head in layer):
        yield "heads have a number below 0"
    if result.heads is not None and given and result.heads != given:
        yield "heads are not those that its configuration gives"
    if result.heads is not None and not given:
        yield from _find_in_number_of_heads(result.heads, config.heads)


def _find_in_number_of_heads(heads: list[list[int]], section: HeadsConfig) -> Iterator[str]:
    """Find another number of heads than the configuration selects.

    Args:
        heads: a list for each layer.
        section: how they were selected.
    """
    sizes = [len(set(layer)) for layer in heads]
    k = section.k
    is_right = {
        "layerwise": set(sizes) == {k},
        "midtop": set(sizes) <= {0, k},
        "global": sum(sizes) == k * len(sizes),
    }
    if not is_right[section.strategy]:
        yield f"heads are {sum(sizes)} in all, and not {section.strategy} with k={k}"


def find_in_batches(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """Find another number of steps than rows, batch size and epochs give.

    Args:
        result: the record.
        spec: its task.
    """
    # Rows of other formats, and those read in windows, are several examples or a part of one.
    is_row_an_example = spec.format == "plain" and spec.rules.encoding == "texts"
    if not is_row_an_example or not result.processes:
        return
    rows = result.n_examples["train"]
    # A few-shot run trains on all rows at once.
    batch = rows if result.shots else result.config["batch_size"]
    steps_of_epoch = ceil(rows / batch)
    steps = result.processes[-1].last_step
    measured = len(result.epoch_metrics)
    if not result.epochs:
        # The logits may have stopped the run when it was to be measured after its last steps.
        if steps // steps_of_epoch not in (measured, measured + 1):
            count = counted_noun(steps, "step")
            yield f"processes have {count}, and {counted_noun(measured, 'epoch')} were measured"
        return
    expected = result.epochs.total * steps_of_epoch
    if steps != expected:
        counts = f"{counted_noun(steps, 'step')}, and by rows and batch_size {expected:,}"
        yield f"processes have {counts}"


def find_in_rows(result: RunResult) -> Iterator[str]:
    """Find numbers of rows that contradict the configuration or one another."""
    rows = result.n_examples
    for key, counts in (("n_examples", rows), ("truncated", result.truncated)):
        if counts is not None and counts.keys() != set(SPLITS):
            yield f"{key} is of {abbreviate(sorted(counts))}, and not of {abbreviate(sorted(SPLITS))}"
            return
    if lacking := sorted({"train", result.split} - result.data.keys()):
        yield f"data lacks the digest of {abbreviate(lacking)}"
    if result.selection == "validation" and rows["selection"] != rows["reported"]:
        yield f"{rows['selection']:,} rows select the epoch, and {rows['reported']:,} are reported"
    cut = result.truncated
    if result.selection == "validation" and cut and cut["selection"] != cut["reported"]:
        yield f"truncated: {cut['selection']:,} rows select the epoch, and {cut['reported']:,} are reported"
    if result.limit is not None and max(rows["reported"], rows["train"]) > result.limit:
        yield f"limit is {result.limit:,}, and n_examples exceeds it"
    yield from _find_in_few_shots(result)


def _find_in_few_shots(result: RunResult) -> Iterator[str]:
    """Find few-shot rows in another run, or another number of them than is counted."""
    if (result.fewshot is None) != (result.shots is None):
        is_there = result.fewshot is not None
        yield f"shots is {result.shots}, and fewshot {_PRESENCE[is_there]}"
        return
    if result.fewshot is None:
        return
    for key, split in (("train", "train"), ("dev", "selection")):
        ids = result.fewshot[key]
        count = result.n_examples[split]
        if len(ids) != count or len(set(ids)) != count:
            yield f"fewshot.{key} does not name the {count:,} rows of {split} (n_examples)"
    if both := set(result.fewshot["train"]).intersection(result.fewshot["dev"]):
        yield f"fewshot: {counted_noun(len(both), 'row')} of train and of dev"


def find_in_shots(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """Find another number of few-shot rows than the shots of each class are.

    Args:
        result: the record.
        spec: its task.
    """
    if result.shots is None:
        return
    expected = result.shots * len(spec.classes)
    for split in ("train", "selection"):
        rows = result.n_examples[split]
        if rows != expected:
            shots = counted_noun(result.shots, "shot")
            yield f"{rows:,} rows of {split} (n_examples), and {shots} of each class are {expected:,}"


def find_in_start(result: RunResult) -> Iterator[str]:
    """Find a start that the configuration does not have, or one that the record does not name."""
    start = result.config.get("start_from")
    if bool(start) != bool(result.started_from):
        yield f"start_from is {start}, and started_from {_PRESENCE[bool(result.started_from)]}"
        return
    if not start:
        return
    expected = relative_run_path(start)
    first = result.started_from[0]["run"]
    # A run that lies in no results directory has only the name of its place then.
    if expected.startswith("runs/") and first != expected:
        yield f"start_from is {expected}, and started_from {first}"
