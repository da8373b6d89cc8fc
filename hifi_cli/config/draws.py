"""Versions of the random draws of a run: a record has those that its run used.

Two programs that draw differently from the same seed train different runs under one name. So whoever
changes what is drawn, or in which order, raises the version of that component here. Runs of two
versions are not averaged or compared, and a finished run of another version is not the same run.
"""

from collections.abc import Iterable

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.specs import method_spec

VERSIONS = {
    "order of data": 1,
    "task head": 1,
    # Version 2: numpy's generator draws bits for dropout (`models/cpu_kernels.py`).
    "dropout on cpu": 2,
    # Version 2: batches that can be recorded are packed into a few sizes, with masks of those sizes.
    "dropout on cuda": 2,
    "few-shot rows": 1,
    "holdout": 1,
    "samples that score heads": 1,
    # Version 2: heads are drawn by seed and task. Before, a seed gave every task the same heads.
    "choice of heads": 2,
}
# The draws of runs of every method, which runs of two methods must share to be compared.
COMMON_DRAWS = VERSIONS.keys() - {"samples that score heads", "choice of heads"}
# The versions of what methods draw themselves, such as initial values, masks and noise, by the file
# in `hifi_cli/methods/` that implements the method. None: it draws nothing.
VERSIONS_OF_METHODS: dict[str, int | None] = {
    "adalora": 1,
    "adapter": 1,
    "bitfit": None,
    "child_tuning_d": None,
    "child_tuning_f": 1,
    "compacter": 1,
    "diff_pruning": 1,
    "full_ft": None,
    "hifi": None,
    "hifi_peft": 1,
    "linear_probing": None,
    "lora": 1,
    "mixout": 1,
    "peft": 1,
    "prefix_tuning": 1,
    "random_parameters": 1,
    "rocoft": None,
    "top_k": None,
    "two_stage": None,
}


def present_versions() -> dict[str, int]:
    """Return the version of every component that draws, methods as `method NAME`."""
    versions = dict(VERSIONS)
    for name, version in VERSIONS_OF_METHODS.items():
        if version is not None:
            versions[f"method {name}"] = version
    return versions


def draws_of(config: RunConfig, devices: Iterable[str], *, selects_heads: bool) -> dict[str, int]:
    """Return the components that draw in a run, with their versions, sorted by name; see `used_draws`."""
    versions = present_versions()
    used = used_draws(config, devices, selects_heads=selects_heads)
    return {name: versions[name] for name in sorted(used)}


def used_draws(config: RunConfig, devices: Iterable[str], *, selects_heads: bool) -> set[str]:
    """Return the names of the components that draw in a run.

    Args:
        config: the run's.
        devices: where its processes trained, `cpu` or `cuda`.
        selects_heads: whether it tunes attention heads that are scored or drawn.
    """
    used = ["order of data", "task head"]
    # null keeps the encoder's own dropout, which is rarely 0.
    if config.dropout != 0:
        used += [f"dropout on {device}" for device in devices]
    # Few-shot rows that select the epoch are drawn with those that train: nothing is held out besides.
    if config.shots:
        used.append("few-shot rows")
    elif config.selection == "holdout":
        used.append("holdout")
    if selects_heads and not config.heads.given:
        if config.heads.rank == "random":
            used.append("choice of heads")
        else:
            used.append("samples that score heads")
    for stage_config in config.stage_configs:
        used.append(f"method {method_spec(stage_config.method).implementation}")
    # A method that draws nothing has no version.
    return set(used) & present_versions().keys()


def changed_draws(draws: dict[str, int]) -> dict[str, int]:
    """Return the draws of a stored run that have another version in this program."""
    versions = present_versions()
    return {name: version for name, version in draws.items() if versions.get(name) != version}
