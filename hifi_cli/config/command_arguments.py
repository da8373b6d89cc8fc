"""The arguments of command lines that the program prints or starts."""

from collections.abc import Iterable


def train_arguments(
    tasks: Iterable[str], methods: Iterable[str], backbone: str, protocol: str, seeds: Iterable[int], *, force: bool = False
) -> list[str]:
    """Return the arguments of `hifi` that train every combination of tasks, methods and seeds."""
    arguments = ["train", "--task", ",".join(tasks), "--method", ",".join(methods)]
    arguments += ["--backbone", backbone, "--protocol", protocol, "--seeds", ",".join(map(str, seeds))]
    return [*arguments, *(["--force"] if force else [])]
