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


UNEQUAL = "cells without a note on a search have the settings of the protocol: tuning is unequal"


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
