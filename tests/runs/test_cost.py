"""The estimator of costs: from records to numbers, compared with numbers by hand and with what a run really wrote."""

import re
from pathlib import Path

import pytest
from run_folders import demo_folder
from synthetic_runs import write_run

from hifi_cli.config.sources import resolve
from hifi_cli.runs.cost import (
    MEASURED_HERE,
    Cost,
    CostEstimator,
    Machine,
    MeasuredStep,
    results_in,
)
from hifi_cli.runs.plan import Planner
from hifi_cli.runs.size import RunSize
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import task_spec

# Where the synthetic runs were trained.
HERE = Machine("CPU", 1)
ROWS = {"train": 160, "selection": 30, "reported": 30}


def setting(method="full-ft", task="rte", seed=1, *words):
    """The configuration of a run with three epochs in batches of 16."""
    words = ["epochs=3", "batch_size=16", *words]
    return resolve(
        task=task,
        method=method,
        backbone="bert-large",
        protocol="hifi",
        seed=seed,
        overrides=words,
    )


def finish(directory, config, **measured):
    """Write the record of a finished run of a configuration."""
    place = {"protocol": config.protocol, "backbone": config.backbone.name}
    content = config.model_dump(mode="json")
    measured = {"n_examples": ROWS, **measured}
    write_run(
        directory,
        config.method,
        config.task,
        config.seed,
        0.5,
        **place,
        variant=config.variant,
        epochs=config.epochs,
        config=content,
        **measured,
    )


def estimate(directory, config, machine=HERE, **measured):
    """The cost of a run by the records of a directory."""
    estimator = CostEstimator(results_in(directory), **measured)
    return estimator.cost(config, task_spec.load(config.task), machine)


def test_an_estimate_is_the_number_by_hand(tmp_path):
    for seed, seconds in ((1, 51.0), (2, 61.2), (3, 510.0)):
        finish(
            tmp_path,
            setting(seed=seed),
            time_s=seconds,
            peak_memory_bytes=seed * 1000,
            delta_bytes=1_000_000,
        )
    cost = estimate(tmp_path, setting("full-ft", "rte", 9, "epochs=2"))
    assert cost.runs == 1
    # Two epochs of ten batches.
    assert cost.steps.value == 20
    # A run of three epochs has 3 * 160 rows, and 3 * 30 of a third each: 510 in all. The median of the
    # runs is 61.2 s, 0.12 s a row. Two epochs have 340 of them.
    assert cost.seconds.value == pytest.approx(0.12 * 340)
    assert cost.memory.value == 3000
    # The label has 14 or 12 characters in quotes, twice; two logits; two epochs; two logged steps.
    line = 56 + 2 * (12 + 16) / 2 + 2 * 20
    assert cost.disk.value == pytest.approx(1_000_000 + 6_000 + 2 * 250 + 2 * 75 + 30 * line)
    assert dict(cost.seconds.rests_on) == {"finished runs of the same method and task": 1}


def test_a_run_that_computes_otherwise_or_elsewhere_says_nothing_about_seconds(tmp_path):
    finish(tmp_path, setting(), time_s=51.0)
    assert estimate(tmp_path, setting(seed=2)).seconds.is_known
    for machine in (Machine("CPU", 2), Machine("GPU")):
        cost = estimate(tmp_path, setting(seed=2), machine)
        assert not cost.seconds.is_known
        (reason,) = cost.seconds.unknown
        assert reason == (
            f"no measured step on {machine} (records are of CPU with 1 thread): train one run first"
        )
    for word in ("kernels=torch", "gradient_accumulation_steps=2", "precision=bf16"):
        assert not estimate(tmp_path, setting("full-ft", "rte", 1, word)).seconds.is_known
    # A record says in which precision it computed where its configuration says auto.
    assert estimate(tmp_path, setting("full-ft", "rte", 1, "precision=fp32")).seconds.is_known


def test_without_records_nothing_is_invented(tmp_path):
    cost = estimate(tmp_path / "none", setting())
    assert cost.steps.value == 3 * 156 and cost.steps.is_known
    lines = dict(cost.lines)
    assert lines["time"] == "unknown: no measured step on CPU with 1 thread: train one run first"
    assert lines["disk"] == "unknown: no finished run of full-ft with bert-large"
    assert lines["memory"] == "unknown: no finished run on CPU"


def test_records_that_cannot_be_used_are_named_once(tmp_path, caplog):
    for seed in (1, 2):
        finish(tmp_path, setting(seed=seed), time_s=51.0)
    assert len(results_in(tmp_path)) == 2
    assert not caplog.messages
    (damaged, _) = sorted(tmp_path.glob("runs/**/results.json"))
    damaged.write_text("{")
    assert len(results_in(tmp_path)) == 1
    (line,) = caplog.messages
    assert line == (
        "estimates leave out 1 record that cannot be read:"
        f" {damaged.parent.relative_to(tmp_path)} (hifi results check says why)"
    )


def test_a_packed_study_that_cannot_be_read_stops_no_estimate(tmp_path, caplog, monkeypatch):
    finish(tmp_path, setting(), time_s=51.0)
    (tmp_path / "runs.jsonl").write_text("{}")
    monkeypatch.setattr("hifi_cli.records.stored.MAX_LINES_BYTES", 1)
    assert results_in(tmp_path) == []
    (line,) = caplog.messages
    assert line.startswith(f"estimates use no records of {tmp_path}, which cannot be read: ")


def test_a_dry_run_and_a_grid_say_which_records_they_leave_out(hifi):
    finish("results", setting(seed=7), time_s=51.0)
    (damaged,) = Path("results").glob("runs/**/results.json")
    damaged.write_text(damaged.read_text().replace('"status"', '"state"'))
    said = (
        f"estimates leave out 1 record that cannot be read: {damaged.parent.relative_to('results')}"
    )
    words = "--protocol hifi --backbone bert-large"
    for command in (
        f"train --task rte --method full-ft --seeds 1,2 --dry-run {words}",
        f"grid hifi-1 --tasks rte --methods full-ft --seeds 1 --print {words}",
    ):
        answer = hifi(command)
        assert answer.code == 0, answer.err
        assert answer.err.count("estimates leave out") == 1
        assert said in answer.err.replace("\n", " ")


def test_a_run_that_diverged_or_was_trained_by_several_processes_says_nothing(tmp_path):
    finish(tmp_path, setting(), time_s=None, status="diverged")
    process = {"device": "CPU", "device_type": "cpu", "precision": "fp32", "threads": 1}
    process |= {"processes": 2, "first_step": 1, "last_step": 30, "seconds": 51.0}
    finish(tmp_path, setting(seed=2), time_s=51.0, processes=[process])
    assert not estimate(tmp_path, setting(seed=3)).seconds.is_known


def test_a_task_that_only_others_trained_is_scaled(tmp_path):
    """Full-FT has RTE, LoRA has RTE and MRPC: a row of MRPC takes twice as long there."""
    finish(tmp_path, setting("full-ft"), time_s=153.0)
    finish(tmp_path, setting("lora"), time_s=51.0)
    finish(tmp_path, setting("lora", "mrpc"), time_s=102.0)
    cost = estimate(tmp_path, setting("full-ft", "mrpc"))
    assert cost.seconds.value == pytest.approx(0.3 * 2 * 510)
    assert [*cost.seconds.rests_on] == ["the method on other tasks, scaled as other methods"]
    # BitFit was trained nowhere.
    cost = estimate(tmp_path, setting("bitfit", "rte"))
    assert cost.seconds.value == pytest.approx(153.0)
    assert [*cost.seconds.rests_on] == ["runs of full-ft on the task, the slowest method there"]
    # Nobody has trained STS-B, nor anything from which it could be scaled.
    assert not estimate(tmp_path, setting("full-ft", "stsb")).seconds.is_known


def test_other_batches_are_taken_by_their_rows_where_there_are_no_equal_ones(tmp_path):
    finish(tmp_path, setting("full-ft", "rte", 1, "batch_size=32"), time_s=51.0)
    other = estimate(tmp_path, setting())
    assert other.seconds.value == pytest.approx(51.0)
    assert [*other.seconds.rests_on] == ["the same method and task with other batches or lengths"]
    finish(tmp_path, setting(seed=2), time_s=102.0)
    assert estimate(tmp_path, setting()).seconds.value == pytest.approx(102.0)


def test_the_memory_that_another_run_may_have_caused_does_not_count(tmp_path):
    finish(tmp_path, setting(), peak_memory_bytes=7_000, memory_is_own=False)
    finish(tmp_path, setting(seed=2), peak_memory_bytes=5_000, memory_is_own=True)
    assert estimate(tmp_path, setting(seed=3)).memory.value == 5_000


def test_a_measured_step_counts_instead_of_the_records_times(tmp_path):
    finish(tmp_path, setting("lora"), time_s=51.0)
    finish(tmp_path, setting("lora", "mrpc"), time_s=102.0)
    measured = {"full-ft": MeasuredStep("rte", 16, 1.6)}
    cost = estimate(tmp_path, setting("full-ft", "mrpc"), measured=measured)
    assert cost.seconds.value == pytest.approx(1.6 / 16 * 2 * 510)
    assert [*cost.seconds.rests_on] == [MEASURED_HERE]


@pytest.mark.parametrize(
    "words",
    [
        ["epochs=2", "batch_size=32"],
        ["limit=100", "batch_size=8", "epochs=1"],
        ["selection=holdout", "holdout=0.5", "epochs=1"],
        ["shots=16", "epochs=3"],
    ],
)
def test_steps_are_those_of_the_dry_run(make, workspace, words):
    config = make("full-ft", *words)
    planner = Planner(Workspace(workspace.results_dir))
    told = dict(planner.plan(config).lines)["steps"]
    size = RunSize.of(config, task_spec.load("rte"), task_spec.load("rte").rows)
    assert int(told.split()[0].replace(",", "")) == size.steps


def test_a_few_shot_run_and_a_holdout_have_these_rows():
    task = task_spec.load("rte")
    rows = {"train": 1000, "validation": 200}
    few = RunSize.of(setting("full-ft", "rte", 1, "shots=16"), task, rows)
    assert (few.train, few.selection, few.reported, few.batch) == (32, 32, 200, 32)
    # The dev rows select the epoch; the reported ones are measured once.
    assert few.evaluations == 1
    held = RunSize.of(setting("full-ft", "rte", 1, "selection=holdout", "holdout=0.3"), task, rows)
    assert (held.train, held.selection, held.reported) == (700, 300, 200)
    assert RunSize.of(setting(), task, {}) is None


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise"])
def test_the_disk_is_what_a_run_really_takes(hifi, request, method):
    """Before anything is trained; afterwards the time of another seed is known."""
    if request.config.getoption("--no-training"):
        pytest.skip("it trains")
    line = f"train --protocol demo --task demo-entailment --method {method} epochs=2"
    config = resolve(
        task="demo-entailment",
        method=method,
        backbone="demo",
        protocol="demo",
        overrides=["epochs=2"],
    )
    folder = demo_folder(method=method)
    workspace = Workspace(folder.parents[5])
    task = task_spec.load("demo-entailment")
    rows = {split: len(rows) for split, rows in workspace.data(task).splits.items()}
    estimated = Planner(workspace).costs.cost(config, task, HERE, rows).disk
    before = hifi(f"{line} --dry-run")
    assert (
        "no measured step on" in before.out
        and "by the numbers that the method stores" in before.out
    )
    answer = hifi(line)
    assert answer.code == 0, answer.err
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert estimated.value == pytest.approx(written, rel=0.03)
    after = hifi(f"{line} --seeds 2 --dry-run").out
    assert re.search(
        r"# time       about 0:00:\d\d at .* by finished runs of the same method", after
    )


def test_several_runs_have_the_sum_and_say_what_is_unknown(tmp_path):
    finish(tmp_path, setting(), time_s=51.0, peak_memory_bytes=5_000_000, delta_bytes=1_000_000)
    costs = [estimate(tmp_path, setting(seed=seed)) for seed in (2, 3)]
    costs.append(estimate(tmp_path, setting("full-ft", "stsb")))
    total = Cost.of_all(costs)
    assert total.runs == 3
    assert total.seconds.value == pytest.approx(102.0)
    assert total.memory.value == 5_000_000
    assert dict(total.lines)["time"] == (
        "about 0:01:42, by finished runs of the same method and task; unknown for 1 run: no measured"
        " step on CPU with 1 thread: train one run first"
    )
