"""The examples of docs/architecture.md as pasted, in a copy of the project: the suite passes with the method, and a CSV is a task."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hifi_processes import ROOT, environment

pytestmark = pytest.mark.slow

SUITE = (
    "methods/test_methods.py",
    "training/test_step_trace.py",
    "cli/test_ls.py",
    "project/test_docs.py",
    "runs/test_identity.py",
    "methods/test_method_properties.py",
)


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def not_needed(folder, names):
    """Directories beside those of the project: of results, environments and git."""
    needed = ("hifi_cli", "configs", "docs", "scripts", "tests")
    return [
        name
        for name in names
        if folder == str(ROOT) and name not in needed and Path(folder, name).is_dir()
    ]


@pytest.fixture
def clone(tmp_path):
    """A copy of the project."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT, folder, ignore=not_needed)
    return folder


STEPS = """
import sys
import pytest
from hifi_cli.cli.app import main
assert pytest.main(["-q", "-m", "not real and not exhaustive", "-p", "no:cacheprovider", *sys.argv[1:]]) == 0
sys.argv = ["hifi", "ls", "reviews.csv", "inputs=[title,body]", "label=stars", "validation=0.25"]
with open("configs/tasks/reviews.yaml", "w") as sys.stdout:
    main()
"""  # in one process, because most of the time is its start
TRAIN = "-m hifi_cli train --task reviews --method norm-tuning --protocol demo epochs=1 --format json".split()


def run(clone, *words):
    environ = environment(PYTHONPATH=str(clone), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    answer = subprocess.run(
        [sys.executable, *words],
        cwd=clone,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return answer.stdout


def test_the_examples_work_as_pasted(clone):
    (code,) = (
        block for block in blocks("architecture.md", "python") if "class NormTuning" in block
    )
    (content,) = (
        block
        for block in blocks("architecture.md", "yaml")
        if "implementation: norm_tuning" in block
    )
    entries = {
        "tests/support/parameter_formulas.py": ('"norm-tuning":', "FORMULAS = {\n"),
        "hifi_cli/config/draws.py": (
            '"norm_tuning":',
            "VERSIONS_OF_METHODS: dict[str, int | None] = {\n",
        ),
    }
    (clone / "hifi_cli/methods/norm_tuning.py").write_text(code)
    (clone / "configs/methods/norm-tuning.yaml").write_text(content)
    for file, (key, table) in entries.items():
        (entry,) = (block for block in blocks("architecture.md", "python") if key in block)
        text = (clone / file).read_text()
        assert text.count(table) == 1
        (clone / file).write_text(text.replace(table, table + entry))
    shutil.copy(clone / "configs/tasks/wnli.yaml", clone / "configs/tasks/my-task.yaml")
    (reviews,) = blocks("data.md", "csv")
    (clone / "reviews.csv").write_text(reviews)
    chosen = "norm-tuning or norm_tuning or every_method or shipped_tasks"
    tests = [f"tests/{name}" for name in SUITE]
    said = run(clone, "-c", STEPS, "-k", chosen, *tests)
    # two families, loss, seeds, step, files, YAML, draws, digests
    assert int(re.search(r"(\d+) passed", said)[1]) >= 8, said
    (trained,) = json.loads(run(clone, *TRAIN))
    assert (
        trained["result"]["n_examples"]["train"] == 3
        and Path(clone, trained["path"], "delta.safetensors").is_file()
    )
