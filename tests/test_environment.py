"""What hifi sets in a process: nothing when it is imported, threads and memory when a command starts."""

import subprocess
import sys

import pytest

from hifi_cli import environment


def printed_by(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_importing_the_library_changes_nothing_in_the_process():
    code = """
import gc, os, sys
before = dict(os.environ)
import hifi_cli
from hifi_cli import read_results, select_heads
print(dict(os.environ) == before, gc.isenabled(), "torch" in sys.modules)
"""
    assert printed_by(code) == ["True", "True", "True"]


def test_apply_sets_what_the_command_sets_and_keeps_what_the_user_set():
    code = """
import os
for name in ("GOMP_SPINCOUNT", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
    os.environ.pop(name, None)
os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
import hifi_cli.environment
hifi_cli.environment.apply()
print(os.environ["OMP_WAIT_POLICY"], os.environ.get("GOMP_SPINCOUNT"), os.environ["PYTORCH_ALLOC_CONF"])
del os.environ["OMP_WAIT_POLICY"]
hifi_cli.environment.apply()
print(os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"])
"""
    expected = ["ACTIVE", "None", "expandable_segments:True", "PASSIVE", "4000"]
    assert printed_by(code) == expected


def test_apply_warns_where_torch_has_read_its_settings_already():
    with pytest.warns(UserWarning, match="after torch was imported"):
        environment.apply()


def test_a_command_applies_it():
    """Before torch is imported, which reads it."""
    code = """
import os, sys
for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
    os.environ.pop(name, None)
sys.argv = ["hifi", "ls", "tasks"]
from hifi_cli.cli.app import main
try:
    main()
except SystemExit:
    pass
print(os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules)
"""
    assert printed_by(code)[-2:] == ["4000", "False"]


def test_windows_is_refused_in_one_line():
    """As on Windows: a platform of that name, no module fcntl, and no SIGHUP."""
    code = """
import signal
import sys

sys.platform = "win32"
sys.modules["fcntl"] = None
del signal.SIGHUP
sys.argv = ["hifi", "ls"]
from hifi_cli.cli.app import main

main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert line.startswith("hifi: Windows is not supported")
    assert ended.stdout == ""
