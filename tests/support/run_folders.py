"""Where the runs of tests lie, by the program's own function; one test spells the path out."""

from pathlib import Path

from hifi_cli.run_paths import run_path_of


def run_folder(
    root="results",
    *,
    protocol="hifi",
    backbone="tiny-bert",
    task="rte",
    method="full-ft",
    seed=1,
    **place,
):
    """The directory of a run in a results directory; `place`: its variant, its shots."""
    names = {"protocol": protocol, "backbone": backbone, "task": task, "method": method}
    return Path(root) / run_path_of(**names, seed=seed, **place)


def demo_folder(root="results", **names):
    """That of a run of the demo's encoder under its protocol."""
    usual = {"protocol": "demo", "backbone": "demo", "task": "demo-entailment"}
    return run_folder(root, **{**usual, **names})
