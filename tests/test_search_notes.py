"""What tables say about searches: what was searched, with how many trials, and whether tuning is equal."""

import json
from pathlib import Path

import yaml
from synthetic_runs import config_hash, method_search, write_run, write_search

from hifi_cli.files import with_checksum
from hifi_cli.records.search_result import SearchResult


def with_setting(folder, **keys):
    """A finished run whose configuration has these keys."""
    config = {**yaml.safe_load((folder / "config.yaml").read_text()), **keys}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    result = json.loads((folder / "results.json").read_text())
    result["config_hash"] = config_hash(config)
    result.pop("checksum")
    (folder / "results.json").write_text(json.dumps(with_checksum(result)))


def notes_of(hifi):
    content = json.loads(hifi("table", "--format", "json").out)
    return {row["name"]: row["cells"]["rte"].get("notes", []) for row in content["rows"]}, content["notes"]


UNEQUAL = "a search chose the setting of the cells with such a note only; where others were tuned less, a comparison is unequal"


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
        varied={name: {"learning_rate": ["1e-05", "2e-05", "3e-05"]} for name in ("full-ft", "bitfit", "lora")},
    )
    tables = {table["title"]: table for table in json.loads(hifi("table", "search", "--format", "json").out)}
    over_tasks = {title: table for title, table in tables.items() if "over tasks" in title}
    assert len(tables) == 7 and [title.split(":")[1].split(" over")[0] for title in over_tasks] == [" Full-FT", " LoRA"]
    (full, lora) = over_tasks.values()
    values = [
        [cell["value"] if isinstance(cell["value"], str | None) else round(cell["value"], 9) for cell in row["cells"].values()]
        for row in full["rows"]
    ]
    best = "highest mean, at an end of the range"
    assert values == [[50.0, 60.0, 40.0, None], [40.0, 70.0, 10.0, None], [55.0, 50.0, 60.0, best]]
    means, *_, marks = zip(*([cell["value"] for cell in row["cells"].values()] for row in lora["rows"]), strict=True)
    assert means == (15.0, 20.0, None) and marks == (None, "highest mean", None)


def test_a_setting_chosen_over_tasks_is_named_in_cells_of_all_tasks(hifi):
    for task, rate in (("rte", 3e-5), ("cola", 3e-5), ("mrpc", 3e-5), ("sst2", 2e-5)):
        with_setting(write_run("results", "full-ft", task, 1, 0.5), learning_rate=rate)
    searches = [method_search("rte", "full-ft", [0.6, 0.7, 0.5]), method_search("cola", "full-ft", [0.4, 0.1, 0.6])]
    write_search("results", *searches, varied={"full-ft": {"learning_rate": ["1e-05", "2e-05", "3e-05"]}})
    (row,) = json.loads(hifi("table", "--format", "json").out)["rows"]
    notes = {task: cell.get("notes", []) for task, cell in row["cells"].items() if task in ("rte", "cola", "mrpc", "sst2")}
    note = "setting chosen by search tuning over RTE and CoLA: 3 settings of learning_rate (1e-05, 2e-05, 3e-05), chosen on holdout"
    assert notes == {"rte": [note], "cola": [note], "mrpc": [note], "sst2": []}
