"""`hifi grid --trials`: as many settings for every method of a search, and what is stored about it."""

import threading
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import yaml
from finished_runs import read_json
from synthetic_grids import cells, write_cell

from hifi_cli.config.sources import override_value
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_spec, scheduler, search
from hifi_cli.results.directory import RunState, RunStatus
from hifi_cli.results.record import EpochMetrics
from hifi_cli.results.search_result import MethodSearch, SearchResult, SettingScore


def search_grid(tmp_path, methods, **keys):
    path = tmp_path / "mine.yaml"
    content = {"tasks": ["demo-entailment"], "protocol": "demo", "backbone": "demo", "methods": methods, "vary": VARIED}
    path.write_text(yaml.safe_dump({**content, **keys}, sort_keys=False))
    return str(path)


VARIED = {"learning_rate": [1.0e-4, 2.0e-4, 5.0e-4, 1.0e-3], "batch_size": [8, 16, 32]}
ON_HOLDOUT = "selection=holdout"


def test_trials_give_every_method_as_many_settings(tmp_path):
    """Methods with the same keys get the same settings, and more trials contain those of fewer."""
    methods = {"full-ft": {}, "bitfit": {}, "hifi-layerwise": {"heads.k": [1, 2]}}
    name = search_grid(tmp_path, methods, seeds=[1, 2])
    settings = {}
    for count in (1, 5, 12):
        drawn = cells(ON_HOLDOUT, name=name, trials=count)
        assert len(drawn) == 3 * count * 2
        settings[count] = {method: {cell.settings for cell in drawn if cell.method == method} for method in methods}
        assert {len(values) for values in settings[count].values()} == {count}
        assert settings[count]["full-ft"] == settings[count]["bitfit"]
    assert all(settings[1][method] < settings[5][method] < settings[12][method] for method in methods)
    every = {tuple(zip(VARIED, map(override_value, values), strict=True)) for values in product(*VARIED.values())}
    assert settings[12]["full-ft"] == every  # 4 x 3 settings
    assert len({dict(setting)["learning_rate"] for setting in settings[5]["full-ft"]}) > 1
    assert [cell.settings for cell in cells(ON_HOLDOUT, name=name, methods=["full-ft"], trials=12)] == [
        cell.settings for cell in cells(name=name, methods=["full-ft"])
    ]  # in the grid's order


@pytest.mark.parametrize(
    ("keys", "words", "message"),
    [
        ({}, ["--trials", "2"], "add selection=holdout"),
        ({"config": {"report": "max"}}, ["--trials", "2", "selection=holdout"], "add report=best"),
        ({"config": {"report": "max"}}, ["--trials", "2"], "add selection=holdout report=best"),
        ({"methods": {"full-ft": {}, "bitfit": {"epochs": [1, 2]}}}, ["--trials", "13"], "(full-ft has 12): use --trials 12"),
        ({"vary": {}}, ["--trials", "2"], "no key varies"),
        ({"trials": 13}, [], "full-ft has 12"),
        ({"trials": 0}, [], "greater than or equal to 1"),
    ],
)
def test_unequal_trials_or_a_choice_on_the_reported_split_are_refused(hifi, tmp_path, keys, words, message):
    search_grid(tmp_path, **{"methods": {"full-ft": {}}, **keys})
    answer = hifi("grid", "mine.yaml", "--print", *words)
    assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1


def test_few_shot_searches_choose_on_other_train_rows(hifi, tmp_path):
    name = search_grid(tmp_path, {"full-ft": {}}, config={"shots": 4})
    assert len(cells(name=name, trials=2)) == 2


def test_a_search_stores_what_it_searched(tmp_path):
    name = search_grid(tmp_path, {"full-ft": {}, "bitfit": {}})
    grid = grid_spec.resolve(grid_spec.with_changes(grid_spec.load(name), {"trials": 2}), "mine")
    statuses = {cell: write_cell(cell, tmp_path) for cell in grid_cells.cells(grid, [ON_HOLDOUT])}
    for cell, run_status in statuses.items():
        result = run_status.result.model_copy(update={"selection": "holdout"})
        statuses[cell] = RunStatus(RunState.DONE, result=result)
        cell.run_directory(tmp_path).append_metrics(EpochMetrics(epoch=2, selection=0.4, accuracy=0.9))
    backwards = dict(reversed(statuses.items()))  # as they happened to finish
    search.result(grid, list(statuses), backwards, tmp_path).write(tmp_path / "chosen.json")
    stored = SearchResult.read(tmp_path / "chosen.json")
    texts = {key: list(map(override_value, values)) for key, values in VARIED.items()}
    assert (stored.trials, stored.splits, stored.varied) == (2, ["holdout"], {"full-ft": texts, "bitfit": texts})
    assert [len(method.tried) for method in stored.searches] == [2, 2]
    first, second = (tried.setting for tried in stored.searches[0].tried)
    assert [first, second] == [dict(cell.settings) for cell in list(statuses)[:: len(grid.seeds)][:2]]
    assert stored.searches[0].chosen.setting == first, "of equal settings the first in the grid's order"


def test_ehfts_searches_are_those_of_its_text():
    """Sections 3.2 and 3.3; the order of a grid is ours."""

    def tried(name):
        settings = {}
        for cell in cells(name=name):
            changed = {"learning_rate": cell.config.learning_rate, **cell.config.settings}
            settings.setdefault(cell.method, set()).add(tuple(changed[key.split(".")[-1]] for key, _ in cell.settings))
        return settings

    assert tried("ehft-search") == {
        "mixout": set(product((0.7, 0.8, 0.9), (1e-5, 2e-4))),
        "child-tuning-d": {(0.1,), (0.2,), (0.3,)},
        "top-k": {(3,), (6,), (12,)},
    }
    rates = {(5e-3,), (1e-3,), (1e-4,), (5e-4,)}
    assert tried("ehft-search-rates") == dict.fromkeys(("linear-probing", "bitfit", "lora", "prefix-tuning"), rates)
    assert {cell.task for cell in cells(name="ehft-search-rates")} == {"rte", "boolq"}


def test_the_last_shard_of_a_search_chooses_among_the_runs_of_all(hifi):
    chosen = Path("results/grids/demo-search/chosen-demo-demo.json")
    words = ("grid", "demo-search", "--methods", "full-ft")
    all_cells = cells(name="demo-search", methods=["full-ft"])
    (first,), (second,) = (grid_cells.shard(all_cells, part) for part in ("1/2", "2/2"))
    write_cell(first, Path("results"), score=0.9)
    answer = hifi(*words, "--shard", "1/2")
    assert answer.code == 0 and not chosen.exists()
    assert "no setting is chosen yet: 1 of 2 runs are left to other shards" in answer.err
    write_cell(second, Path("results"), score=0.2)
    answer = hifi(*words, "--shard", "2/2")
    assert answer.code == 0 and "90.00 (20.00 to 90.00 over 2 settings, 1 seed)" in answer.out
    assert read_json(chosen)["searches"][0]["chosen"]["setting"] == dict(first.settings)


def test_choices_on_other_examples_are_refused_before_anything_trains(hifi):
    for cell in cells(name="demo-search", methods=["full-ft"]):
        write_cell(cell, Path("results"))
    assert hifi("grid", "demo-search", "--methods", "full-ft").code == 0
    before = sorted(Path("results/runs").rglob("results.json"))
    assert before and hifi("grid", "demo-search", "--methods", "full-ft", ON_HOLDOUT, "--force").code == 4
    assert sorted(Path("results/runs").rglob("results.json")) == before, "refused before --force deletes runs"
    answer = hifi("grid", "demo-search", "--methods", "bitfit", ON_HOLDOUT)
    assert answer.code == 4 and "a search with every setting on validation, not every setting on holdout" in answer.err
    assert not list(Path("results/runs").rglob("bitfit"))


def test_no_setting_is_chosen_for_a_method_with_failed_runs(hifi, monkeypatch):
    def run(self, *_):
        for cell in self.progress.cells:
            if cell.method == "bitfit" and not self.progress.failed:
                self.progress.failed[cell] = "killed"
            else:
                self.progress.finish(cell, write_cell(cell, Path("results")))
        return self.progress

    monkeypatch.setattr(scheduler.Scheduler, "run", run)
    answer = hifi("grid", "demo-search", "--methods", "full-ft,bitfit")
    assert answer.code == 1 and "demo-entailment, bitfit: no setting is chosen, 1 run failed" in answer.err
    chosen = Path("results/grids/demo-search/chosen-demo-demo.json")
    assert [search["method"] for search in read_json(chosen)["searches"]] == ["full-ft"]
    chosen.unlink()
    answer = hifi("grid", "demo-search", "--methods", "full-ft,bitfit", "--shard", "1/1")
    assert answer.code == 1 and "demo-entailment, bitfit: no setting is chosen, 1 run failed" in answer.err
    assert [search["method"] for search in read_json(chosen)["searches"]] == ["full-ft"]


def test_searches_that_finish_at_the_same_moment_keep_each_others_choices(tmp_path, monkeypatch):
    path = tmp_path / "chosen.json"
    have_read = threading.Barrier(2, timeout=1)
    merge = SearchResult.with_earlier

    def merge_slowly(self, path):
        merged = merge(self, path)
        with suppress(threading.BrokenBarrierError):  # the other one waits for the lock
            have_read.wait()
        return merged

    monkeypatch.setattr(SearchResult, "with_earlier", merge_slowly)
    setting = SettingScore(setting={"learning_rate": "1"}, score=0.5, seeds=1)
    results = [
        SearchResult(
            grid="g",
            protocol="hifi",
            backbone="b",
            searches=[MethodSearch(task=task, method="full-ft", chosen=setting, tried=[setting])],
        )
        for task in ("rte", "cola")
    ]
    threads = [threading.Thread(target=result.merge_into, args=[path]) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {search.task for search in SearchResult.read(path).searches} == {"rte", "cola"}
