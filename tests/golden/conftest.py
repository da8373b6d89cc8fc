"""What the tests of this directory share: the stored study, and whether this machine computes the golden files' bits."""

from pathlib import Path

import frozen
import pytest
import study
from commands import machine


@pytest.fixture(scope="session")
def study_cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory whose `study` holds the stored runs."""
    cwd = tmp_path_factory.mktemp("golden")
    study.unpack(cwd / "study")
    return cwd


@pytest.fixture(scope="session")
def demo_cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory for runs of the demo; the demo's data are written once."""
    return tmp_path_factory.mktemp("golden-demo")


@pytest.fixture(scope="session")
def same_machine() -> bool:
    """Whether processor and torch are those of the golden files: then every bit must be the same."""
    return machine() == frozen.read("machine.json")
