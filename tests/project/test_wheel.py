"""The wheel of a release: everything that the program needs is in it, wherever it is installed."""

import os
import subprocess
import sys
import zipfile

import pytest
from project_files import ROOT

from hifi_cli import __version__

# As the installed command does, if it is the wheel's package that is imported and not the checkout's.
PROGRAM = "import hifi_cli; assert '/site/' in hifi_cli.__file__; from hifi_cli.cli.app import main; main()"
TRACKED = ("hifi_cli", "configs")
PILOT = ROOT / "results/laptop-pilot"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as a release is, without a network."""
    directory = tmp_path_factory.mktemp("wheel")
    command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", directory, ROOT]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    (file,) = directory.glob("*.whl")
    return file


@pytest.fixture
def installed(wheel, tmp_path):
    """Run `hifi` from an empty directory, with the wheel in the place of the checkout."""
    site = tmp_path / "site"
    empty = tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)

    def run(*words):
        environment = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
        environment.pop("HIFI_DATA_DIR", None)
        command = [sys.executable, "-c", PROGRAM, *map(str, words)]
        return subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, check=True
        ).stdout

    return run


@pytest.mark.slow
def test_the_wheel_has_the_version_and_every_file_of_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith(f"hifi_cli-{__version__}-")
    tracked = subprocess.run(
        ["git", "ls-files", *TRACKED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert tracked
    for name in tracked:
        # The YAML files lie inside the installed package.
        inside = name if name.startswith("hifi_cli/") else f"hifi_cli/{name}"
        assert inside in names


@pytest.mark.slow
def test_an_installed_wheel_lists_trains_and_shows_a_study_from_an_empty_folder(installed):
    assert "hifi-layerwise" in installed("ls", "methods")
    short = ["--method", "bitfit", "--seeds", "1", "--quiet", "epochs=1", "limit=64"]
    installed("train", "--protocol", "demo", "--task", "demo-acceptability", *short)
    assert "demo-acceptability/bitfit/seed1" in installed("ls", "runs")
    pilot = installed("table", "laptop", "--results-dir", PILOT, "--format", "md")
    assert pilot == (PILOT / "tables/laptop.md").read_text()
