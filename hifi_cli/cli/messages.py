"""Messages on stderr."""

import logging
import os
import sys
from datetime import datetime

from hifi_cli.wording import printable

logger = logging.getLogger("hifi")


class Messages(logging.Handler):
    """Writes to whatever sys.stderr is at the time: a live view takes its place and prints messages above itself.

    `-v` adds the date to each line.
    """

    def emit(self, record: logging.LogRecord) -> None:
        date = f"{datetime.now():%Y-%m-%d %H:%M:%S}  " if logger.level <= logging.DEBUG else ""
        try:
            print(f"{date}{printable(self.format(record))}", file=sys.stderr, flush=True)
        except BrokenPipeError:  # whoever read the messages has gone: a training goes on without them
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def start_messages() -> None:
    """Send messages to stderr, a line each, beginning with those of level INFO."""
    logger.handlers[:] = [Messages()]
    logger.propagate = False
    logger.setLevel(logging.INFO if is_first_process() else logging.ERROR)


def is_first_process() -> bool:
    """Whether this is the process of a run that speaks; torchrun numbers them."""
    return os.environ.get("RANK", "0") == "0"
