"""What the surroundings of a command must have, and what the command sets there for its libraries."""

import os
import sys

from hifi_cli.errors import UsageError


def check_environment() -> None:
    """Refuse surroundings in which libraries fail with messages that name no cause.

    Raises:
        UsageError: the working directory is gone, or docstrings are.
    """
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise UsageError(
            "the working directory does not exist any more: change to another one, and repeat"
        ) from None
    if sys.flags.optimize > 1:
        raise UsageError(
            "PYTHONOPTIMIZE=2 (python -OO) removes docstrings, without which transformers does not"
            " work: unset it, or set PYTHONOPTIMIZE=1"
        )
    # A notebook names its own backend, which other processes cannot import. Figures go into files
    os.environ["MPLBACKEND"] = "agg"
