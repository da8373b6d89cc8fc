"""Libraries that a training run does not need are not imported by it: each costs up to seconds in every process."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from project_files import ROOT

HEAVY = ["datasets", "evaluate", "matplotlib", "pandas", "parsl", "peft", "pyarrow", "sklearn"]
PRINT_MODULES = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules))))
from hifi_cli.cli.app import main
main()
"""
# Older transformers import some of them themselves.
PRINT_MODULES_OF_TRANSFORMERS = """
import json, sys
from transformers.models.bert import modeling_bert
print(json.dumps(sorted(sys.modules)))
"""
TRAIN = "train --protocol demo --method hifi-layerwise --quiet limit=8 epochs=1 scoring.samples=4"


@pytest.mark.slow
def test_a_run_imports_no_heavy_library(tmp_path):
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES, *shlex.split(TRAIN)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = json.loads(ended.stdout.splitlines()[-1])
    assert "torch" in imported
    found = {library for library in HEAVY if library in imported}
    if found:
        words = [sys.executable, "-c", PRINT_MODULES_OF_TRANSFORMERS]
        found -= {*json.loads(subprocess.check_output(words, text=True).splitlines()[-1])}
    assert found == set()
