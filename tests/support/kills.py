"""Kill commands of `hifi` at seeded moments, start them again, and compare what they leave with undisturbed ones.

Every command runs as a real process. It is killed or stopped a few times, each time after a random
part of the time that it takes undisturbed. Then it runs to its end. The files that it leaves must be
those of a command that nothing disturbed, byte for byte, but for times, memory and command lines.

    python tests/support/kills.py --kills 200 --seed 1
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from run_folders import demo_folder

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "results/laptop-pilot"  # packed, of more than 300 runs
MEASURED = {
    "time_s",
    "wall_s",
    "peak_memory_bytes",
    "memory_is_own",
    "provenance",
    "processes",
}
# SIGKILL as often as all others together: nothing can be done about it when it comes
SIGNALS = [
    *[signal.SIGKILL] * 5,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
]
KILLS_PER_SEQUENCE = 4
TIMEOUT_SECONDS = 300
# Checkpoints are saved every few steps instead of every minute, and nothing else is changed
OFTEN = """
from hifi_cli.cli import app
load = app.load
def load_and_save_often(name):
    command = load(name)
    from hifi_cli.training import checkpoint
    assert checkpoint._MIN_SECONDS and checkpoint._MIN_RATIO
    checkpoint._MIN_SECONDS, checkpoint._MIN_RATIO = 0.1, 0
    return command
app.load = load_and_save_often
app.main()
"""
DEMO = ["--protocol", "demo", "--backbone", "demo"]
SHORT = ["limit=160", "epochs=2"]
RUNS = [str(demo_folder(""))]
GRID = {
    "protocol": "demo",
    "backbone": "demo",
    "tasks": ["demo-entailment"],
    "methods": ["bitfit", "full-ft"],
    "seeds": [1, 2],
}


@dataclass
class Command:
    """A command to disturb.

    Attributes:
        name: what it is called in the count.
        words: makes the arguments, from the directory that the command writes to.
        often: whether checkpoints are saved often.
    """

    name: str
    words: Callable[[Path], list[str]]
    often: bool = False


@dataclass
class Outcome:
    """What became of the kills of a command.

    Attributes:
        kills: signals that met a living process, by name.
        sequences: numbers of kills, each followed by an undisturbed start.
        problems: what was not as it must be, in words.
    """

    kills: Counter[str] = field(default_factory=Counter)
    sequences: int = 0
    problems: list[str] = field(default_factory=list)


def commands(shared: Path) -> list[Command]:
    """Every command that is disturbed; `shared` is what `prepare` has written."""
    train = ["train", *DEMO, "--task", "demo-entailment", "--seeds", "1", *SHORT]
    two_tasks = ["--task", "demo-entailment,demo-acceptability"]
    run = str(shared / "trained" / RUNS[0])
    return [
        Command(
            "train",
            lambda to: [*train, "--method", "full-ft,hifi-layerwise", "--results-dir", str(to)],
            often=True,
        ),
        Command(
            "grid",
            lambda to: [
                "grid",
                str(shared / "kills.yaml"),
                "--jobs",
                "2",
                *SHORT,
                "--results-dir",
                str(to),
            ],
        ),
        Command("score", lambda to: ["score", *DEMO, *two_tasks, "--results-dir", str(to)]),
        Command("merge", lambda to: ["results", "merge", str(STUDY), "--results-dir", str(to)]),
        Command("pack", lambda to: ["results", "pack", str(shared / "merged"), "--out", str(to)]),
        Command("export", lambda to: ["export", run, "--to", str(to)]),
    ]


def prepare(shared: Path) -> None:
    """Write a grid, train a run and unpack a study."""
    (shared / "kills.yaml").write_text(yaml.safe_dump(GRID))
    words = ["train", *DEMO, "--task", "demo-entailment", "--method", "full-ft", "--seeds", "1"]
    run_to_end([*words, *SHORT, "--results-dir", str(shared / "trained")])
    run_to_end(["results", "merge", str(STUDY), "--results-dir", str(shared / "merged")])


def start(words: list[str], *, often: bool = False) -> subprocess.Popen[str]:
    """Start a command with one thread; it hears every signal, however this process was started."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    program = ["-c", OFTEN] if often else ["-m", "hifi_cli"]
    return subprocess.Popen(
        [sys.executable, *program, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_every_signal,
    )


def _hear_every_signal() -> None:
    for number in {*SIGNALS} - {signal.SIGKILL}:
        signal.signal(number, signal.SIG_DFL)


def run_to_end(words: list[str], *, often: bool = False) -> float:
    """Run a command that must succeed; return how many seconds it took."""
    begin = time.monotonic()
    process = start(words, often=often)
    said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}: {said[-500:]}")
    return time.monotonic() - begin


def contents(directory: Path) -> dict[str, object]:
    """What a command has written, by path: bytes, and JSON without measurements; no locks and logs."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_file() or path.name.endswith(".lock") or name.startswith("grids/"):
            continue
        found[name] = path.read_bytes()
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            is_record = isinstance(content, dict)
            if is_record:
                content = {key: value for key, value in content.items() if key not in MEASURED}
            found[name] = content
    return found


def disturb(
    command: Command, seconds: float, expected: dict[str, object], root: Path, seed: str, kills: int
) -> Outcome:
    """Kill a command some times, let it end, and compare.

    Args:
        seconds: how long the command takes undisturbed.
        expected: contents of what it leaves undisturbed.
        root: an empty directory.
        seed: decides signals and moments.
    """
    chance = random.Random(seed)
    outcome = Outcome(sequences=1)
    to = root / "out"
    for _ in range(kills):
        process = start(command.words(to), often=command.often)
        number = chance.choice(SIGNALS)
        time.sleep(chance.uniform(0.05, 1.0) * seconds)
        if process.poll() is None:
            process.send_signal(number)
            outcome.kills[number.name] += 1
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        # It may end before the signal reaches it, or start too late to listen. A second pack or
        # export is refused because the first one was done
        allowed = {0, -number, 128 + number}
        is_done = process.returncode == 2 and "exists" in said
        if process.returncode not in allowed and not is_done:
            outcome.problems.append(
                f"{seed}: {number.name} ended with {process.returncode}: {said[-300:]}"
            )
        # Python itself answers a Ctrl-C that comes before `main` has begun
        is_early = number == signal.SIGINT and process.returncode == -number
        if ("Traceback" in said and not is_early) or "please report" in said:
            outcome.problems.append(f"{seed}: {number.name}: {said[-500:]}")
        if is_done:
            break
    if command.name in ("pack", "export") and to.exists():
        pass  # whole, as the comparison will tell
    else:
        process = start(command.words(to))
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        if process.returncode != 0:
            outcome.problems.append(
                f"{seed}: the last start ended with {process.returncode}: {said[-500:]}"
            )
    left = [*root.rglob("*.hifi-part"), *root.rglob("last.pt")]
    outcome.problems += [f"{seed}: left over: {path}" for path in left]
    actual = contents(to) if to.exists() else {}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            outcome.problems.append(f"{seed}: differs: {name}")
    return outcome


def disturb_all(
    root: Path, *, kills: int, seed: int, names: list[str] | None = None
) -> dict[str, Outcome]:
    """Disturb every command in turn until so many signals have met a living process."""
    shared = root / "shared"
    shared.mkdir(parents=True)
    prepare(shared)
    chosen = [command for command in commands(shared) if not names or command.name in names]
    undisturbed = {}
    for command in chosen:
        to = root / "undisturbed" / command.name / "out"
        to.parent.mkdir(parents=True)
        seconds = run_to_end(command.words(to))
        undisturbed[command.name] = (seconds, contents(to))
    outcomes = {command.name: Outcome() for command in chosen}
    number = 0
    while sum(outcome.kills.total() for outcome in outcomes.values()) < kills:
        number += 1
        for command in chosen:
            place = root / f"{command.name}-{number}"
            place.mkdir()
            label = f"{command.name} {seed} {number}"
            seconds, expected = undisturbed[command.name]
            outcome = disturb(command, seconds, expected, place, label, KILLS_PER_SEQUENCE)
            total = outcomes[command.name]
            total.kills += outcome.kills
            total.sequences += 1
            total.problems += outcome.problems
            if not outcome.problems:
                shutil.rmtree(place)
            print(label, dict(outcome.kills), outcome.problems or "as undisturbed", flush=True)
    return outcomes


def main() -> None:
    """Disturb every command, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = disturb_all(
            Path(directory), kills=arguments.kills, seed=arguments.seed, names=arguments.commands
        )
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome.kills.total()} kills in {outcome.sequences} sequences,", end=" ")
        print(f"{len(outcome.problems)} problems;", dict(outcome.kills))
    sys.exit(any(outcome.problems for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
