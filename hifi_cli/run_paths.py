"""Where a run lies in a results directory: the one place that writes this path, reads it, and looks for runs.

`runs/PROTOCOL/BACKBONE/TASK/METHOD[/VARIANT]/seedN`; the folder of a few-shot run's task is `TASK-K-shot`.
The files in a run's directory are those of `hifi_cli/records/layout.py`.
"""

import re
from pathlib import Path, PurePath

from hifi_cli.files import safe_name

# The results directory where no option names another.
RESULTS = Path("results")
_TOP = "runs"
# Directories of runs in a results directory, as patterns of glob; the second one is of variants.
RUN_PATTERNS = (f"{_TOP}/*/*/*/*/seed*", f"{_TOP}/*/*/*/*/*/seed*")
_NAMES = ("protocol", "backbone", "task", "method")


def run_path_of(
    *,
    protocol: str,
    backbone: str,
    task: str,
    method: str,
    seed: int,
    variant: str | None = None,
    shots: int | None = None,
) -> PurePath:
    """Return the path of a run in a results directory.

    Args:
        protocol: name of the experimental setup.
        backbone: name of the pretrained encoder.
        task: name of the task.
        method: name of the fine-tuning method.
        seed: the run's own.
        variant: name of a run with other settings; None: it is not one.
        shots: training rows per class of a few-shot run; None: all rows.
    """
    # One protocol may run a task with all rows and with a few.
    task_folder = f"{task}-{shots}-shot" if shots else task
    folders = [protocol, backbone, task_folder, method]
    if variant:
        folders.append(variant)
    return PurePath(_TOP, *map(safe_name, folders), f"seed{seed}")


def is_run_directory(name: str) -> bool:
    """Return whether the directory of that name is a run's own, seedN."""
    return re.fullmatch(r"seed\d+", safe_name(name)) is not None


def names_in(path: PurePath | str) -> dict[str, str]:
    """Return protocol, backbone, task and method of a run by the folders of its path, as far as it has them."""
    folders = PurePath(path).parts[1:]
    return dict(zip(_NAMES, folders, strict=False))


def relative_run_path(path: str) -> str:
    """Return a run's path from `runs/` on, which does not depend on where the results directory is."""
    parts = PurePath(path).parts
    places = [index for index, part in enumerate(parts) if part == _TOP]
    begin = max(places, default=0)
    return str(PurePath(*parts[begin:]))
