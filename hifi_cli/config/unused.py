"""Settings that change nothing: keys whose meaning depends on other keys or on the method."""

from hifi_cli.config.decides import decides
from hifi_cli.config.run_config import RunConfig

# Methods that select no attention heads read nothing of these sections.
SECTIONS_OF_HEADS = ("heads", "scoring")
# Some methods, or values of other keys, make these keys and sections meaningless.
CONDITIONAL = (*SECTIONS_OF_HEADS, "task_head", "holdout", "hold_factor", "final_factor")
_OF_OWN_TASK_HEAD = ("task_head.width", "task_head.activation", "task_head.init_std")


def may_be_unused(key: str) -> bool:
    """Return whether there are runs in which a dotted key changes nothing."""
    return key.partition(".")[0] in CONDITIONAL


def why_unused(key: str, config: RunConfig, *, needs_heads: bool) -> str:
    """Return why a dotted key changes nothing in a run; empty where it may change something.

    Conditions of a run, such as the device and its precision, are never unused: they may be given
    to any command.

    Args:
        key: dotted.
        config: the run's.
        needs_heads: whether the method of the run tunes selected attention heads.
    """
    section = key.partition(".")[0]
    # Heads that are given are neither scored nor chosen.
    if section in SECTIONS_OF_HEADS:
        if not needs_heads:
            return f"method {config.method} selects no attention heads"
        if config.heads.given and key != "heads.given":
            return "the heads are given"
    if reason := _why_unused_to_rank(key, config.heads.rank):
        return reason
    if key in _OF_OWN_TASK_HEAD and config.task_head.kind != "mlp":
        return f"task_head.kind is {config.task_head.kind}"
    if key == "holdout" and config.selection != "holdout":
        return f"selection is {config.selection}"
    if key == "hold_factor" and config.hold_steps == 0:
        return "hold_steps is 0"
    if key == "final_factor" and config.schedule == "constant":
        return "schedule is constant"
    return ""


def why_unused_for_heads(key: str, config: RunConfig, *, selects: bool, is_measured: bool) -> str:
    """Return why a dotted key changes neither the scores nor the choice of heads; empty where it may.

    The rules are in order: the first one that matches the key decides.

    Args:
        key: dotted.
        config: that of the scoring or of the selection.
        selects: whether heads are selected, and not scored alone.
        is_measured: whether heads are ranked by what is measured with a task head and its loss.
    """
    section = key.partition(".")[0]
    in_warm_up = decides(RunConfig, key, "warm-up")
    decides_tokens_or_encoder = decides(RunConfig, key, "tokens") or decides(
        RunConfig, key, "encoder"
    )
    # The encoder and the texts that are scored: `backbone`, `start_from`, `truncation`, `swap_texts`
    # and `stride`. A warm-up alone reads `max_length` and `dropout`: examples are scored at a length
    # of their own, `scoring.max_length`, and without dropout.
    if decides_tokens_or_encoder and not in_warm_up:
        return ""
    # `precision` and other conditions of a run; `scoring`, `shots` and `selection`.
    if decides(RunConfig, key, "computation") or decides(RunConfig, key, "scored rows"):
        return ""
    if section == "heads":
        if not selects:
            return "hifi score chooses no heads"
        return _why_unused_to_select(key, config)
    if key == "limit":
        return "heads are scored on scoring.samples rows"
    # Heads are measured with the task head, and not on rows that are held out.
    has_task_head = section == "task_head" and selects and is_measured
    if has_task_head or key == "holdout":
        return why_unused(key, config, needs_heads=True)
    # `method`, `stage1`, `report` and others that a warm-up does not read.
    if not in_warm_up:
        return "no score of a head depends on it"
    # The remaining keys, as `learning_rate`, are those of the warm-up.
    if config.scoring.warm_steps == 0:
        return "nothing is trained before heads are scored (scoring.warm_steps is 0)"
    return why_unused(key, config, needs_heads=True)


def _why_unused_to_select(key: str, config: RunConfig) -> str:
    """Return why a key of the section heads changes no choice of heads; empty where it may."""
    if key == "heads.given":
        return "hifi select chooses heads by their scores"
    return _why_unused_to_rank(key, config.heads.rank)


def _why_unused_to_rank(key: str, rank: str) -> str:
    """Return why a dotted key changes nothing in a ranking; empty where it may."""
    if key == "heads.seed" and rank != "random":
        return f"heads.rank={rank} draws nothing"
    # A ranking of the user's own is called with both.
    reads_bounds = rank.startswith("pagerank") or rank.endswith(".py")
    if key in ("heads.damping", "heads.epsilon") and not reads_bounds:
        return f"heads.rank={rank} is no PageRank"
    return ""
