"""Fixtures that many test files use: tiny encoders, small data, configurations of tiny runs, the command line.

What imports torch is imported by the fixtures: the first process of pytest-xdist reads this file, and runs no test.
"""

import copy
import gc
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from command_words import words_of
from project_files import load_script
from run_folders import run_folder
from tiny_inputs import (
    FAMILIES,
    QUICK,
    QUICK_WORDS,
    TINY,
    write_data,
    write_encoder,
    write_task_kinds_data,
)

from hifi_cli.config.run_config import BackboneConfig, RunConfig
from hifi_cli.config.sources import resolve

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # deterministic runs need it before CUDA starts
for capacity in (
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "LRU_CACHE_CAPACITY",
):  # the tests' runs have the same few shapes
    os.environ.setdefault(capacity, "1024")


# Whether the test of now has begun to train
TRAINS = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-training",
        action="store_true",
        help="end a test, as skipped, where it would train (make test-fast)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Importing all tests makes a million objects that stay: to search them for garbage took a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # A run collects what it left by itself. Between runs, a search after every 700 new objects
        # finds nothing, and all of them take as long as fifty tests.
        gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _no_training(request: pytest.FixtureRequest):
    """No list says which tests train: each that makes a trainer ends there, where `--no-training` is given."""
    if not request.config.getoption("--no-training"):
        yield
        return
    from hifi_cli.training.loop import Trainer

    def end(*arguments: object, **settings: object) -> None:
        request.config.stash[TRAINS] = True
        pytest.skip("it trains")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__init__", end)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A command has an exit code for every exception, and a test may expect one: neither hides the skip."""
    item.config.stash[TRAINS] = False
    try:
        return (yield)
    finally:
        if item.config.stash[TRAINS]:
            pytest.skip("it trains")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As many tests run at a time as there are cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _encoders_are_read_once():
    """Each command gets a copy of an encoder that another test has loaded; changed files are read anew.

    A thousand commands load one of three tiny encoders, in four times the time that a copy takes.
    """
    from hifi_cli.models.encoder_files import resolve_source
    from hifi_cli.models.pretrained import Pretrained
    from hifi_cli.runs import workspace

    load_backbone = workspace.load_backbone
    loaded: dict[str, Pretrained] = {}

    def load_or_copy(backbone: BackboneConfig, **how: object) -> Pretrained:
        directory = Path(resolve_source(backbone)[0])
        if not directory.is_dir():
            return load_backbone(backbone, **how)
        # Nothing can set the time of a file's change back, as it can that of its content.
        files = [
            (file.name, file.stat().st_size, file.stat().st_ctime_ns)
            for file in sorted(directory.iterdir())
        ]
        key = repr((backbone, how, files))
        if key not in loaded:
            loaded[key] = load_backbone(backbone, **how)
        return copy.deepcopy(loaded[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "load_backbone", load_or_copy)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """No test cuts the power, which is what files are flushed against; `test_writing.py` tests that they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """Where the commands of one test send the log is unknown to the next test."""
    log_as_in_a_new_process()


def log_as_in_a_new_process() -> None:
    """Give the log back to pytest; to set a level makes Python forget those of a thousand loggers."""
    log = logging.getLogger("hifi")
    log.propagate = True
    if log.level != logging.INFO:
        log.setLevel(logging.INFO)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny encoder of each family."""
    root = tmp_path_factory.mktemp("encoders")
    return {family: write_encoder(root / f"tiny-{family}", family) for family in FAMILIES}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def task_kinds_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of tasks that are not plain classification: choices, answers in a text, groups of rows, two validation sets."""
    return write_task_kinds_data(tmp_path_factory.mktemp("kinds"))


@pytest.fixture
def make(encoders: dict[str, Path]) -> Callable[..., RunConfig]:
    """Configurations of tiny runs."""

    def build(
        method: str = "full-ft",
        *overrides: str,
        family: str = "bert",
        task: str = "rte",
        seed: int = 1,
        backbone: Path | None = None,
    ) -> RunConfig:
        directory, changed = (
            str(backbone or encoders[family]),
            [*QUICK, *TINY.get(method, []), *overrides],
        )
        return resolve(
            task=task,
            method=method,
            backbone=directory,
            protocol="hifi",
            seed=seed,
            overrides=changed,
        )

    return build


@pytest.fixture
def workspace(tmp_path, data):
    """A results directory of the test's own."""
    from hifi_cli.runs.workspace import Workspace

    return Workspace(tmp_path / "results", data)


@pytest.fixture(scope="session")
def finished_results(
    encoders: dict[str, Path], data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The results directory of a finished run of a method on the tiny BERT and RTE; each method is trained once."""
    from hifi_cli.runs import run as runs
    from hifi_cli.runs.workspace import Workspace

    @cache
    def train(method: str) -> Path:
        results_dir = tmp_path_factory.mktemp("finished") / "results"
        config = resolve(
            task="rte",
            method=method,
            backbone=str(encoders["bert"]),
            protocol="hifi",
            overrides=QUICK,
        )
        runs.run(config, Workspace(results_dir, data))
        return results_dir

    return train


@pytest.fixture
def finish_run(finished_results: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Puts a finished run into the test's `results`, as `tiny("train", "--method", METHOD)` would, and gives its directory."""

    def copy(method: str = "full-ft") -> Path:
        shutil.copytree(finished_results(method), tmp_path / "results", dirs_exist_ok=True)
        return run_folder(tmp_path / "results", method=method)

    return copy


@pytest.fixture
def ask(encoders, workspace):
    """Requests for the numbers of a figure, on the tiny BERT and data."""
    from hifi_cli.config.figure_spec import FigureSpec
    from hifi_cli.figures.figure import FigureRequest

    def build(
        kind,
        settings=None,
        methods=("hifi-layerwise",),
        seeds=(1,),
        *words,
        train=False,
        task="rte",
    ):
        spec = FigureSpec(
            description="d",
            kind=kind,
            tasks=[task],
            methods=list(methods),
            backbone=str(encoders["bert"]),
            seeds=list(seeds),
            settings=settings or {},
        )
        return FigureRequest(spec, workspace, (*QUICK, *words), train)

    return build


@dataclass
class CommandResult:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def small_demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demo data with fewer rows."""
    script = load_script("make_demo_data")
    script.TRAIN_ROWS, script.DEV_ROWS = 60, 30
    directory = tmp_path_factory.mktemp("demo")
    script.write(directory)
    # Files that have just been written are read, and warned of, by every command.
    an_hour_ago = time.time() - 3600
    for path in directory.rglob("*.tsv"):
        os.utime(path, (an_hour_ago, an_hour_ago))
    return directory


@pytest.fixture
def small_demo(small_demo_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo data have fewer rows."""
    monkeypatch.setattr("hifi_cli.tasks.sources.demo_directory", lambda: small_demo_directory)


@pytest.fixture
def hifi(request, monkeypatch, capsys, tmp_path, small_demo):
    """Runs the command line in this process, in an empty directory; the demo data have fewer rows.

    The first argument is one word or a line of words, as in a shell; each further argument is one word.
    """
    from hifi_cli.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # no test may reach for the network
    if not request.node.get_closest_marker("real"):
        monkeypatch.delenv("HIFI_DATA_DIR", raising=False)

    def run(*words: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["hifi", *words_of(*words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        # As before the command, for tests that read the log
        log_as_in_a_new_process()
        return CommandResult(int(stopped.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def tiny(
    hifi: Callable[..., CommandResult], encoders: dict[str, Path], data: Path
) -> Callable[..., CommandResult]:
    """`hifi COMMAND` on the tiny BERT and data; its arguments are those of the fixture `hifi`."""

    def run(line: str, *more: object) -> CommandResult:
        command, *words = words_of(line, *more)
        quick = QUICK_WORDS if command == "train" else []
        where = f"--task rte --backbone {encoders['bert']} --data-dir {data}"
        return hifi(f"{command} {where}", *words, *quick)

    return run


@pytest.fixture
def users_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's table over runs of every sort, in an empty directory."""
    from synthetic_runs import write_users_table

    monkeypatch.chdir(tmp_path)
    return write_users_table()
