"""Every command in README runs: those of the demo for real, those on other data and weights as far as --dry-run."""

import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = [block for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE) if not kind]
LINES = [line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]


def test_make_commands_are_there():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [line.split()[1] for line in LINES if line.startswith("make ")]
    assert named[:2] == ["demo", "test"]
    assert set(named) <= set(targets)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_commands_run(hifi):
    commands = [shlex.split(line)[1:] for line in LINES if line.startswith("hifi ")]
    assert len(commands) > 10
    left: list[str] = []
    demo = False
    for words in commands:
        demo = demo or "demo" in words
        if words[0] in ("train", "score", "select") and "demo" not in words:
            answer = hifi(*words, *(["--dry-run"] if "--dry-run" not in words else []))
            assert "learning_rate:" in answer.out
        elif words[0] in ("ls", "cp") or "--print" in words or (demo and words[0] != "grid"):
            answer = hifi(*words, *(["epochs=1", "scoring.samples=20"] if words[0] == "train" else []))
        else:
            left.append(words[0])
            continue
        assert answer.code == 0, (words, answer.err)
    # what stands where nothing was trained yet, measures for minutes, or trains the whole demo, runs in tests of its own
    assert sorted(left) == ["compare", "figure", "grid", "report", "table", "table", "table", "table"]


def test_the_figures_on_speed_are_those_that_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "bench")
    import report

    for name in ("minilm", "bert-base"):
        found = json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())
        assert report.epochs(found) in README
    assert report.more(json.loads((ROOT / "results" / "bench" / "minilm.json").read_text()), bars=False) in README
