"""Two processes of one run (gloo): what they share, what each has of its own, and what survives a stop.

One pair of processes makes all the runs that these tests look at.
"""

import multiprocessing
import socket
import warnings
from pathlib import Path

import pytest
import torch
import two_processes
from finished_runs import load_arrays, read_json
from two_processes import config_of

from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.workspace import Workspace

pytestmark = pytest.mark.slow
# A fork has everything imported. On a machine with a GPU, autograd has threads, which a fork would lack.
START_METHOD = "forkserver" if torch.cuda.is_available() else "fork"


@pytest.fixture(scope="module")
def root(encoders, data, tmp_path_factory):
    """The results of two_processes.py."""
    folder = tmp_path_factory.mktemp("two-processes")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    context = multiprocessing.get_context(START_METHOD)
    arguments = (port, str(encoders["bert"]), str(data), folder)
    processes = [
        context.Process(target=two_processes.main, args=(rank, *arguments)) for rank in (0, 1)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of a fork beside threads
        for process in processes:
            process.start()
    for process in processes:
        process.join(240)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    return folder


@pytest.fixture
def facts(root):
    """What two_processes.py saw."""
    return read_json(root / "facts.json")


def test_each_process_has_dropout_noise_of_its_own(facts):
    first, second = facts["noise"]
    assert len(set(first) | set(second)) == len(first) + len(second) == 2 * 10


def test_a_resumed_run_equals_an_uninterrupted_one(facts):
    uninterrupted, resumed = facts["fingerprints"]
    assert uninterrupted == resumed


def test_evaluation_is_shared_and_gives_the_logits_of_one_process(facts, root, data, encoders):
    first, second = (sum(counts) for counts in facts["predicted"])
    assert (first, second) == (2 * 12, 2 * 9)  # 21 rows in batches of 4, after each of two epochs
    path = RunDirectory.of(config_of(encoders["bert"]), root / "whole").path
    assert evaluate(path, Workspace(root / "whole", data)).largest_difference == 0


def test_two_processes_give_the_scores_and_weights_of_one(root, data, encoders):
    """Within rounding; the last batch of an epoch has one example, and one process none."""
    config = config_of(encoders["bert"], "dropout=0.0")
    one = runs.run(config, Workspace(root / "one process", data))
    together, alone = (
        RunDirectory.of(config, root / name) for name in ("without dropout", "one process")
    )
    two = together.read_result()
    assert two.provenance["processes"] == 2
    assert dict(two.scores) == pytest.approx(dict(one.scores), abs=1e-6)
    weights = load_arrays(alone.delta)
    for name, value in load_arrays(together.delta).items():
        if not name.endswith(
            "key.bias"
        ):  # softmax cancels it: its gradient is rounding alone, which AdamW enlarges
            assert weights[name] == pytest.approx(value, abs=5e-5), name


def test_one_process_resumes_what_two_began(root, data, encoders, caplog):
    assert runs.run(
        config_of(encoders["bert"], seed=2), Workspace(root / "one process resumes", data)
    ).is_done
    assert "resuming at epoch 2 of 2" in caplog.text


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed on Linux only")
def test_no_thread_of_gloo_is_left_when_python_exits(root):
    threads = [name for rank in range(2) for name in read_json(root / f"threads-{rank}.json")]
    assert threads
    assert not [name for name in threads if "gloo" in name]
