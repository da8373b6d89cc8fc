"""Tables of what finished runs took, beside Full-FT, and of the rows of the data."""

import itertools

import pytest
from json_output import table_of
from synthetic_runs import write_run

PLACE = {"protocol": "laptop", "backbone": "minilm"}


def write_costs(
    method, task, seed, time_s, *, device="CPU", threads=1, memory=100, stored=1000, **changes
):
    """A finished run of 3 epochs on a device."""
    provenance = {"command": ["hifi"], "hifi": "0", "git": None, "python": "3", "libraries": {}, "device": device, "threads": threads,
                  "platform": "Linux"}  # fmt: skip
    measured = {
        "time_s": time_s,
        "peak_memory_bytes": memory,
        "delta_bytes": stored,
        "provenance": provenance,
    }
    write_run("results", method, task, seed, 0.5, **PLACE, **measured, **changes)


def test_costs_are_those_of_the_runs_relative_to_full_ft_on_the_same_task_and_device(hifi):
    for seed in (1, 2):
        write_costs("full-ft", "rte", seed, 30.0)
        write_costs("full-ft", "cola", seed, 60.0)
        write_costs("full-ft", "sst2", seed, 10.0)
    write_costs("bitfit", "rte", 1, 15.0, memory=50, stored=10)
    write_costs("bitfit", "rte", 2, 21.0, memory=50, stored=10)
    write_costs("bitfit", "cola", 1, 60.0, memory=100, stored=30)
    write_costs("bitfit", "sst2", 1, 25.0, memory=50, stored=20)
    write_costs("lora", "mrpc", 1, 30.0)  # no run of Full-FT there
    write_costs("adapter", "rte", 1, 1.0, device="GPU")  # nor on that machine
    write_costs("bitfit", "cola", 2, 7.0, threads=4)  # nor with as many threads
    table = table_of(hifi("table cost --format json"))
    rows = {row["method"]: row for row in table["rows"]}
    assert [rows["full-ft"][key] for key in ("time", "memory", "stored")] == [1, 1, 1]
    assert rows["bitfit"]["time"] == pytest.approx(
        (18 / 30 + 60 / 60 + 25 / 10) / 3
    )  # per epoch; all have three
    assert rows["bitfit"]["memory"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert rows["bitfit"]["stored"] == pytest.approx((0.01 + 0.03 + 0.02) / 3)
    assert (
        rows["bitfit"]["stored_mb"] == pytest.approx(20e-6)
        and rows["bitfit"]["trained_percent"] == 4.0
    )
    assert rows["lora"]["time"] is None and rows["adapter"]["time"] is None
    (note,) = [note for note in table["notes"] if note.startswith("left out")]
    assert note.endswith(": Adapter; LoRA")
    text = hifi("table cost").out
    assert "│" not in text and " 0.020 " in text


def test_epochs_count_and_limited_few_shot_and_other_tasks_runs_do_not(hifi):
    write_costs("full-ft", "rte", 1, 30.0)
    write_costs("bitfit", "rte", 1, 60.0, epochs=6)
    write_costs("bitfit", "rte", 2, 1.0, limited=True, setting="limit")
    for method, seed in itertools.product(("full-ft", "bitfit"), (1, 2, 3)):
        write_costs(method, "rte", seed, 3.0 if method == "full-ft" else 15.0, shots=16)
        write_costs(method, "cola", seed, 3.0 if method == "full-ft" else 9.0)
    for words, ratio in ((["--tasks", "rte"], 1.0), (["--shots", "16"], 5.0), ([], 2.0)):
        table = table_of(hifi("table", "cost", *words, "--format", "json"))
        ratios = {row["method"]: row["time"] for row in table["rows"]}
        assert (ratios["full-ft"], ratios["bitfit"]) == (1.0, pytest.approx(ratio))


def test_rows_by_a_setting_are_beside_full_ft_which_has_none(hifi):
    write_costs("full-ft", "rte", 1, 30.0)
    write_costs("lora", "rte", 1, 10.0)
    heads = {"rank": "pagerank", "seed": None, "k": 1}
    write_costs("hifi-layerwise", "rte", 1, 15.0, heads=[[0]], keys={"heads": heads})
    table = table_of(hifi("table cost --by heads.k --format json"))
    assert {row["label"]: row["time"] for row in table["rows"]} == {
        "Full-FT": 1.0,
        "HiFi (layer-wise), heads.k=1": 0.5,
    }


def test_rows_by_a_setting_that_full_ft_has_are_beside_its_usual_run(hifi):
    usual = {"learning_rate": 1e-5}
    write_costs("full-ft", "rte", 1, 30.0, keys=usual)
    write_costs("lora", "rte", 1, 15.0, keys=usual)
    other = {"variant": "rate", "setting": "b"}
    write_costs("full-ft", "rte", 1, 60.0, keys={"learning_rate": 2e-5}, **other)
    # A search that held rows out has shorter epochs.
    fewer = {"n_examples": {"train": 4, "selection": 4, "reported": 4}}
    write_costs("lora", "rte", 1, 5.0, keys={"learning_rate": 2e-5}, **other, **fewer)
    table = table_of(hifi("table cost --by learning_rate --format json"))
    assert {row["label"]: row["time"] for row in table["rows"]} == {
        "Full-FT": 1.0,
        "Full-FT, learning_rate=1e-05": 1.0,
        "Full-FT, learning_rate=2e-05": 2.0,
        "LoRA, learning_rate=1e-05": 0.5,
        "LoRA, learning_rate=2e-05": None,
    }
    (note,) = [note for note in table["notes"] if note.startswith("left out")]
    assert note.endswith("numbers of threads: LoRA, learning_rate=2e-05")


def test_notes_on_costs_name_methods_of_the_table_alone(hifi):
    for method in ("full-ft", "bitfit", "lora", "adapter"):
        write_costs(method, "rte" if method in ("full-ft", "bitfit") else "cola", 1, 30.0)
    notes = table_of(hifi("table cost --methods bitfit,lora --format json"))["notes"]
    (note,) = [note for note in notes if note.startswith("left out")]
    assert note.endswith(": LoRA")
    notes = table_of(hifi("table cost --seeds 9 --format json"))["notes"]
    assert any(note.startswith("no finished run of these methods") for note in notes)


def test_hifis_table_1_has_the_printed_marks_beside_our_costs(hifi):
    write_costs("full-ft", "rte", 1, 30.0)
    write_costs("hifi-layerwise", "rte", 1, 27.0)
    rows = {row["method"]: row for row in table_of(hifi("table hifi-1 --format json"))["rows"]}
    marks = ["Extra param.", "Corrupt struc.", "Infer. delay", "Store cons."]
    assert [rows["adapter"][mark] for mark in marks] == ["✓", "✓", "✓", "×"]  # noqa: RUF001
    assert [rows["hifi-layerwise"][mark] for mark in marks] == ["×", "×", "×", "×"]  # noqa: RUF001
    assert rows["hifi-layerwise"]["time"] == pytest.approx(0.9)
    latex = hifi("table hifi-1 --format tex").out
    assert r"$\checkmark$" in latex
    assert latex.startswith("% in the preamble: \\usepackage{booktabs,amssymb}\n")


def test_table_4_names_the_data_that_are_not_at_hand(hifi, data):
    (note,) = table_of(hifi(f"table hifi-4 --data-dir {data} --format json"))["notes"]
    assert note.startswith("not counted, as no rows are here: QNLI, SST-2, MNLI-m, MNLI-mm, ")
    assert "RTE" not in note
    for words in ("--data-dir nowhere", "--data-dir nowhere --format json"):
        answer = hifi(f"table hifi-4 {words}")
        assert answer.code == 3 and "there is no directory nowhere (--data-dir)" in answer.err


def test_table_4_counts_the_data_at_hand(hifi, data):
    answer = hifi(f"table hifi-4 --data-dir {data} --published --format json")
    table = table_of(answer)
    train = {row["source"]: row for row in table["rows"] if row["label"] == "train"}
    assert (train["runs"]["rte"], train["published"]["rte"]) == (48, 2490)
