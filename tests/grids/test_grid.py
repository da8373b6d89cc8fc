"""Grids: which runs a table, claims or a search need, how they are shared out, and what becomes of those that fail."""

import itertools
import shlex
import signal
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest
import yaml
from finished_runs import truncate
from synthetic_grids import cells, write_cell

from hifi_cli import hub
from hifi_cli.config import registry
from hifi_cli.config.sources import resolve
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import display, grid_spec, queue, slots
from hifi_cli.grids.missing import refuse_missing_inputs
from hifi_cli.grids.state import GridState
from hifi_cli.locks import locked
from hifi_cli.records.layout import RunDirectory
from hifi_cli.reports import table_spec

TABLES = [name for name in registry.names("tables") if table_spec.load(name).kind == "scores"]
WHERE = ["--results-dir", "results"]


@pytest.mark.parametrize("name", TABLES)
def test_every_papers_table_has_a_grid_with_exactly_its_runs(name):
    table = table_spec.load(name)
    of_grid = cells(name=name)
    runs = {
        (cell.method, cell.task, cell.config.seed, cell.config.protocol, cell.config.backbone.name)
        for cell in of_grid
    }
    methods = table.methods
    tasks = {column.task for column in table.columns}
    assert runs == {
        (m, t, s, table.protocol, table.backbone)
        for m, t, s in product(methods, tasks, table.seeds)
    }
    assert not any(
        cell.config.variant for cell in of_grid
    )  # they are the runs that the table reads


@pytest.mark.parametrize(
    "name",
    [*registry.names("grids"), "hifi-2", "ehft-1", "figure-hifi-6-k", "claims-hifi", "claims-ehft"],
)
def test_every_shipped_grid_has_runs_that_differ(name):
    grid = grid_spec.load(name, {})
    if grid.figure:
        return
    if grid.claims:
        resolved = grid_cells.cells_of_claims(grid.model_copy(update={"seeds": [1]}), name)
        assert not any(cell.config.variant for cell in resolved)
    else:
        resolved = cells(name=name, tasks=grid.tasks[:1])
    assert resolved
    assert len({cell.config.run_path for cell in resolved}) == len(resolved)
    assert len({cell.config.config_hash for cell in resolved}) == len(resolved)


def test_the_yaml_of_a_figure_is_a_grid_of_the_figures_runs(hifi, tmp_path):
    shipped = registry.configs_directory() / "figures/hifi-6-k.yaml"
    own = tmp_path / "k-figure.yaml"
    own.write_text(shipped.read_text())
    of_file = hifi("grid --print --tasks rte", own).out
    assert "heads.k=1 variant=heads.k--1" in of_file
    # The usual k = 3 is the usual run, which tables and other figures read too.
    assert "heads.k=3" not in of_file
    assert of_file == hifi("grid figure-hifi-6-k --print --tasks rte").out


def test_the_default_of_a_varied_key_is_the_run_that_tables_and_figures_have():
    """One configuration has one directory and one hash, whichever grid trains it."""
    chosen = {"tasks": ["rte", "mrpc"], "methods": ["hifi-layerwise"], "seeds": [1, 2]}
    of_ablation = cells(name="hifi-heads", **chosen)
    of_table = cells(name="hifi-2", **chosen)
    at_default = [cell for cell in of_ablation if cell.config.heads.k == 3]
    assert len(of_ablation) == 8 * 2 * 2 and len(at_default) == 2 * 2
    for table_cell, cell in zip(of_table, at_default, strict=True):
        assert cell.config.run_path == table_cell.config.run_path
        assert cell.config.config_hash == table_cell.config.config_hash
    others = [cell for cell in of_ablation if cell.config.heads.k != 3]
    assert {cell.config.variant for cell in others} == {
        f"heads.k--{k}" for k in (1, 2, 4, 5, 6, 7, 8)
    }


def test_a_figure_of_the_heads_shares_all_its_runs_with_an_ablation(hifi, tmp_path):
    figure = (
        "description: d\nkind: sweep\ntasks: [demo-entailment]\nbackbone: demo\nprotocol: demo\n"
    )
    values = "settings: {key: heads.k, values: [1, 2, 4]}\n"
    (tmp_path / "figure.yaml").write_text(figure + values)
    grid = "protocol: demo\nbackbone: demo\ntasks: [demo-entailment]\nmethods: [hifi-layerwise]\n"
    (tmp_path / "ablation.yaml").write_text(f"{grid}vary: {{heads.k: [1, 2, 4]}}\n")

    def printed(name):
        lines = hifi("grid", name, "--print").out.splitlines()
        return {line.replace(" --allow-unused", "") for line in lines}

    assert len(printed("figure.yaml")) == 3
    assert printed("figure.yaml") == printed("ablation.yaml")
    usual = "hifi train --task demo-entailment --method hifi-layerwise --backbone demo"
    assert f"{usual} --protocol demo --seeds 1 --results-dir results" in printed("ablation.yaml")


def test_the_default_of_a_methods_setting_is_known_where_no_yaml_says_it(hifi):
    """Mixout's p stands in its YAML, and `place` in its class alone."""
    Path("mine.yaml").write_text(
        "protocol: demo\nbackbone: demo\ntasks: [demo-entailment]\nmethods: [mixout]\n"
        "vary: {settings.place: [all, after-dropout]}\n"
    )
    lines = hifi("grid mine.yaml --print").out.splitlines()
    assert sum("variant=" in line for line in lines) == 1 and len(lines) == 2


def test_a_method_that_needs_a_key_that_varies_has_no_usual_run(hifi):
    Path("needs.py").write_text(
        "from hifi_cli.methods.base import Method\n"
        "class Needs(Method):\n"
        "    class Settings(Method.Settings):\n"
        "        width: int\n"
        "    def prepare(self, encoder):\n"
        "        pass\n"
    )
    Path("needs.yaml").write_text(
        "description: d\nlabel: N\nsource: s\nimplementation: ./needs.py\n"
    )
    Path("mine.yaml").write_text(
        "protocol: demo\nbackbone: demo\ntasks: [demo-entailment]\nmethods: [needs.yaml]\n"
        "vary: {settings.width: [1, 2]}\n"
    )
    answer = hifi("grid mine.yaml --print")
    lines = answer.out.splitlines()
    assert len(lines) == 2, answer.err
    assert all("variant=settings.width" in line for line in lines)


def test_printed_lines_make_every_run_of_a_shard_once(hifi):
    lines = hifi("grid hifi-3 --tasks rte,mrpc --print --shard 2/3").out.splitlines()
    asked = cells(name="hifi-3", tasks=["rte", "mrpc"])
    expected = {cell.config.run_path for cell in grid_cells.shard(asked, "2/3")}
    words = [shlex.split(line) for line in lines]
    assert {tuple(line[:2]) for line in words} == {("hifi", "train")}
    made = []
    for line in words:
        o = dict(zip(line[2::2], line[3::2], strict=True))
        names = {"tasks": [o["--task"]], "methods": [o["--method"]]}
        made += cells(name="hifi-3", **names, seeds=[int(o["--seeds"])])
    assert len(made) == len(expected) and {cell.config.run_path for cell in made} == expected


def test_runs_start_seed_by_seed_and_the_longest_first(tmp_path):
    left = GridState(cells(name="hifi-3", seeds=[2, 1]), tmp_path).left
    order = [(cell.config.seed, -cell.cost) for cell in left]
    assert order == sorted(order) and order[0][0] == 1 and order[0][1] < order[-1][1]


def test_shards_part_the_cells_and_cost_the_same():
    all_cells = cells(name="hifi-2", seeds=[1, 2, 3])
    parts = [grid_cells.shard(all_cells, f"{number}/4") for number in (1, 2, 3, 4)]
    places = [cell.config.run_path for part in parts for cell in part]
    assert sorted(places) == sorted(cell.config.run_path for cell in all_cells)
    costs = [sum(cell.cost for cell in part) for part in parts]
    assert max(costs) - min(costs) <= max(cell.cost for cell in all_cells)
    assert all(len({cell.method for cell in part}) > 4 for part in parts)
    assert grid_cells.shard(all_cells, f"{len(all_cells) + 1}/1000000000000") == []
    for text in ("0/4", "5/4", "4", "1/", "a/b", "-1/2"):
        with pytest.raises(UsageError, match="--shard"):
            grid_cells.shard(all_cells, text)


class Scripted:
    """An executor whose commands do what a script says: a cell's name -> the exit codes of its next attempts."""

    def __init__(self, all_cells, script, results_dir):
        self.script, self.results_dir, self.ran = script, results_dir, []
        self.by_command = {tuple(cell.command(WHERE)): cell for cell in all_cells}

    def __call__(self, command, log):
        added = [word for word in ("--force", "record_steps=false") if word in command]
        cell = self.by_command[tuple(word for word in command if word not in added)]
        name = cell.config.run_label
        self.ran.append(" ".join([name, *added]))
        codes = self.script.get(name, [])
        code = codes.pop(0) if codes else 0
        with log.open("a") as file:
            file.write(f"much\n  10 %\r  20 %\nhifi: {name} went wrong\n")
        if code == 0:
            write_cell(cell, self.results_dir)
        elif code == 143 and "--force" in command:  # a forced run removes the result when it begins
            (self.results_dir / cell.config.run_path / "results.json").unlink()
        ended: Future[int] = Future()
        ended.set_result(code)
        return ended


def scripted_run(tmp_path, script, all_cells=None, retries=0, force=False):
    all_cells = all_cells or cells(tasks=["demo-entailment"])
    state = GridState.of(all_cells, tmp_path, None, force=force)
    submit = Scripted(all_cells, script, tmp_path)
    queue.run(state, submit, tmp_path / "logs", WHERE, retries=retries, force=force)
    return state, submit.ran


def test_a_failed_cell_has_its_reason_and_the_rest_goes_on(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
    script = {"demo-entailment/bitfit/seed1": [1, 3], "demo-entailment/full-ft/seed1": [-9, -9]}
    state, ran = scripted_run(tmp_path, script, retries=1)
    assert {cell.config.run_label: reason for cell, reason in state.failed.items()} == {
        "demo-entailment/bitfit/seed1": "hifi: demo-entailment/bitfit/seed1 went wrong",
        "demo-entailment/full-ft/seed1": "killed by SIGKILL (too little memory?)",
    }
    assert len(state.finished) == 6 and not state.left
    assert ran.count("demo-entailment/bitfit/seed1") == 2
    assert "grid: 6/8 done, 2 failed, about 0:00:00 to go" in caplog.messages[-1]
    finished = [message for message in caplog.messages if message.endswith(": accuracy 50.00")]
    labels = {cell.config.run_label for cell in state.finished}
    assert {message.partition(": ")[0] for message in finished} == labels


@pytest.mark.parametrize(("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (50, "signal 50")])
def test_a_cell_that_a_signal_ends_has_its_name_or_number(tmp_path, number, name):
    """Real-time signals have no names."""
    state, _ = scripted_run(tmp_path, {"demo-entailment/bitfit/seed1": [-number]})
    (reason,) = state.failed.values()
    assert reason == f"killed by {name}"


def test_a_retry_mends_and_what_was_told_to_stop_costs_no_attempt(tmp_path):
    script = {
        "demo-entailment/bitfit/seed2": [-9],
        "demo-entailment/full-ft/seed2": [143, 130, 143],
    }
    state, ran = scripted_run(tmp_path, script, retries=1)
    assert len(state.finished) == 8 and not state.failed
    assert ran.count("demo-entailment/full-ft/seed2") == 4


def test_a_cell_whose_steps_cannot_be_recorded_trains_once_more_without(tmp_path):
    """In another command, which is no retry; every later one is without a recording too."""
    mended, failing = "demo-entailment/bitfit/seed1", "demo-entailment/full-ft/seed1"
    script = {mended: [5], failing: [5, 1, 5]}
    state, ran = scripted_run(tmp_path, script, retries=1)
    without = "record_steps=false"
    assert [line for line in ran if line.startswith(mended)] == [mended, f"{mended} {without}"]
    tries = [failing, f"{failing} {without}", f"{failing} {without}"]
    assert [line for line in ran if line.startswith(failing)] == tries
    assert [cell.config.run_label for cell in state.failed] == [failing]


def test_the_command_of_a_cell_may_turn_the_recording_off_after_the_grid_turned_it_on():
    """The last value of a key counts, and the run stays the one that the grid asked for."""
    (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    words = ["record_steps=true", "record_steps=false"]
    how = {"task": cell.task, "method": cell.method, "backbone": cell.backbone}
    config = resolve(**how, protocol=cell.protocol, overrides=words)
    assert not config.record_steps and config.config_hash == cell.config.config_hash


def test_a_forced_run_that_was_stopped_continues_and_one_that_never_began_has_failed(tmp_path):
    all_cells = cells(tasks=["demo-entailment"], seeds=[1])
    for cell in all_cells:
        write_cell(cell, tmp_path, state="diverged")
    names = [cell.config.run_label for cell in all_cells]
    script = {names[0]: [143], names[1]: [3]}
    state, ran = scripted_run(tmp_path, script, all_cells, force=True)
    assert [name for name in ran if name.startswith(names[0])] == [f"{names[0]} --force", names[0]]
    assert [cell.config.run_label for cell in state.failed] == [names[1]] and not state.diverged


def test_a_cell_that_another_process_trains_is_waited_for(tmp_path, caplog, monkeypatch):
    """The other process finishes the first of its cells, and dies over the second."""
    monkeypatch.setattr(queue, "_POLL_SECONDS", 0.01)
    all_cells = cells(tasks=["demo-entailment"], seeds=[1])
    first, second, *_ = all_cells
    held = [RunDirectory.of(cell.config, tmp_path).lock for cell in (first, second)]
    with ExitStack() as other_process:
        for lock in held:
            assert other_process.enter_context(locked(lock, wait=False))
        submit = Scripted(all_cells, {}, tmp_path)

        def then_the_other_process_ends(command, log):
            ended = submit(command, log)
            if len(submit.ran) == len(all_cells) - 2:
                write_cell(first, tmp_path)
                other_process.close()
            return ended

        state = GridState(all_cells, tmp_path)
        queue.run(state, then_the_other_process_ends, tmp_path / "logs", WHERE)
    names = {first.config.run_label, second.config.run_label}
    assert {*submit.ran[-2:]} == names and len(submit.ran) == len(all_cells)
    assert len(state.finished) == len(all_cells) and not state.failed
    waited = [line for line in caplog.messages if "another process trains it" in line]
    assert len(waited) == 2


def test_a_command_that_met_another_process_is_repeated_and_one_of_another_run_is_not(tmp_path):
    """Both end with 4; the other process has ended before the grid can look for its lock."""
    met, conflict = "demo-entailment/bitfit/seed1", "demo-entailment/full-ft/seed1"
    state, ran = scripted_run(tmp_path, {met: [4, 4], conflict: [4] * 9})
    assert [cell.config.run_label for cell in state.failed] == [conflict]
    assert ran.count(met) == ran.count(conflict) == 3
    assert len(state.finished) == 7


def test_the_reason_of_a_failure_is_of_this_commands_part_of_the_log(tmp_path):
    """The other part is of an earlier command, or of another grid that writes at the same time."""
    all_cells = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    state = GridState(all_cells, tmp_path)
    log = tmp_path / "logs/demo-entailment-full-ft-seed1.log"
    log.parent.mkdir()

    def failing(lines, code=3):
        def submit(_, log):
            with log.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
            ended: Future[int] = Future()
            ended.set_result(code)
            return ended

        state.failed.clear()
        queue.run(state, submit, log.parent, WHERE)
        return state.failed[all_cells[0]]

    log.write_text("hifi: an error of yesterday\n")
    assert failing([]) == "exit code 3"
    assert failing(["terminate called"]) == "terminate called"
    assert failing(["hifi: no data", "full-ft/seed1: epoch 2 of 2"]) == "hifi: no data"


def test_force_is_not_advised_where_a_run_is_done(hifi, monkeypatch):
    """Another process has finished the run after this grid's command failed."""

    @contextmanager
    def failing_executor(_, forks):
        def submit(command, log):
            log.write_text("hifi: no memory\n")
            (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
            write_cell(cell, Path("results"))
            ended: Future[int] = Future()
            ended.set_result(1)
            return ended

        yield submit

    monkeypatch.setattr(slots, "local_executor", failing_executor)
    words = ("--tasks", "demo-entailment", "--methods", "full-ft", "--seeds", "1")
    answer = hifi("grid demo", *words)
    assert (
        answer.code == 1 and "failed: demo-entailment/full-ft/seed1: hifi: no memory" in answer.err
    )
    assert "to repeat it: hifi train" in answer.err and "--force" not in answer.err
    forced = hifi("grid", "demo", *words, "--force")
    assert "--force" in forced.err  # as the user wanted it


def test_runs_that_start_from_another_wait_for_it_and_finished_ones_are_skipped(tmp_path, hifi):
    """The limit makes all runs as long, and MNLI comes after MRPC and STS-B in the table."""
    words, first = ("limit=8", "epochs=1"), "mnli/full-ft/seed1"
    all_cells = cells(*words, name="modernbert", seeds=[1])
    write_cell(all_cells[0], tmp_path)
    state, ran = scripted_run(tmp_path, {first: [1]}, all_cells, retries=1)
    assert (len(ran), ran.count(first), state.finished_before, len(state.finished)) == (8, 2, 1, 8)
    waited = ("rte", "mrpc", "stsb")
    assert {*ran[-3:]} == {f"{task}/full-ft/seed1" for task in waited}
    printed = hifi("grid modernbert --print", *words).out.splitlines()
    tasks = [shlex.split(line)[3] for line in printed]
    assert tasks.index("mnli") < min(map(tasks.index, waited))


def test_another_run_in_the_place_of_a_cell_is_refused_before_anything_starts(hifi):
    words = ("grid", "demo", "--tasks", "demo-entailment", "--methods", "full-ft,bitfit")
    (other, *_) = cells("epochs=1", tasks=["demo-entailment"], methods=["full-ft"])
    write_cell(other, Path("results"))
    answer = hifi(*words)
    assert (
        answer.code == 4
        and "epochs is 1 there" in answer.err
        and not list(Path("results").rglob("*.log"))
    )
    truncate(Path("results") / other.config.run_path / "results.json")
    answer = hifi(*words)
    assert answer.code == 2 and "delete it and make it again" in answer.err
    forced = hifi(*words, "--force", "--print").out.splitlines()
    assert len(forced) == 4 and all("--force" in line for line in forced)


def test_a_grid_without_data_and_encoder_starts_no_run(hifi):
    answer = hifi("grid hifi-2 --tasks rte,cola --methods full-ft --seeds 1")
    assert answer.code == 3
    last = answer.err.splitlines()[-1]
    assert last.startswith("hifi: no run of grid hifi-2 can train here: the dataset 'nyu-mll/glue'")
    assert "; the model 'google-bert/bert-large-uncased' is not available" in last
    assert not Path("results").exists()
    assert hifi("grid hifi-2 --tasks rte --methods full-ft --seeds 1 --print").code == 0


def test_a_grid_asks_the_hub_once_whether_it_can_be_reached(hifi, monkeypatch):
    asked = []

    def not_reached(kind, name, revision):
        asked.append((kind, name))

    monkeypatch.setattr(hub, "resolve_commit", not_reached)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    answer = hifi("grid hifi-2 --tasks rte --methods full-ft,bitfit --seeds 1,2")
    assert answer.code == 3 and answer.err.count("(the hub is not reached)") == 2
    assert asked == [("dataset", "nyu-mll/glue"), ("model", "google-bert/bert-large-uncased")]


def test_what_some_runs_of_a_grid_lack_is_said_before_they_start(hifi, tmp_path, caplog):
    """A run that is done, or one that can train, is a reason to go on."""
    some = cells(tasks=["demo-entailment", "rte"], methods=["full-ft"], seeds=[1, 2])
    refuse_missing_inputs(GridState(some, tmp_path), "demo")
    (line,) = caplog.messages
    assert line.startswith("2 runs of 4 cannot train here: the dataset 'nyu-mll/glue'")
    without = GridState([cell for cell in some if cell.task == "rte"], tmp_path)
    with pytest.raises(MissingError, match="no run of grid demo can train here: the dataset"):
        refuse_missing_inputs(without, "demo")
    write_cell(without.cells[0], tmp_path)
    assert without.take_result(without.cells[0], 0)
    refuse_missing_inputs(without, "demo")
    assert caplog.messages[-1].startswith("1 run of 2 cannot train here: the dataset")


def test_a_run_that_diverged_is_repeated_with_force_as_it_is_finished(hifi):
    (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    write_cell(cell, Path("results"), state="diverged")
    answer = hifi("grid demo --tasks demo-entailment --methods full-ft --seeds 1")
    assert (
        answer.code == 1
        and "failed: demo-entailment/full-ft/seed1: the training loss is nan" in answer.err
    )
    assert "to repeat it: hifi train --task demo-entailment --method full-ft" in answer.err
    assert "--force" in answer.err


def test_ehfts_searches_are_those_of_its_text():
    """Sections 3.2 and 3.3; the order of a grid is ours."""

    def tried(name):
        return {
            method: {*product(*varied.values())}
            for method, varied in grid_spec.load(name, {}).varied.items()
        }

    assert tried("ehft-search") == {
        "mixout": set(product((0.7, 0.8, 0.9), (1e-5, 2e-4))),
        "child-tuning-d": {(0.1,), (0.2,), (0.3,)},
        "top-k": {(3,), (6,), (12,)},
    }
    rates = {(5e-3,), (1e-3,), (1e-4,), (5e-4,)}
    assert tried("ehft-search-rates") == dict.fromkeys(
        ("linear-probing", "bitfit", "lora", "prefix-tuning"), rates
    )
    assert grid_spec.load("ehft-search-rates", {}).tasks == ["rte", "boolq"]


CLAIMS = """
description: My claims
protocol: demo
backbone: demo
tasks: [demo-entailment, demo-acceptability]
seeds: [1, 2, 5]
claims:
  probing: {kind: difference, text: Full-FT beats probing., where: here, first: full-ft, second: linear-probing}
  lora: {kind: difference, text: Full-FT beats LoRA., where: here, first: full-ft, second: lora}
  flat: {kind: number, text: F., where: here, figure: hifi-7, at_most: 100}
"""


@pytest.fixture
def grid_of_claims(hifi):  # in its own working directory
    Path("mine.yaml").write_text(CLAIMS)
    Path("claims-mine.yaml").write_text("description: d\nclaims: mine.yaml\n")
    return lambda *words: hifi("grid claims-mine.yaml --print", *words)


def test_a_grid_of_claims_holds_each_run_once_with_the_seeds_of_the_file(grid_of_claims):
    answer = grid_of_claims()
    assert answer.code == 0, answer.err
    commands = [command.split() for command in answer.out.splitlines()]
    runs = [
        tuple(words[words.index(option) + 1] for option in ("--task", "--method", "--seeds"))
        for words in commands
    ]
    tasks = ("demo-entailment", "demo-acceptability")
    assert sorted(runs) == sorted(
        itertools.product(tasks, ("full-ft", "linear-probing", "lora"), "125")
    )


def test_keys_that_decide_which_runs_a_claim_reads_are_refused(grid_of_claims):
    for key in ("shots=8", "variant=x"):
        answer = grid_of_claims(key)
        assert answer.code == 2 and f"sets {key.partition('=')[0]}: leave it out" in answer.err, (
            answer.err
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"table": "hifi-9"}, "did you mean 'hifi-"),
        ({"tabel": "hifi-2"}, "did you mean 'table'?"),
        ({"table": "hifi-2", "vary": {"learning_rat": [1]}}, "did you mean 'learning_rate'?"),
        ({"table": "hifi-2", "vary": {"learning_rate": []}}, "vary.learning_rate"),
        ({"tasks": ["rte"], "methods": ["full-ft"], "protocol": "hifi"}, "names no backbone"),
        ({"table": "hifi-5"}, "names no tasks"),
        ({"table": "hifi-2", "tasks": ["rtx"]}, "did you mean 'rte'?"),
        ({"table": "hifi-2", "seeds": [1, 1]}, "two of its runs are the same"),
        ({"table": "hifi-2", "vary": {"epochs": [1, 1]}}, "two of its runs are the same"),
        ({"claims": "hifi", "table": "demo"}, "claims define their own methods"),
    ],
)
def test_a_wrong_grid_is_one_line(hifi, tmp_path, content, message):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("grid mine.yaml --print")
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
