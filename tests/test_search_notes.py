"""What tables say about searches: what was searched, with how many trials, and whether tuning is equal."""

import json
import shlex
from pathlib import Path

import yaml
from hifi_cli.results.search_result import SearchResult
from json_output import table_of, tables_of
from project_files import copy_yaml
from synthetic_grids import write_cell
from synthetic_runs import method_search, write_run, write_search

from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_spec


def with_setting(folder, **keys):
    """A finished run whose configuration has these keys."""
    result = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**result, "config": {**result["config"], **keys}}))
    return folder


def chosen(cell):
    """The footnotes of a cell about searches; the others compare its settings with the protocol's."""
    return [note for note in cell.get("notes", []) if not note.startswith("not the protocol's: ")]


def notes_of(hifi):
    content = table_of(hifi("table", "--format", "json"))
    return {row["method"]: chosen(row["cells"]["rte"]) for row in content["rows"]}, content["notes"]


UNEQUAL = "settings were searched for some cells only, as their footnotes say: the others have given settings"


def test_tables_say_what_was_searched_and_with_what_budget(hifi):
    for method, rate in (("full-ft", 2e-5), ("bitfit", 1e-5)):
        with_setting(write_run("results", method, "rte", 1, 0.5), learning_rate=rate)
    assert notes_of(hifi) == ({"full-ft": [], "bitfit": []}, [])
    best = [0.6, 0.8, 0.7, 0.1]  # 2e-05 is chosen
    write_search("results", method_search("rte", "full-ft", best), method_search("rte", "bitfit", best))
    cells, notes = notes_of(hifi)
    budget = "4 of 12 settings of learning_rate (6 values from 1e-05 to 6e-05) and batch_size (16, 32), chosen on holdout"
    assert cells == {"full-ft": [f"setting chosen by search tuning: {budget}"], "bitfit": []} and UNEQUAL in notes
    write_search("results", method_search("rte", "full-ft", best), method_search("rte", "bitfit", best[1:]))
    cells, notes = notes_of(hifi)  # bitfit's chosen rate is now 1e-05
    assert cells["bitfit"] == [f"setting chosen by search tuning: {budget.replace('4 of 12', '3 of 12')}"]
    assert UNEQUAL not in notes
    SearchResult.path(Path("results"), "tuning", "hifi", "bert-large").unlink()
    write_search("results", method_search("rte", "full-ft", best), backbone="minilm")
    assert notes_of(hifi)[0] == {"full-ft": [], "bitfit": []}  # of another encoder
    write_search("results", method_search("cola", "full-ft", best))
    assert notes_of(hifi)[0] == {"full-ft": [], "bitfit": []}  # of another task


def test_one_setting_for_several_tasks_is_that_with_the_highest_mean(hifi):
    write_search(
        "results",
        method_search("rte", "full-ft", [0.6, 0.7, 0.5]),
        method_search("cola", "full-ft", [0.4, 0.1, 0.6]),
        method_search("rte", "bitfit", [0.2, 0.3, 0.1]),
        method_search("rte", "lora", [0.1, 0.2, 0.3]),
        method_search("cola", "lora", [0.2, 0.2, None]),
        varied={name: {"learning_rate": ["2e-05", "3e-05", "1e-05"]} for name in ("full-ft", "bitfit", "lora")},
    )
    table = table_of(hifi("table", "search", "--format", "json"))
    assert table["title"] == "Search tuning (protocol hifi, backbone bert-large)"
    rows: dict[str, list] = {"full-ft": [], "bitfit": [], "lora": []}
    for row in table["rows"]:
        values = [row["cells"][key]["value"] for key in ("rte", "cola", "mean", "best_on")]
        rows[row["method"]].append([round(value, 9) if isinstance(value, float) else value for value in values])
    assert rows == {
        "full-ft": [[60, 40, 50, ""], [70, 10, 40, "RTE"], [50, 60, 55, "CoLA, mean (at an end of the range)"]],
        "bitfit": [[20, None, None, ""], [30, None, None, "RTE"], [10, None, None, ""]],
        "lora": [[10, 20, 15, "CoLA"], [20, 20, 20, "mean"], [30, None, None, "RTE"]],
    }
    assert table["rows"][0]["label"] == "Full-FT, learning_rate=1e-05"
    assert "| diverged |" in hifi("table", "search", "--format", "md").out
    commands = [note for note in table["notes"] if "hifi train" in note]
    assert len(commands) == 2 and "--task rte,cola --method full-ft,lora " in commands[0]
    assert "--task rte --method bitfit " in commands[1], "it was not searched on CoLA"


def test_a_setting_chosen_over_tasks_is_named_in_cells_of_all_tasks(hifi):
    for task, rate in (("rte", 3e-5), ("cola", 3e-5), ("mrpc", 3e-5), ("sst2", 2e-5)):
        with_setting(write_run("results", "full-ft", task, 1, 0.5), learning_rate=rate)
    searches = [method_search("rte", "full-ft", [0.6, 0.7, 0.5]), method_search("cola", "full-ft", [0.4, 0.1, 0.6])]
    write_search("results", *searches, varied={"full-ft": {"learning_rate": ["1e-05", "2e-05", "3e-05"]}})
    (row,) = table_of(hifi("table", "--format", "json"))["rows"]
    notes = {task: chosen(cell) for task, cell in row["cells"].items() if task in ("rte", "cola", "mrpc", "sst2")}
    note = "setting chosen by search tuning over RTE and CoLA: 3 settings of learning_rate (1e-05, 2e-05, 3e-05), chosen on holdout"
    assert notes == {"rte": [note], "cola": [note], "mrpc": [note], "sst2": []}


def search_of_own_files(hifi):
    """A finished search over a task, a protocol and a method of the user's own, each in a YAML; the search's file."""
    for command, name in (
        ("tasks/demo-entailment", "mytask"),
        ("methods/full-ft", "mymethod"),
        ("protocols/demo", "myprotocol"),
    ):
        copy_yaml(hifi, command, f"{name}.yaml")
    content = {
        "protocol": "myprotocol.yaml",
        "backbone": "demo",
        "tasks": ["mytask.yaml", "demo-entailment"],
        "methods": ["mymethod.yaml"],
        "vary": {"learning_rate": [5.0e-4, 2.0e-3]},
        "config": {"epochs": 1},
    }
    Path("my-search.yaml").write_text(yaml.safe_dump(content))
    words = ("dropout=0.25", "selection=holdout", "batch_size=8")
    grid = grid_spec.resolve(grid_spec.load("my-search.yaml"), "my-search")
    for cell in grid_cells.cells(grid, words):
        write_cell(cell, Path("results"), score=0.9 if "0.002" in dict(cell.settings).values() else 0.2)
    answer = hifi("grid", "my-search.yaml", *words)
    assert answer.code == 0, answer.err
    return Path("results/grids/my-search/chosen-myprotocol-demo.json")


def test_a_search_keeps_what_it_set_for_every_run(hifi):
    """`-c` sets it as well, but not which scores chose; the footnote is about runs that have it."""
    file = search_of_own_files(hifi)
    of_all = {"epochs": "1", "dropout": "0.25", "selection": "holdout", "batch_size": "8"}
    assert [search["config"] for search in json.loads(file.read_text())["searches"]] == [of_all, of_all]
    words = ("--task", "demo-entailment", "--method", "mymethod.yaml", "--protocol", "myprotocol.yaml", "--dry-run")
    config = yaml.safe_load(hifi("train", *words, "-c", file).out)
    keys = ("epochs", "dropout", "batch_size", "learning_rate", "selection")
    assert [config[key] for key in keys] == [1, 0.25, 8, 0.002, "validation"]
    note = "set for every run: epochs=1 dropout=0.25 selection=holdout batch_size=8"
    assert note in table_of(hifi("table", "search", "--format", "json"))["notes"]


def test_a_run_without_what_the_search_set_has_no_footnote(hifi):
    folder = with_setting(write_run("results", "full-ft", "rte", 1, 0.5), learning_rate=1e-5)
    search = method_search("rte", "full-ft", [0.6, 0.5]).model_copy(update={"config": {"epochs": "1", "selection": "holdout"}})
    write_search("results", search)
    assert notes_of(hifi)[0] == {"full-ft": []}
    with_setting(folder, epochs=1)
    assert notes_of(hifi)[0]["full-ft"][0].startswith("setting chosen by search tuning: ")


def test_chosen_settings_are_for_their_protocol_and_backbone(hifi):
    file = search_of_own_files(hifi)
    words = ("train", "--task", "mytask.yaml", "--method", "mymethod.yaml", "--dry-run", "-c", file)
    answer = hifi(*words, "--protocol", "demo")
    expected = f"{file} holds settings chosen for protocol myprotocol, not demo: give --protocol myprotocol.yaml"
    assert answer.code == 2 and expected in answer.err
    answer = hifi(*words, "--protocol", "myprotocol.yaml", "--backbone", "minilm")
    assert answer.code == 2 and "settings chosen for backbone demo, not minilm: give --backbone demo" in answer.err


def test_settings_of_a_users_own_files_are_stored_by_name_and_the_printed_command_takes_them(hifi):
    stored = SearchResult.read(search_of_own_files(hifi))
    assert (stored.protocol, stored.backbone, [*stored.varied]) == ("myprotocol", "demo", ["mymethod"])
    assert [(search.task, search.method) for search in stored.searches] == [
        ("mytask", "mymethod"),
        ("demo-entailment", "mymethod"),
    ]
    (command,) = [note for note in table_of(hifi("table", "search", "--format", "json"))["notes"] if "hifi train" in note]
    words = shlex.split(command.partition(": hifi ")[2])
    assert words[words.index("--task") + 1] == "mytask.yaml,demo-entailment"
    answer = hifi(*words, "--dry-run")
    assert answer.code == 0 and answer.out.count("learning_rate: 0.002") == 2, answer.err
    earlier = method_search("mytask.yaml", "mymethod.yaml", [0.5])  # a file of an earlier version
    path = write_search("results", earlier, protocol="myprotocol.yaml", backbone="demo")
    words[words.index("--task") + 1], words[-1] = "mytask.yaml", str(path)
    assert hifi(*words, "--dry-run").code == 0


def test_a_search_is_shown_for_some_tasks_and_methods_only(hifi):
    searches = [method_search(task, method, [0.6, 0.7]) for task in ("rte", "cola") for method in ("full-ft", "lora")]
    write_search("results", *searches)
    write_search("results", method_search("mrpc", "full-ft", [0.5]), backbone="minilm")

    def shown(*words):
        answer = hifi("table", "search", "--format", "json", *words)
        assert answer.code == 0, answer.err
        tables = tables_of(answer)
        return [([*table["rows"][0]["cells"]], {row["method"] for row in table["rows"]}) for table in tables]

    assert shown("tuning", "--tasks", "rte", "--methods", "lora") == [(["rte", "seeds", "best_on"], {"lora"})]
    assert shown("--backbone", "minilm") == shown("--tasks", "mrpc") == [(["mrpc", "seeds", "best_on"], {"full-ft"})]
    answer = hifi("table", "search", "tuning", "--tasks", "rtee")
    assert answer.code == 3 and "no finished search of task 'rtee'; there are searches of cola, mrpc, rte" in answer.err
    answer = hifi("table", "search", "--backbone", "minilm", "--methods", "lora")
    assert answer.code == 3 and "no finished search has all of these" in answer.err


def test_a_search_that_is_not_there_is_missing(hifi):
    answer = hifi("table", "search", "demo-search")
    assert answer.code == 3 and "hifi grid demo-search makes it" in answer.err
    assert hifi("table", "search").code == 3
