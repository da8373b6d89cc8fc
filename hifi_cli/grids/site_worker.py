"""What a site's worker executes: check the GPU that the site promises to it, set its threads, and start the job's command.

    python -m hifi_cli.grids.site_worker ACCELERATORS POOLS COMMAND [ARGUMENT ...]

ACCELERATORS is the site's `available_accelerators` as JSON, POOLS the number of worker pools on this machine.
"""

import json
import os
import socket
import sys

from hifi_cli.errors import MissingError
from hifi_cli.grids.devices import thread_environment, visible_gpus

WRONG_DEVICES = 97  # exit code; the grid then stops, because each further job on this node would end in the same way


def worker_environment(accelerators: int | list[str] | None, pools: int, rank: int, workers: int) -> dict[str, str]:
    """Return the variables of a worker's job: its GPU, and its part of the cores.

    Args:
        accelerators: number of GPUs per node, or the name of each worker's GPU; 0 hides the node's GPUs; None means that
            the site does not say, which is only right on a node without GPUs.
        pools: number of worker pools on this machine.
        rank: the worker's number in its pool.
        workers: number of workers in its pool.

    Raises:
        MissingError: the node has fewer GPUs or fewer workers than the site says, or GPUs that it does not mention.
    """
    threads, visible = thread_environment(workers * pools), visible_gpus()
    if accelerators is None:
        if visible:
            raise MissingError(
                f"{_node(visible)}, which the site does not mention: set executor.available_accelerators to their number,"
                " or to 0 to use the CPU"
            )
        return threads
    names = visible[:accelerators] if isinstance(accelerators, int) else accelerators
    promised = accelerators if isinstance(accelerators, int) else len(accelerators)
    if not promised:
        return {**threads, "CUDA_VISIBLE_DEVICES": ""}
    if len(visible) > promised and not rank:
        print(f"{_node(visible)}; {len(visible) - promised} of them stay unused by this site", file=sys.stderr)
    if len(names) < promised or not set(names) <= set(visible):
        promised_gpus = f"{promised} GPUs" if isinstance(accelerators, int) else f"the GPUs {', '.join(names)}"
        raise MissingError(
            f"{_node(visible)}, but the site promises {promised_gpus}: correct executor.available_accelerators,"
            " or request more GPUs in the site's provider"
        )
    if workers != promised:
        raise MissingError(
            f"{_node(visible)} and only {workers} workers for the {promised} that the site promises: Parsl starts"
            " a worker per executor.cores_per_worker cores; lower it, or request more cores"
        )
    return {**threads, "CUDA_VISIBLE_DEVICES": names[rank]}


def _node(visible: list[str]) -> str:
    listed = f" ({', '.join(visible)})" if visible else ""
    return f"node {socket.gethostname()} has {len(visible)} visible GPUs{listed}"


def main() -> None:
    """Set the environment, and become the command."""
    accelerators, pools, *command = sys.argv[1:]
    rank, workers = int(os.environ["PARSL_WORKER_RANK"]), int(os.environ["PARSL_WORKER_COUNT"])
    try:
        environment = worker_environment(json.loads(accelerators), int(pools), rank, workers)
    except MissingError as error:
        print(f"hifi: {error}", file=sys.stderr)
        sys.exit(WRONG_DEVICES)
    os.execve(command[0], command, {**os.environ, **environment})


if __name__ == "__main__":
    main()
