"""Grids: which runs a table needs, how they are shared out, what becomes of those that fail, and what a search chooses."""

import shlex
import time
from concurrent.futures import Future
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from finished_runs import read_json, truncate
from synthetic_grids import cells, write_cell

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_display, grid_spec, jobs, scheduler, search
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import GridProgress, JobOutcome, Scheduler
from hifi_cli.reports import table_spec
from hifi_cli.results.directory import RunState, RunStatus, status
from hifi_cli.results.record import EpochMetrics

TABLES = [name for name in registry.names("tables") if table_spec.load(name).kind == "scores"]


@cache
def cells_of_grid(name):
    return tuple(cells(name=name))


@pytest.mark.parametrize("name", TABLES)
def test_every_papers_table_has_a_grid_with_exactly_its_runs(name):
    table = table_spec.load(name)
    all_cells = {
        (cell.method, cell.task, cell.seed, cell.config.protocol, cell.config.backbone.name) for cell in cells_of_grid(name)
    }
    methods = [method for row in table.rows for method in (row.best_of or [row.method]) if method]
    tasks = {column.task for column in table.columns}
    assert all_cells == {(m, t, s, table.protocol, table.backbone) for m, t, s in product(methods, tasks, table.seeds)}
    assert not any(cell.config.variant for cell in cells_of_grid(name))  # they are the runs that the table reads


def test_a_process_that_closes_counts_as_done_only(tmp_path):
    """Its cells are all there, so that what is done, running, failed and left are all the cells there are."""
    first, second, third, fourth, *_, last = all_cells = cells()
    progress = GridProgress(all_cells, finished=dict.fromkeys((first, second, third), RunStatus(RunState.DONE)))
    at_work = [Job("train", (first, second)), Job("train", (third, fourth)), Job("score", (last,))]
    progress.running = {Future(): (job, tmp_path) for job in at_work}
    assert grid_display.status_line(progress).startswith(f"3/16 done, 1 running, 1 scoring, 0 failed, {16 - 3 - 1} left")


def test_the_time_left_counts_what_passed_beside_the_training(monkeypatch):
    """Two cells trained for 10 s each; the second one, of this grid, took 25 s with the start of its process."""
    now = 100.0
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: now)
    first, second, *others = all_cells = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1, 2, 3, 4, 5, 6])
    trained = SimpleNamespace(result=SimpleNamespace(time_s=10.0))
    progress = GridProgress(all_cells, finished={first: trained}, finished_before=1, started=now, last_end=now)
    assert progress.expected_seconds == pytest.approx(10.0 * 5)  # of this grid nothing is known yet
    now = 125.0
    progress.finish(second, trained)
    now = 135.0  # the third one has been running for 10 s
    assert progress.expected_seconds == pytest.approx(25.0 * len(others) - 10.0)
    progress.started = 123.0  # the second one was continued from a checkpoint; the others have none
    assert progress.expected_seconds == pytest.approx(10.0 * len(others) - 10.0)


@pytest.mark.parametrize("name", registry.names("grids"))
def test_every_shipped_grid_resolves(name):
    grid = grid_spec.resolve(grid_spec.load(name), name)
    resolved = cells(name=name, tasks=grid.tasks[:1]) if grid.is_search else cells_of_grid(name)  # a search has thousands
    assert resolved or name == "hifi-5" or grid.claims  # a table of settings: no run; claims: see test_claim_grids
    assert len({cell.config.run_path for cell in resolved}) == len(resolved)
    assert len({cell.config.hash for cell in resolved}) == len(resolved)


def test_a_table_of_settings_needs_no_run(hifi):
    assert cells(name="hifi-5") == []
    assert hifi("grid", "hifi-5").code == 0


def test_printed_lines_make_every_run_once(hifi):
    answer = hifi("grid", "hifi-3", "--print", "--jobs", "7", "--shard", "2/3")
    expected = {cell.config.run_path for cell in grid_cells.shard(cells(name="hifi-3"), "2/3")}
    made = []
    for line in answer.out.splitlines():
        words = shlex.split(line)
        assert words[:2] in (["hifi", "train"], ["hifi", "score"])
        options = dict(zip(words[2::2], words[3::2], strict=True))
        if words[1] == "train":
            made += [
                cells(name="hifi-3", tasks=[options["--task"]], methods=[method], seeds=[int(seed)])[0].config.run_path
                for method in options["--method"].split(",")
                for seed in options["--seeds"].split(",")
            ]
    assert len(made) == len(expected)
    assert set(made) == expected
    scored = [line for line in answer.out.splitlines() if line.startswith("hifi score")]
    assert len(scored) == len({cell.task for cell in cells(name="hifi-3")})


def test_shards_part_the_cells():
    all_cells = cells(name="hifi-2")
    parts = [grid_cells.shard(all_cells, f"{number}/4") for number in (1, 2, 3, 4)]
    places = [cell.config.run_path for part in parts for cell in part]
    assert sorted(places) == sorted(cell.config.run_path for cell in all_cells)
    costs = [sum(cell.cost for cell in part) for part in parts]
    assert max(costs) - min(costs) <= min(cell.cost for cell in all_cells)
    assert all({cell.method for cell in part} == {cell.method for cell in all_cells} for part in parts)
    assert grid_cells.shard(all_cells, f"{len(all_cells) + 1}/1000000000000") == []
    for text in ("0/4", "5/4", "4", "1/", "a/b", "-1/2"):
        with pytest.raises(UsageError, match="--shard"):
            grid_cells.shard(all_cells, text)


def test_as_many_shards_as_methods_have_equal_cost_and_many_methods_each():
    all_cells = cells(name="hifi-2", seeds=[1, 2, 3])
    number = len({cell.method for cell in all_cells})
    parts = [grid_cells.shard(all_cells, f"{index}/{number}") for index in range(1, number + 1)]
    costs = [sum(cell.cost for cell in part) for part in parts]
    assert max(costs) - min(costs) <= min(cell.cost for cell in all_cells)
    assert min(len({cell.method for cell in part}) for part in parts) > number // 2


@pytest.mark.parametrize("processes", [1, 2, 8, 500])
def test_jobs_hold_every_cell_once_and_none_holds_too_many(processes):
    all_cells = cells(name="hifi-2", seeds=[1, 2])
    made = jobs.training_jobs(all_cells, processes)
    assert sorted(cell.name for job in made for cell in job.cells) == sorted(cell.name for cell in all_cells)
    for job in made:
        assert len({(cell.task, cell.overrides) for cell in job.cells}) == 1
        methods, seeds = (dict.fromkeys(getattr(cell, key) for cell in job.cells) for key in ("method", "seed"))
        assert [(cell.method, cell.seed) for cell in job.cells] == list(product(methods, seeds))  # as `train` goes
        assert len(job.cells) <= max(1, len(all_cells) // (3 * processes)) or processes == 1
    assert [job.cost for job in made] == sorted((job.cost for job in made), reverse=True)


def test_what_is_chosen_by_scores_waits_for_them():
    needing = {job.cells[0].method for job in jobs.training_jobs(cells(name="hifi-3"), 500) if job.needs}
    assert needing == {row.method for row in table_spec.load("hifi-3").rows}
    assert not any(job.needs for job in jobs.training_jobs(cells(name="ehft-1"), 500))
    assert grid_cells.chooses_heads("eh-ft-hifi")
    assert len(jobs.scoring_jobs(cells(name="hifi-3", tasks=["rte", "mrpc"]))) == 2


class Scripted:
    """An engine whose processes do what a script says: a cell's name -> how its next attempts end."""

    processes = 2

    def __init__(self, options, script):
        self.options, self.script, self.ran = options, script, []

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":
        self.ran.append((job.command, [cell.name for cell in job.cells], job.force))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        ended: Future[JobOutcome] = Future()
        ended.set_result(self._run(job, log))
        return ended

    def _run(self, job, log):
        for cell in job.cells if job.command == "train" else ():
            ends = self.script.get(cell.name, [])
            outcome = ends.pop(0) if ends else JobOutcome(0)
            if outcome.exit_code != 0:
                log.write_text(f"much\nhifi: {cell.name} {outcome.reason or 'went wrong'}\n")
                return outcome
            write_cell(cell, self.options.results_dir)
        return self.script.get(job.command, [JobOutcome(0)]).pop(0) if self.script.get(job.command) else JobOutcome(0)

    def stop(self): ...

    def close(self): ...


def scheduled(tmp_path, script, *, all_cells=None, retries=0):
    all_cells = all_cells or cells(tasks=["demo-entailment"])
    scheduler = Scheduler(all_cells, JobOptions(tmp_path), tmp_path / "logs", retries=retries)
    engine = Scripted(scheduler.options, script)
    return scheduler.run(engine, lambda progress: None), engine, scheduler


def test_two_grids_of_one_name_have_their_own_logs(tmp_path):
    """As two shards of a grid have that run at the same time."""
    all_cells = cells(tasks=["demo-entailment"])
    for part in (all_cells[::2], all_cells[1::2]):
        scheduled(tmp_path, {}, all_cells=part)
    names = [sorted(path.name for path in (tmp_path / "logs" / number).iterdir()) for number in ("1", "2")]
    assert all(logs[0].startswith("0001-") for logs in names)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["1", "2"]
    scheduled(tmp_path, {}, all_cells=all_cells)  # nothing is left to run, nor to log
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_a_failed_cell_is_recorded_and_the_rest_goes_on(tmp_path):
    progress, _, scheduler = scheduled(tmp_path, {"demo-entailment/bitfit/seed1": [JobOutcome(1)] * 2}, retries=1)
    (cell,) = progress.failed
    assert (cell.name, len(progress.finished), progress.left) == ("demo-entailment/bitfit/seed1", 7, 0)
    recorded = read_json(cell.run_directory(tmp_path).failure)
    assert recorded["lines"] == ["much", "hifi: demo-entailment/bitfit/seed1 went wrong"]
    assert (recorded["attempts"], recorded["exit_code"]) == (2, 1)
    assert recorded["command"] == scheduler.command(cell)
    assert status(cell.run_directory(tmp_path)).state is RunState.FAILED


def test_the_signal_that_killed_a_run_is_its_reason(tmp_path):
    progress, _, _ = scheduled(tmp_path, {"demo-entailment/bitfit/seed1": [JobOutcome(-9)]})
    assert list(progress.failed.values()) == ["killed by SIGKILL (too little memory?)"]


class RefusesBitFit(Scripted):
    """An engine whose processes refuse a list of methods with BitFit before any training, as `hifi train` does."""

    def _run(self, job, log):
        if any(cell.method == "bitfit" for cell in job.cells):
            log.write_text("hifi: bitfit: nothing to train\n")
            return JobOutcome(2)
        return super()._run(job, log)


def test_a_refused_method_fails_alone(tmp_path):
    all_cells = cells(tasks=["demo-entailment"])
    scheduler = Scheduler(all_cells, JobOptions(tmp_path), tmp_path / "logs")
    progress = scheduler.run(RefusesBitFit(scheduler.options, {}), lambda progress: None)
    assert {cell.method for cell in progress.failed} == {"bitfit"}
    assert set(progress.failed.values()) == {"hifi: bitfit: nothing to train"}
    assert len(progress.finished) == len(all_cells) - len(progress.failed)


def test_a_job_holds_its_seeds_in_the_order_in_which_train_takes_them(tmp_path):
    """The first one without a result is the one that failed."""
    (job,) = jobs.training_jobs(cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[3, 1, 2]), 1)
    assert [cell.seed for cell in job.cells] == [1, 2, 3] and "--seeds 1,2,3" in job.command_line(JobOptions(tmp_path))


def test_a_retry_mends_and_vanished_workers_cost_no_attempt(tmp_path):
    script = {
        "demo-entailment/bitfit/seed2": [JobOutcome(-9)],
        "demo-entailment/full-ft/seed1": [JobOutcome(None, lost=True)] * 5,
        "demo-entailment/full-ft/seed2": [JobOutcome(143)] * 3,
        "demo-entailment/hifi-layerwise/seed1": [JobOutcome(-11)],
        "score": [JobOutcome(1)],
    }
    progress, engine, _ = scheduled(tmp_path, script, retries=2)
    assert not progress.failed
    assert len(progress.finished) == 8
    scored = [index for index, (command, *_) in enumerate(engine.ran) if command == "score"]
    heads = [
        index
        for index, (command, names, _) in enumerate(engine.ran)
        if command == "train" and "demo-entailment/hifi-layerwise/seed1" in names
    ]
    assert len(scored) == 2
    assert max(scored) < min(heads)


@pytest.mark.parametrize(("outcomes", "jobs"), [([JobOutcome(3)], 1), ([JobOutcome(None, lost=True)] * 50, 20)])
def test_cells_that_wait_for_scores_fail_with_them(tmp_path, outcomes, jobs):
    progress, engine, _ = scheduled(tmp_path, {"score": outcomes})
    assert sum(command == "score" for command, *_ in engine.ran) == jobs
    assert {cell.method for cell in progress.failed} == {"hifi-layerwise"}
    assert all("were not scored" in why for why in progress.failed.values())
    assert {read_json(cell.run_directory(tmp_path).failure)["attempts"] for cell in progress.failed} == {jobs}
    assert len(progress.finished) == 6


def test_a_cell_that_another_process_writes_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("hifi_cli.grids.scheduler.BUSY_SECONDS", 0.1)
    start = time.monotonic()
    progress, engine, _ = scheduled(tmp_path, {"demo-entailment/full-ft/seed1": [JobOutcome(4)] * 3})
    assert not progress.failed
    assert sum("demo-entailment/full-ft/seed1" in names for _, names, _ in engine.ran) == 4
    assert time.monotonic() - start > 0.1 + 0.2 + 0.4, "each pause is twice as long"


def test_a_directory_of_another_configuration_is_a_failure(tmp_path):
    all_cells = cells(tasks=["demo-entailment"], methods=["full-ft"])
    other = cells("epochs=1", tasks=["demo-entailment"], methods=["full-ft"])[0]
    place = other.run_directory(tmp_path).path
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump(other.config.model_dump(mode="json")))
    progress, _, _ = scheduled(tmp_path, {"demo-entailment/full-ft/seed1": [JobOutcome(4)]}, all_cells=all_cells)
    assert [cell.seed for cell in progress.failed] == [1]


def test_finished_cells_are_skipped_and_damaged_ones_made_again(tmp_path):
    all_cells = cells(tasks=["demo-entailment"], methods=["full-ft", "bitfit"])
    for cell in all_cells[:3]:
        write_cell(cell, tmp_path)
    truncate(all_cells[1].run_directory(tmp_path).results)
    progress, engine, _ = scheduled(tmp_path, {}, all_cells=all_cells)
    assert len(progress.finished) == 4
    assert progress.finished_before == 2
    assert {(name, force) for _, names, force in engine.ran for name in names} == {
        (all_cells[1].name, True), (all_cells[3].name, False)
    }  # fmt: skip


def test_a_search_chooses_by_the_mean_and_passes_over_what_diverged(tmp_path):
    all_cells = cells(name="demo-search", methods=["full-ft"], seeds=[1, 2])
    scores = {"0.0005": (0.5, 0.7), "0.002": (0.9, 0.2)}
    done = {
        cell: write_cell(cell, tmp_path, score=scores[dict(cell.settings)["learning_rate"]][cell.seed - 1])
        for cell in all_cells
    }
    (method_search,) = search.choose(done, tmp_path)
    assert method_search.chosen.setting == {"learning_rate": "0.0005"}
    assert (method_search.chosen.score, method_search.chosen.seeds) == (pytest.approx(0.6), 2)
    assert method_search.chosen.deviation == pytest.approx(0.1 * 2**0.5)
    assert len(method_search.tried) == 2
    done[all_cells[0]] = write_cell(all_cells[0], tmp_path, "diverged")
    assert search.choose(done, tmp_path)[0].chosen.setting == {"learning_rate": "0.002"}
    assert list(search.lines(search.choose(done, tmp_path))) == [
        "demo-entailment  full-ft  learning_rate=0.002  55.00 (55.00 to 55.00 over 2 settings, 2 seeds)"
    ]


def test_a_search_reads_the_split_that_chooses(tmp_path):
    (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    result = write_cell(cell, tmp_path).result.model_copy(update={"selection": "holdout"})
    directory = cell.run_directory(tmp_path)
    for epoch, value in ((1, 0.3), (2, 0.4)):
        directory.append_metrics(EpochMetrics(epoch=epoch, selection=value, accuracy=0.9))
    assert search.selection_score(directory, result) == 0.4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"table": "hifi-9"}, "did you mean 'hifi-"),
        ({"tabel": "hifi-2"}, "did you mean 'table'?"),
        ({"table": "hifi-2", "vary": {"learning_rat": [1]}}, "did you mean 'learning_rate'?"),
        ({"table": "hifi-2", "vary": {"learning_rate": []}}, "varies over no value"),
        ({"tasks": ["rte"], "methods": ["full-ft"], "protocol": "hifi"}, "names no backbone"),
        ({"table": "hifi-2", "tasks": ["rtx"]}, "did you mean 'rte'?"),
        ({"table": "hifi-2", "seeds": [1, 1]}, "two of its runs are the same"),
        ({"table": "hifi-2", "vary": {"epochs": [1, 1]}}, "two of its runs are the same"),
    ],
)
def test_a_wrong_grid_is_one_line(hifi, tmp_path, content, message):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("grid", "mine.yaml", "--print")
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err
