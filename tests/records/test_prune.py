"""`hifi results prune`: weights go, and everything that is printed of a run stays."""

import json
import re

import pytest
from synthetic_runs import write_run

from hifi_cli.config.base import parse
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult


def write(root, method, task="rte", seed=1, **changes):
    """A finished run with weights of ten bytes."""
    folder = write_run("results", method, task, seed, 0.6, delta_sha256="d", **changes)
    (folder / "delta.safetensors").write_bytes(b"0123456789")
    return root / folder


@pytest.fixture
def study(tmp_path):
    """Runs of two methods with two seeds, and one of a search."""
    for method in ("full-ft", "lora"):
        for seed in (1, 2):
            write(tmp_path, method, seed=seed)
    write(tmp_path, "lora", seed=3, variant="rate--0.1")
    return tmp_path / "results"


def with_weights(study):
    return sorted(
        path.parent.relative_to(study).as_posix() for path in study.rglob("delta.safetensors")
    )


def test_nothing_goes_before_it_is_told_to(hifi, study):
    before = with_weights(study)
    answer = hifi("results prune results --methods full-ft")
    assert answer.code == 0 and with_weights(study) == before
    lines = answer.out.splitlines()
    assert [line.split()[-1] for line in lines[:2]] == [
        path for path in before if "full-ft" in path
    ]
    assert lines[-1] == "2 runs, 0.00 MB: nothing was removed; --yes removes the weights"
    assert not [*study.rglob("pruned.json")]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("--methods full-ft", "lora"),
        ("--variants", "seed[12]$"),
        ("--tasks rte --methods lora --seeds 1,2", "full-ft|rate"),
        ("results/runs/hifi/bert-large/rte/full-ft/seed1", "lora|full-ft/seed2"),
    ],
)
def test_named_or_selected_runs_lose_their_weights(hifi, study, words, left):
    expected = [path for path in with_weights(study) if re.search(left, path)]
    assert hifi(f"results prune results {words} --yes").code == 0
    assert with_weights(study) == expected


def test_quiet_prints_the_list_that_was_asked_for_and_no_report(hifi, study):
    words = "results prune results --methods lora"
    assert hifi(f"{words} --quiet").out == hifi(words).out != ""
    assert hifi(f"{words} --yes --quiet").out == ""


def test_a_run_that_another_process_writes_keeps_its_weights(hifi, study):
    before = with_weights(study)
    run = RunDirectory(study / "runs/hifi/bert-large/rte/full-ft/seed1")
    with run.hold() as is_held:
        assert is_held
        answer = hifi("results prune results --methods full-ft --yes")
    assert answer.code == 4 and "another process is writing" in answer.err
    assert with_weights(study) == before and not run.pruned.exists()


def test_tables_do_not_notice(hifi, study):
    before = hifi("table").out
    hifi("results prune results --methods full-ft,lora --yes")
    assert hifi("table").out == before


def test_a_run_that_another_one_starts_from_is_kept(hifi, study, tmp_path):
    start = "runs/hifi/bert-large/rte/full-ft/seed1"
    link = {"run": start, "config_hash": "h", "delta_sha256": "d"}
    write(tmp_path, "bitfit", task="cola", started_from=[link])
    answer = hifi("results prune results --methods full-ft --yes")
    assert answer.code == 0
    assert f"kept  {start}: runs/hifi/bert-large/cola/bitfit/seed1 starts from it" in answer.out
    assert start in with_weights(study) and "1 run, 0.00 MB" in answer.out


def test_so_is_one_that_an_unfinished_run_starts_from(hifi, study, tmp_path):
    folder = tmp_path / write_run("results", "bitfit", "mrpc", 1, 0.5)
    (folder / "results.json").unlink()
    start = "runs/hifi/bert-large/rte/lora/seed2"
    command = f"train --task mrpc --method bitfit --backbone bert-large start_from=results/{start} --dry-run"
    printed = hifi(command).out
    (folder / "config.yaml").write_text(printed.partition("\n\n")[0])
    answer = hifi("results prune results --methods lora --yes")
    assert answer.code == 0, answer.err
    assert f"kept  {start}: runs/hifi/bert-large/mrpc/bitfit/seed1 starts from it" in answer.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "either name runs, or select them"),
        ("results/runs/hifi/bert-large/rte/lora/seed1 --methods lora", 2, "either name runs"),
        ("results/runs/hifi/bert-large/rte/lora/seed9", 3, "is no finished run in results"),
        ("/tmp", 2, "/tmp is not in results"),
    ],
)
def test_wrong_words_remove_nothing(hifi, study, words, code, message):
    before = with_weights(study)
    answer = hifi(f"results prune results {words} --yes")
    assert (answer.code, with_weights(study)) == (code, before) and message in answer.err


def test_a_packed_study_has_no_weights(hifi, study):
    hifi("results pack results --out packed")
    answer = hifi("results prune packed --methods lora --yes")
    assert answer.code == 2 and "is a packed study, which has no weights" in answer.err


@pytest.mark.slow
def test_check_eval_and_merge_know_a_pruned_run(hifi, finish_run, tmp_path):
    run = finish_run("bitfit")
    checked = hifi("results check results --format json")
    assert json.loads(checked.out)["pruned"] == []
    assert hifi(f"results prune results {run} --yes").code == 0
    found = json.loads(hifi("results check results --format json").out)
    assert found["pruned"] == [run.relative_to(tmp_path / "results").as_posix()]
    assert found["findings"] == json.loads(checked.out)["findings"]
    refused = hifi(f"eval {run}")
    assert refused.code == 3 and "were dropped by hifi results prune" in refused.err
    assert hifi("results merge results --results-dir elsewhere").code == 0
    assert len(json.loads(hifi("results check elsewhere --format json").out)["pruned"]) == 1
    note = json.loads((run / "pruned.json").read_text())
    (run / "pruned.json").write_text(json.dumps({**note, "delta_sha256": "other"}))
    assert "pruned.json is of other weights" in hifi("results check results").out


def test_the_note_has_what_the_record_has(hifi, study):
    hifi("results prune results --methods lora --seeds 1 --yes")
    run = study / "runs/hifi/bert-large/rte/lora/seed1"
    record = parse(RunResult, json.loads((run / "results.json").read_text()), "record")
    note = json.loads((run / "pruned.json").read_text())
    assert note == {"delta_sha256": record.delta_sha256, "delta_bytes": record.delta_bytes}
