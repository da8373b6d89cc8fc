"""Run the commands of docs/transcript.md in a new clone and write the page: python scripts/make_transcript.py.

It takes a few minutes on one CPU core. The commands use the environment of the Python that runs this script, without network.
`STEPS` is the page: a text, or a command line whose output follows it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "transcript.md", ROOT / "docs" / "transcript.png"
COLUMNS = 118
FIRST, LAST = 12, 8  # shown lines of a longer output
TRAINED = "--protocol demo --task demo-entailment"
RUN = "results/runs/demo/demo/demo-entailment/full-ft/seed1"


@dataclass(frozen=True)
class Command:
    """A command line of the page, and the commands that follow in the same block."""

    line: str


Step = str | Command
STEPS: Sequence[Step] = (
    """# Transcript: from clone to table and figure

[README](../README.md) · [reproduce the papers](reproduce.md)

`python scripts/make_transcript.py` ran these commands and wrote this page; the middle of a long output is left out. The
environment was installed as the README says. The encoder and the data are the demo's: the scores say nothing about English.

## Clone, plan, train
""",
    Command("git clone --quiet $URL hifi"),
    Command("cd hifi"),
    Command(f"hifi train {TRAINED} --method hifi-layerwise --dry-run"),
    "The last lines of `--dry-run` say what is missing to start. First the heads that HiFi tunes, then four runs of one\n"
    "epoch (the protocol has six):\n",
    Command(f"hifi score {TRAINED}"),
    Command(f"hifi select {TRAINED}"),
    Command(f"hifi train {TRAINED} --method full-ft,hifi-layerwise --seeds 1,2 epochs=1"),
    Command(f"hifi eval {RUN}"),
    "## The table for the paper\n",
    Command("hifi table"),
    Command("hifi compare hifi-layerwise full-ft"),
    Command("hifi table --format tex --out table.tex"),
    Command("cat table.tex"),
    "## The figure for the paper\n",
    Command("hifi figure ranking --protocol demo --out ranking.pdf"),
    Command("hifi figure results/figures/ranking-demo.csv --out ranking.png"),
    "![What decides which heads are chosen, on the demo](transcript.png)\n",
    "## What wrong input prints\n\nA method that does not exist, data that are not there, a directory without runs:\n",
    Command(f"hifi train {TRAINED} --method hifi"),
    Command("hifi train --task rte --method bitfit --backbone demo --data-dir glue_data"),
    Command("hifi train --task rte --method bitfit --backbone demo --data-dir glue_data --dry-run"),
    Command("hifi table --results-dir nothing-here"),
    "A file to predict with other columns than the task's:\n",
    Command(r"printf 'premise\thypothesis\nA dog sleeps.\tAn animal sleeps.\n' > pairs.tsv"),
    Command(f"hifi predict {RUN} pairs.tsv"),
    "A run whose data have been moved away:\n",
    Command("mkdir glue && cp -r results/data/*/Entailment glue/RTE"),
    Command("hifi train --protocol demo --task rte --method linear-probing --data-dir glue epochs=1"),
    Command("mv glue elsewhere"),
    Command("hifi eval results/runs/demo/demo/rte/linear-probing/seed1"),
    Command("hifi eval results/runs/demo/demo/rte/linear-probing/seed1 --data-dir elsewhere"),
)


def commands() -> list[str]:
    """Return the command lines of the page."""
    return [step.line for step in STEPS if isinstance(step, Command)]


def page(outputs: Sequence[str]) -> str:
    """Return the page with the output of every command, in order."""
    remaining, lines = list(outputs), []
    in_block = False
    for step in STEPS:
        if isinstance(step, Command) != in_block:
            lines.append("```console" if not in_block else "```\n")
            in_block = not in_block
        lines.append(f"$ {step.line}\n{remaining.pop(0)}".rstrip("\n") if isinstance(step, Command) else step)
    return "\n".join([*lines, "```"] if in_block else lines) + "\n"


def outputs_of(text: str) -> list[str]:
    """Return the outputs that a page shows, one per command."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [part.partition("\n")[2] for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]


def shortened(output: str) -> str:
    """Leave out the middle of a long output, and spaces at the ends of lines."""
    lines = [line.rstrip() for line in output.splitlines()]
    left_out = len(lines) - FIRST - LAST
    if left_out > 1:
        lines[FIRST:-LAST] = [f"[{left_out} more lines]"]
    return "\n".join([*lines, ""]) if lines else ""


def run(line: str, directory: Path, environment: dict[str, str]) -> str:
    """Run a command line, and return what a terminal shows, with its exit code where it is not 0."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    code = f"[exit code {done.returncode}]\n" if done.returncode else ""
    return shortened(done.stdout) + code


def main() -> None:
    """Run all commands in a temporary directory and write the page and its picture."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name).resolve()
        directory = home
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(home / "hifi"),
            "URL": str(ROOT),
            "COLUMNS": str(COLUMNS),
            "HF_HUB_OFFLINE": "1",
        }
        outputs = []
        for line in commands():
            print(f"$ {line}", flush=True)
            if line.startswith("cd "):
                directory /= line.split()[1]
                outputs.append("")
                continue
            outputs.append(run(line, directory, environment).replace(str(home), "~").replace(str(ROOT), "$URL"))
            print(outputs[-1], end="", flush=True)
        shutil.copy(directory / "ranking.png", PICTURE)
    PAGE.write_text(page(outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
