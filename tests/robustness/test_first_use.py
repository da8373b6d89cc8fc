"""What a new user meets: wrong input is refused in one line, before a run and not during it."""

import json
import re
from pathlib import Path

import pytest
from synthetic_runs import write_run, write_search
from tiny_inputs import QUICK_WORDS, write_lines

from hifi_cli.config import registry
from hifi_cli.records.study import Study

pytestmark = pytest.mark.slow


@pytest.fixture
def dry_run(hifi, encoders, data):
    """The exit codes and messages of `train --dry-run` and of the real run with the same words."""

    def run(*words, method="full-ft"):
        where = f"--backbone {encoders['bert']} --data-dir {data}"
        line = f"train --task rte --method {method} {where}"
        answers = [hifi(line, *QUICK_WORDS, *words, *more) for more in (["--dry-run"], [])]
        return [answer.code for answer in answers], answers[0].out + answers[0].err, answers[1].err

    return run


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        ("lora", ["settings.rank=9"], "settings"),
        ("top-k", ["settings.k=9"], "the encoder has only 2 layers"),
        ("hifi-layerwise", ["heads.k=9"], "k=9: the encoder has only 4 heads in a layer"),
        ("full-ft", ["shots=100"], "100 shots require 200"),
        ("full-ft", ["primary_metric=f2"], "RTE has no 'f2'"),
        ("hifi-layerwise", ["--heads", "none.json"], "none.json"),
    ],
)
def test_a_dry_run_refuses_the_settings_that_the_run_refuses(dry_run, method, words, message):
    codes, planned, real = dry_run(*words, method=method)
    assert codes[0] == codes[1] > 0
    assert message in planned and message in real
    assert not Path("results/scores").exists()  # refused before minutes of scoring


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        (
            "train.tsv",
            ["index\tpremise\tsentence2\tlabel", "0\ta\tb\tentailment"],
            "no column 'sentence1'",
        ),
        ("dev.tsv", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tyes"], "unknown label 'yes'"),
        (
            "train.tsv",
            ["index,sentence1,sentence2,label", "0,a,b,entailment"],
            "the columns are index,sentence1",
        ),
    ],
)
def test_a_dry_run_refuses_the_data_that_the_run_refuses(
    hifi, encoders, tmp_path, file, lines, message
):
    good = ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"]
    for name in ("train.tsv", "dev.tsv"):
        write_lines(tmp_path / "data/RTE" / name, lines if name == file else good)
    where = f"--backbone {encoders['bert']} --data-dir {tmp_path}/data"
    for more in (["--dry-run"], []):
        answer = hifi(f"train --task rte --method full-ft {where}", *more)
        assert answer.code == 2 and message in answer.err
    assert not [*Path("results").rglob("config.yaml")]


def test_a_dry_run_names_a_missing_gpu(hifi, encoders, data):
    def missing(*words):
        where = f"--backbone {encoders['bert']} --data-dir {data}"
        answer = hifi(f"train --task rte --method full-ft {where} --dry-run", *words)
        assert answer.code == 0, answer.err
        return "\n".join(line for line in answer.out.splitlines() if line.startswith("# missing"))

    assert missing() == "# missing    nothing"
    assert "requires a GPU" in missing("device=cuda:99")


def test_a_search_has_a_table_and_runs_left_out_are_counted(hifi, tmp_path):
    for seed in (1, 2):
        write_search("results", "full-ft", "rte", [0.6, 0.7], seed)
    for words in (["table"], ["compare", "full-ft", "bitfit"]):
        answer = hifi(*words)
        assert (
            answer.code == 3
            and "no finished run in results but 4 of searches: hifi table search" in answer.err
        )
    assert hifi("report").code == 0
    assert (
        "Settings tried (protocol hifi, backbone bert-large)"
        in Path("results/report.html").read_text()
    )
    for method in ("full-ft", "bitfit"):
        for seed in (1, 2):
            write_run("results", method, "rte", seed, 0.5)
    for words in (["table"], ["compare", "full-ft", "bitfit"]):
        assert "4 runs of searches and other variants left out" in hifi(*words).out
    rate = "full-ft/learning_rate--2e-05"
    assert re.search(rf"{rate} +70\.0", hifi("table --by variant").out)
    assert re.search(rf"{rate} .* -20\.00", hifi("compare full-ft", rate).out)
    assert hifi("report").code == 0
    assert (
        "4 runs of searches and other variants left out" in Path("results/report.html").read_text()
    )


def test_a_conflict_is_found_before_any_run_trains_and_names_the_variant(finish_run, tiny):
    finish_run()
    answer = tiny("train --method bitfit,full-ft learning_rate=0.5")
    assert answer.code == 4 and "learning_rate" in answer.err and "variant=NAME" in answer.err
    assert not list(Path("results/runs").rglob("bitfit"))
    answer = tiny("train --method full-ft learning_rate=0.5 variant=fast")
    # The table without an option shows no variant, and refuses a directory that has no other run.
    assert answer.code == 0 and answer.err.endswith("next: hifi table --by variant\n")
    assert Study(Path("results")).runs["variant"].notna().sum() == 1


def test_a_refused_method_stops_a_list_before_any_training(hifi, encoders, data):
    where = f"--backbone {encoders['bert']} --data-dir {data}"
    line = f"train --task rte --method bitfit,top-k {where} settings.biases=all"
    answer = hifi(line, *QUICK_WORDS)
    assert answer.code == 2 and not list(Path("results").rglob("results.json"))
    assert "method top-k, settings" in answer.err


def test_the_command_of_a_missing_run_repeats_the_data_directory(hifi):
    write_run("results", "full-ft", "rte", 1, 0.6, backbone="bert-large")
    (missing,) = json.loads(hifi("table hifi-2 --data-dir 'glue data' --format json").out)[
        "missing"
    ]
    assert missing.endswith("hifi grid hifi-2 --data-dir 'glue data'")
    answer = hifi("claims hifi --data-dir glue_data")
    assert answer.code == 0 and "--data-dir glue_data" in answer.out


def test_ctrl_c_is_confirmed(hifi, monkeypatch):
    def interrupt(kind):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "names", interrupt)
    answer = hifi("ls methods")
    assert (answer.code, answer.err.strip()) == (130, "hifi: interrupted")
