"""`hifi grid --until-decided`: which seeds are added, whose looks count, and when it stops."""

import itertools
import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from project_files import copy_yaml
from synthetic_runs import write_run

from hifi_cli.cli import grid
from hifi_cli.config import registry
from hifi_cli.errors import ConflictError
from hifi_cli.grids import claim_runs, grid_spec, scheduler
from hifi_cli.grids.claim_runs import SequentialClaims, allocate
from hifi_cli.records.claim_looks import ClaimLooks
from hifi_cli.reports import claim_spec

pytestmark = pytest.mark.slow

OWN = """
description: My claims
protocol: demo
backbone: demo
tasks: [demo-entailment, demo-acceptability]
seeds: [1, 2, 5]
claims:
  probing: {kind: superior, text: Full-FT beats probing., where: here, first: full-ft, second: linear-probing}
  latency: {kind: cost, text: Fast., where: here, measure: latency, method: bitfit, at_most: 1.05}
"""


@pytest.fixture
def file(hifi):  # in its own working directory
    Path("mine.yaml").write_text(OWN)
    Path("claims-mine.yaml").write_text("description: d\nclaims: mine.yaml\n")
    return claim_spec.load("mine.yaml")


def test_seeds_go_where_they_reduce_the_variance_most():
    counts = allocate({"a": 3, "b": 3}, {"a": 16.0, "b": 1.0}, 50, 100)
    assert counts["a"] / counts["b"] == pytest.approx(4, abs=0.5) and sum(counts.values()) == 50  # as the spreads: Neyman
    assert allocate({"a": 3, "b": 3}, {"a": 16.0, "b": 1.0}, 50, 20) == {"a": 20, "b": 20}
    assert allocate({"a": 3, "b": 9}, {"a": 0.0, "b": 0.0}, 12, 20) == {"a": 3, "b": 9}


def test_the_grid_of_claims_holds_each_run_once(file):
    counts = claim_runs.first_counts(file)
    assert counts == {("probing", task): 3 for task in file.tasks}  # the latency is measured, not trained
    cells = claim_runs.cells(file, "g", {**counts, ("probing", "demo-entailment"): 5})
    seeds = {(cell.task, cell.method): [] for cell in cells}
    for cell in cells:
        seeds[cell.task, cell.method].append(cell.seed)
    assert set(seeds) == set(itertools.product(file.tasks, ("full-ft", "linear-probing")))
    assert seeds["demo-entailment", "full-ft"] == [1, 2, 5, 6, 7] and seeds["demo-acceptability", "full-ft"] == [1, 2, 5]
    for name in registry.names("claims"):
        shipped = claim_spec.load(name, protocol="demo")
        one_seed = shipped.model_copy(update={"seeds": [1]})
        cells = claim_runs.cells(one_seed, "g", claim_runs.first_counts(one_seed))
        assert not any(cell.config.variant for cell in cells)  # tables and claims read them
        assert len({cell.config.run_path for cell in cells}) == len(cells)
        if name == "hifi":
            assert {cell.config.shots for cell in cells} == {None, 16}


def write_look(plan, gap, noise=0.01):
    """The runs of the next look; the methods differ by `gap` points."""
    for cell in claim_runs.cells(plan.file, "g", plan.next_counts()):
        shift = noise * (cell.seed * 7 % 5 - 2) / 2 if cell.method == "full-ft" else -gap / 100
        write_run("results", cell.method, cell.task, cell.seed, 0.6 + shift, protocol="demo", backbone="demo")


def grids_in(table):
    """The commands of missing runs of claims that looks decide."""
    return [line["command"] for line in table["missing"] if not line["command"].startswith("hifi table")]


def test_a_clear_difference_is_decided_at_an_early_look(file, hifi):
    plan = SequentialClaims("mine", file, Path("results"), 20)
    assert plan.looks.declared == [4, 8, 12, 16, 20] and not plan.is_over
    while not plan.is_over:
        write_look(plan, 5)
        plan.look()
    assert plan.number == 2 and plan.undecided == []  # 8 pairs cannot reach the first level, 16 reach the second
    table = json.loads(hifi("claims", "mine.yaml", "--format", "json").out)
    assert table["rows"][0]["cells"]["verdict"]["value"] == "supported (look 2 of 5 at 0.079 %)" and grids_in(table) == []
    again = SequentialClaims("mine", file, Path("results"), 20)
    assert again.number == 2 and again.is_over
    with pytest.raises(ConflictError, match="use --max-seeds 20"):
        SequentialClaims("mine", file, Path("results"), 10)


def test_a_look_says_nothing_about_other_scores_or_a_claim_that_was_changed_since(file, hifi):
    plan = SequentialClaims("mine", file, Path("results"), 4)
    write_look(plan, 5)
    plan.look()

    def verdict(*words):
        return json.loads(hifi("claims", "mine.yaml", "--format", "json", *words).out)["rows"][0]["cells"]["verdict"]["value"]

    assert "(look 1 of 2 at 1.9 %)" in verdict() and "look" not in verdict("--score", "last")
    Path("mine.yaml").write_text(OWN.replace("beats probing.", "is better than probing."))
    assert "(look 1 of 2 at 1.9 %)" in verdict(), "the text decides nothing"
    Path("mine.yaml").write_text(
        OWN.replace("first: full-ft, second: linear-probing", "first: linear-probing, second: full-ft")
    )
    assert "look" not in verdict()
    with pytest.raises(ConflictError, match=r"looks at claims that were changed since \(probing\)"):
        SequentialClaims("mine", claim_spec.load("mine.yaml"), Path("results"), 4)


def test_seeds_that_looks_at_another_claim_added_are_tested_at_their_level(file, hifi):
    Path("mine.yaml").write_text(
        OWN + "  again: {kind: superior, text: T., where: here, first: full-ft, second: linear-probing}\n"
    )
    plan = SequentialClaims("mine", file, Path("results"), 20)  # without the new claim
    write_look(plan, 5)
    plan.look()

    def verdict(*words):
        rows = json.loads(hifi("claims", "mine.yaml", "--format", "json", *words).out)["rows"]
        return next(row["cells"]["verdict"]["value"] for row in rows if row["name"] == "again")

    assert verdict("--score", "last") == "supported" and verdict() == "undecided (with seeds of look 1 of 5 at 0.00011 %)"


def test_no_command_is_printed_for_a_changed_claim_as_the_grid_refuses_it(file, hifi):
    plan = SequentialClaims("mine", file, Path("results"), 4)
    write_look(plan, 0.3, noise=0.03)
    plan.look()
    for margin, number in (("", 1), ("margin: 0.1, ", 0)):
        Path("mine.yaml").write_text(OWN.replace("first: full-ft", f"{margin}first: full-ft"))
        table = json.loads(hifi("claims", "mine.yaml", "--format", "json").out)
        assert table["rows"][0]["cells"]["verdict"]["value"].startswith("undecided") and len(grids_in(table)) == number


def test_the_footnotes_of_a_look_do_not_have_the_verdicts_of_a_single_one(file, hifi):
    order = "  order: {kind: order, text: T., where: here, levels: [[full-ft], [linear-probing], [bitfit]]}\n"
    Path("mine.yaml").write_text(OWN + order)

    def footnote():
        return next(line for line in hifi("claims", "mine.yaml").out.splitlines() if "Linear probing above BitFit" in line)

    plan = SequentialClaims("mine", claim_spec.load("mine.yaml"), Path("results"), 20)
    write_look(plan, 5)
    assert "supported" in footnote()
    assert plan.look()["order"].verdict == "undecided"
    assert "supported" not in footnote() and "contradicted" not in footnote()


def test_an_undecided_claim_takes_every_declared_look_and_no_more(file, hifi):
    plan = SequentialClaims("mine", file, Path("results"), 6)
    looks = []
    while not plan.is_over:
        write_look(plan, 0.3, noise=0.03)
        looks.append(plan.look())
        commands = grids_in(json.loads(hifi("claims", "mine.yaml", "--format", "json").out))
        assert len(commands) == (not plan.is_over)
        assert all(command.startswith("hifi grid GRID.yaml --until-decided --max-seeds 6 ") for command in commands)
    assert [look["probing"].verdict for look in looks] == ["undecided"] * len(plan.looks.declared)
    assert looks[-1]["probing"].seeds == dict.fromkeys(file.tasks, 6)
    row = json.loads(hifi("claims", "mine.yaml", "--format", "json").out)
    assert row["rows"][0]["cells"]["verdict"]["value"] == f"undecided (look {len(looks)} of {len(looks)} at 4.1 %)"


def test_the_command_trains_and_looks_until_decided(file, hifi, monkeypatch):
    calls = []

    def run(self, _engine, show, *, deadline):
        assert deadline is None
        cells = self.progress.cells
        calls.append(len(cells))
        for cell in cells:
            score = 0.7 + 0.001 * cell.seed if cell.method == "full-ft" else 0.5
            write_run("results", cell.method, cell.task, cell.seed, score, protocol="demo", backbone="demo")
        show(self.progress)
        return self.progress

    monkeypatch.setattr(scheduler.Scheduler, "run", run)
    answer = hifi("grid", "claims-mine.yaml", "--until-decided", "-j", "1")
    assert answer.code == 0, answer.err
    assert answer.out == "look 1  probing  undecided\nlook 2  probing  supported\n" and calls == [16, 32]
    assert (
        "look 2 of 5, level 0.00079" in answer.err
        and "1 of 1 claims decided: results/claims/mine-demo-demo.json" in " ".join(answer.err.split())
    )
    again = hifi("grid", "claims-mine.yaml", "--until-decided", "-j", "1", "--format", "json")
    assert again.code == 0 and calls == [16, 32]
    content = json.loads(again.out)
    assert (content["claims"], content["decided"]) == (1, 1)
    assert [look["verdict"] for look in content["looks"]["claims"]["probing"]["looks"]] == ["undecided", "supported"]


SECOND = OWN.replace(
    "  latency:", "  reverse: {kind: superior, text: T., where: here, first: linear-probing, second: bitfit}\n  latency:"
)


def test_two_commands_at_a_time_keep_each_others_looks(file, hifi):
    Path("mine.yaml").write_text(SECOND)
    both = claim_spec.load("mine.yaml")
    plans = [
        SequentialClaims("mine", both.model_copy(update={"claims": {name: both.claims[name]}}), Path("results"), 20)
        for name in ("probing", "reverse")
    ]
    for plan in plans:
        write_look(plan, 5)
        plan.look()
    assert list(ClaimLooks.read(plans[0].path).claims) == ["probing", "reverse"]


def test_a_look_of_another_command_stands(file, hifi):
    """Also if this command read the file before it: a verdict is never replaced, and levels are never mixed."""
    late, other_levels = (SequentialClaims("mine", file, Path("results"), seeds) for seeds in (20, 4))
    early = SequentialClaims("mine", file, Path("results"), 20)
    while not early.is_over:
        write_look(early, 5)
        early.look()
    assert late.look() == {} and late.is_over and late.looks == early.looks == ClaimLooks.read(early.path)
    with pytest.raises(ConflictError, match="declares other looks, of a command that ran meanwhile"):
        other_levels.look()
    assert ClaimLooks.read(early.path) == early.looks


def test_runs_added_by_hand_do_not_raise_the_number_of_seeds(file, hifi):
    """They are compared with the others, but the grid trains its own seeds up to the declared numbers."""
    plan = SequentialClaims("mine", file, Path("results"), 20)
    write_look(plan, 0.3, noise=0.03)
    plan.look()
    for seed, task, method in itertools.product(range(30, 45), file.tasks, ("full-ft", "linear-probing")):
        write_run("results", method, task, seed, 0.6 + 0.01 * (seed % 3), protocol="demo", backbone="demo")
    trained = []
    while not plan.is_over:
        trained.append(sum(plan.next_counts().values()) // len(file.tasks))
        write_look(plan, 0.3, noise=0.03)
        looks = plan.look()
    assert trained == [8, 12, 16, 20] and looks["probing"].seeds == dict.fromkeys(file.tasks, 35)


def test_a_claim_that_no_seed_decides_has_one_run_and_no_look(file, hifi):
    trained = "  percent: {kind: property, text: T., where: here, measure: trained-percent, method: full-ft, at_most: 100}\n"
    Path("mine.yaml").write_text(OWN + trained)
    both = claim_spec.load("mine.yaml")
    counts = claim_runs.first_counts(both)
    assert [counts[name, "demo-entailment"] for name in ("probing", "percent")] == [3, 1]
    assert [*SequentialClaims("mine", both, Path("results"), 20).claims] == ["probing"]
    answer = hifi("grid", "claims-mine.yaml", "--until-decided", "--claims", "percent")
    assert answer.code == 2 and "more seeds decide none of these claims; hifi claims mine prints what does" in " ".join(
        answer.err.split()
    )


def test_keys_that_decide_which_runs_a_claim_reads_are_refused(file, hifi):
    for key in ("shots=8", "variant=x"):
        answer = hifi("grid", "claims-mine.yaml", "--until-decided", key)
        assert answer.code == 2 and f"sets {key.partition('=')[0]}: leave it out" in answer.err, answer.err


def test_some_claims_are_decided_first_and_others_later(file, hifi, monkeypatch):
    """Each claim has its own looks: `--claims` spends none of the others', and the whole grid goes on with them."""
    Path("mine.yaml").write_text(SECOND)
    arguments = write_runs_in_place_of_training(monkeypatch)
    command = ("grid", "claims-mine.yaml", "--until-decided")
    answer = hifi(*command, "--claims", "probing", "--max-seeds", "20")
    assert answer.code == 0 and answer.out == "look 1  probing  undecided\nlook 2  probing  supported\n", answer.err
    assert {method for _, method, _ in arguments} == {"full-ft", "linear-probing"}
    table = json.loads(hifi("claims", "mine.yaml", "--format", "json").out)
    verdicts = [row["cells"]["verdict"]["value"] for row in table["rows"]]
    assert verdicts[:2] == ["supported (look 2 of 5 at 0.079 %)", "not run"]
    answer = hifi(*command)
    assert answer.out == "look 1  reverse  undecided\nlook 2  reverse  contradicted\n", answer.err
    for words, message in (
        ([*command, "--claims", "probin"], "grid claims-mine has no claim 'probin'; did you mean 'probing'?"),
        ([*command, "--claims", "latency"], "a figure or a measured cost decides claim 'latency', not runs"),
        (["grid", "demo", "--claims", "probing"], "grid demo has no claims; remove --claims"),
    ):
        answer = hifi(*words)
        assert answer.code == 2 and message in " ".join(answer.err.split()), answer.err


def test_the_command_stops_when_the_time_is_spent_and_goes_on_later(file, hifi, monkeypatch):
    clock, stopped = itertools.count(0, 2000.0), []
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    engine = SimpleNamespace(
        processes=1, submit=lambda _job, _log: Future(), stop=lambda: stopped.append(True), close=lambda: None
    )  # its jobs never end
    monkeypatch.setattr(grid, "_engine", lambda *_: engine)
    answer = hifi("grid", "claims-mine.yaml", "--until-decided", "--budget", "30m", "-j", "1")
    assert answer.code == 0 and "the time is spent; the same command goes on" in answer.err and stopped
    assert not Path("results/claims").exists()  # no look was taken


def test_a_failed_run_takes_no_look_and_json_says_what_is_decided(file, hifi, monkeypatch):
    def submit(_job, _log):
        future = Future()
        future.set_result(scheduler.JobOutcome(exit_code=1))
        return future

    engine = SimpleNamespace(processes=1, submit=submit, close=lambda: None)
    monkeypatch.setattr(grid, "_engine", lambda *_: engine)
    answer = hifi("grid", "claims-mine.yaml", "--until-decided", "-j", "1", "--format", "json")
    content = json.loads(answer.out)
    assert answer.code == 1 and (content["claims"], content["decided"], content["looks"]["claims"]) == (1, 0, {})
    assert not Path("results/claims").exists()


def write_runs_in_place_of_training(monkeypatch, **keys):
    """Let a grid's scheduler write runs; the first method is better. Return the arguments of tasks, methods and protocols."""
    arguments = []

    def run(self, _engine, show, *, deadline):
        for cell in self.progress.cells:
            config = cell.config
            score = 0.5 if config.method == "linear-probing" else 0.7 + 0.001 * cell.seed
            write_run(
                "results", config.method, config.task, cell.seed, score, protocol=config.protocol, backbone="demo", **keys
            )
            arguments.append((cell.task, cell.method, cell.protocol))
        show(self.progress)
        return self.progress

    monkeypatch.setattr(scheduler.Scheduler, "run", run)
    return arguments


def test_paths_of_own_files_serve_the_grid_and_the_claims(file, hifi, monkeypatch):
    copies = {"tasks/demo-entailment": "mytask.yaml", "methods/full-ft": "mymethod.yaml", "protocols/demo": "myprotocol.yaml"}
    for source, copy in copies.items():
        copy_yaml(hifi, source, copy)
    own = OWN.replace("protocol: demo", "protocol: myprotocol.yaml").replace("first: full-ft", "first: mymethod.yaml")
    Path("mine.yaml").write_text(own.replace("[demo-entailment,", "[mytask.yaml,"))
    answer = hifi("claims", "mine.yaml")
    command = (
        "hifi train --task mytask.yaml,demo-acceptability --method mymethod.yaml --backbone demo --protocol myprotocol.yaml"
    )
    assert answer.code == 0 and command in " ".join(answer.out.split()), answer.err
    arguments = write_runs_in_place_of_training(monkeypatch)
    answer = hifi("grid", "claims-mine.yaml", "--until-decided", "-j", "1")
    assert answer.code == 0 and answer.out.endswith("look 2  probing  supported\n"), answer.err
    assert {task for task, _, _ in arguments} == {"mytask.yaml", "demo-acceptability"}
    assert {(method, protocol) for _, method, protocol in arguments} == {
        ("mymethod.yaml", "myprotocol.yaml"),
        ("linear-probing", "myprotocol.yaml"),
    }
    table = json.loads(hifi("claims", "mine.yaml", "--format", "json").out)
    assert table["rows"][0]["cells"]["verdict"]["value"] == "supported (look 2 of 5 at 0.079 %)"


def test_looks_that_were_declared_go_on_with_other_first_seeds(file, hifi, monkeypatch):
    """As `hifi claims` prints the command, which has no --seeds."""
    write_runs_in_place_of_training(monkeypatch)
    command = ("grid", "claims-mine.yaml", "--until-decided", "--max-seeds", "6")
    answer = hifi(*command, "--seeds", "1-5")
    assert answer.code == 0 and "look 1 of 2" in answer.err, answer.err
    answer = hifi(*command)
    assert answer.code == 0 and not answer.out, answer.err
    answer = hifi(*command[:-1], "7")
    assert answer.code == 4 and "use --max-seeds 6" in answer.err


def test_no_look_is_taken_where_finished_runs_make_no_pair(file, hifi, monkeypatch):
    write_runs_in_place_of_training(monkeypatch, limited=True)
    answer = hifi("grid", "claims-mine.yaml", "--until-decided", "-j", "1")
    message = "no look is taken: claim probing has no runs to compare on demo-entailment, demo-acceptability (Full-FT above"
    assert answer.code == 3 and message in answer.err and not Path("results/claims").exists()


def test_runs_that_diverged_make_no_pair_and_end_no_looks(file, hifi, monkeypatch):
    write_runs_in_place_of_training(monkeypatch, status="diverged", metrics={}, scores=None, reason="the training loss is nan")
    command = ("grid", "claims-mine.yaml", "--until-decided", "-j", "1", "--max-seeds", "4")
    answer = hifi(*command)
    assert answer.code == 0 and answer.out == "look 1  probing  undecided\nlook 2  probing  undecided\n", answer.err
    assert "0 of 1 claims decided" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["claims-hifi", "--budget", "8h"], "require --until-decided"),
        (["claims-hifi", "--until-decided", "--budget", "8"], "a number of hours or minutes is required"),
        (["claims-hifi", "--until-decided", "--print"], "cannot be combined with --shard, --print or --force"),
        (["demo", "--until-decided"], "--until-decided is for a grid of claims"),
        (["claims-hifi", "--methods", "bitfit"], "claims define their own methods and tasks"),
    ],
)
def test_wrong_usage(hifi, words, message):
    answer = hifi("grid", *words)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1) and message in answer.err


def test_a_grid_of_claims_has_nothing_else(hifi):
    Path("both.yaml").write_text(yaml.safe_dump({"claims": "hifi", "table": "demo"}))
    assert "claims define their own runs" in hifi("grid", "both.yaml").err
    assert grid_spec.resolve(grid_spec.load("claims-ehft"), "g").claims_name == "ehft"
