"""What a new user meets: wrong input is refused in one line, before a run and not during it."""

from pathlib import Path

import pytest
from tiny_inputs import QUICK, write_lines


@pytest.fixture
def dry_run(hifi, encoders, data):
    """The exit codes and messages of `train --dry-run` and of the real run with the same words."""

    def run(*words, method="full-ft"):
        run_words = ["--task", "rte", "--backbone", encoders["bert"], "--data-dir", data, "--method", method, *QUICK, *words]
        answers = [hifi("train", *run_words, *more) for more in (["--dry-run"], [])]
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


def test_a_dry_run_refuses_unknown_settings_without_the_encoder(hifi):
    answer = hifi("train", "--task", "rte", "--method", "lora", "--backbone", "no/such", "--dry-run", "settings.rank=9")
    assert answer.code == 2 and "rank" in answer.err


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        ("train.tsv", ["index\tpremise\tsentence2\tlabel", "0\ta\tb\tentailment"], "no column 'sentence1'"),
        ("dev.tsv", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tyes"], "unknown label 'yes'"),
        ("train.tsv", ["index,sentence1,sentence2,label", "0,a,b,entailment"], "write reader: csv under local"),
    ],
)
def test_a_dry_run_refuses_the_data_that_the_run_refuses(hifi, encoders, tmp_path, file, lines, message):
    good = ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"]
    for name in ("train.tsv", "dev.tsv"):
        write_lines(tmp_path / "data/RTE" / name, lines if name == file else good)
    words = ["train", "--task", "rte", "--method", "full-ft", "--backbone", encoders["bert"], "--data-dir", tmp_path / "data"]
    for more in (["--dry-run"], []):
        answer = hifi(*words, *more)
        assert answer.code == 2 and message in answer.err


def test_a_dry_run_names_missing_weights_tokenizers_and_gpus(hifi, encoders, data, tmp_path):
    def missing(*words):
        answer = hifi("train", "--task", "rte", "--method", "full-ft", "--data-dir", data, "--dry-run", *words)
        assert answer.code == 0, answer.err
        return "\n".join(line for line in answer.out.splitlines() if line.startswith("# missing"))

    folder = tmp_path / "encoder"
    folder.mkdir()
    for path in encoders["bert"].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    assert missing("--backbone", folder) == "# missing    nothing"
    assert "requires a GPU" in missing("--backbone", folder, "device=cuda:99")
    for path in folder.glob("tok*"):
        path.unlink()
    assert "no tokenizer in" in missing("--backbone", folder)
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in missing("--backbone", folder)


def test_a_dry_run_counts_the_rows_that_are_there(tiny):
    assert "2 epochs of 48 examples" in tiny("train", "--method", "full-ft", "--dry-run").out
    assert not Path("results").exists()
