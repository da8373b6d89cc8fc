"""Damaged and hostile files are named in one line, and nothing hangs or takes all memory."""

import json
import os
import shutil
import signal
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml
from finished_runs import read_json
from json_output import printed
from pyarrow import parquet
from run_folders import run_folder
from safetensors.torch import load_file, save_file

from hifi_cli.config import registry
from hifi_cli.digests import file_digest
from hifi_cli.errors import UsageError
from hifi_cli.files import read_file
from hifi_cli.models.encoder_files import encoder_digest


@pytest.fixture(autouse=True)
def _in_a_minute():
    """What hangs fails."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(answer, *said, code=2):
    assert answer.code == code, answer
    others = ("warning: ", "note: ")
    (line,) = (line for line in answer.err.splitlines() if not line.startswith(others))
    for text in said:
        assert str(text) in line
    assert "report it" not in line


def with_digest(run):
    """Let the record say that its delta is the one that is there."""
    record = read_json(run / "results.json")
    record["delta_sha256"] = file_digest(run / "delta.safetensors")
    (run / "results.json").write_text(json.dumps(record))


# --- deltas


def header(content):
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


DELTAS = {
    "a pickle": lambda content: b"\x80\x04\x95" + content[:100],
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"0" * 10,
    "overlapping": lambda content: (
        header({n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"}) + bytes(8)
    ),
    "overflowing": lambda content: (
        header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}) + bytes(8)
    ),
    "far away": lambda content: (
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [2**62, 2**62 + 8]}}) + bytes(8)
    ),
    "a long header": lambda content: struct.pack("<Q", 2**60) + content[8:],
}


@pytest.mark.parametrize("kind", DELTAS)
def test_a_damaged_delta_is_named(hifi, finish_run, data, kind):
    run = finish_run()
    delta = run / "delta.safetensors"
    delta.write_bytes(DELTAS[kind](delta.read_bytes()))
    with_digest(run)
    Path("new.tsv").write_text("sentence1\tsentence2\na\tb\n")
    for words in (
        ["eval", run, "--data-dir", data],
        ["predict", run, "new.tsv"],
        ["export", run, "--to", "model", "--data-dir", data],
    ):
        refused(hifi(*words), "delta.safetensors is damaged")
    assert not Path("model").exists()


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_not_finite_are_not_exported(hifi, finish_run, data, value):
    run = finish_run()
    delta = run / "delta.safetensors"
    tensors = load_file(delta)
    next(iter(tensors.values())).view(-1)[0] = float(value)
    save_file(tensors, delta)
    with_digest(run)
    refused(hifi("export", run, "--to", "model", "--data-dir", data), "is not finite")
    assert not Path("model").exists()


def test_an_encoder_that_is_not_finite_is_not_exported(hifi, tiny, encoders, data):
    folder = Path(shutil.copytree(encoders["bert"], "encoder"))
    words = ["--method", "bitfit", "--backbone", folder, "limit=16", "epochs=1"]
    assert tiny("train", *words).code == 0
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][-1, 0] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    run = run_folder(backbone="encoder", method="bitfit")
    record = read_json(run / "results.json")
    record["backbone_weights"] = encoder_digest(folder)
    (run / "results.json").write_text(json.dumps(record))
    refused(hifi("export", run, "--to", "model", "--data-dir", data), "is not finite")


# --- pipes, devices and files without an end


def be_pipe(path):
    os.mkfifo(path)


def be_device(path):
    path.symlink_to("/dev/zero")


def be_folder(path):
    path.mkdir()


def be_endless(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


SPECIAL = [be_pipe, be_device, be_folder, be_endless]


@pytest.mark.parametrize("become", SPECIAL)
def test_a_record_that_is_no_usual_file_is_named(hifi, finish_run, become):
    run = finish_run()
    (run / "results.json").unlink()
    become(run / "results.json")
    for words in (["table"], ["ls", "runs"], ["results", "merge", "results", "--results-dir", "x"]):
        answer = hifi(*words)
        assert answer.code in (0, 2, 3), answer  # a listing of runs also has unfinished ones
        lines = answer.err.splitlines()
        assert len([line for line in lines if not line.startswith("left out: ")]) <= 1
        assert "results.json is" in answer.err
    answer = hifi("results check")
    assert answer.code in (1, 2, 3) and "report it" not in answer.err
    assert not Path("x/runs").exists()


@pytest.mark.parametrize("become", SPECIAL)
@pytest.mark.parametrize("name", ["delta.safetensors", "predictions.jsonl", "metrics.jsonl"])
def test_merge_copies_usual_files_alone(hifi, finish_run, become, name):
    run = finish_run()
    (run / name).unlink()
    become(run / name)
    if become is be_endless:
        pytest.skip("a sparse file is a usual one, and copied as such")
    refused(hifi("results merge results --results-dir x"), name)
    assert not Path("x/runs").exists()


@pytest.mark.parametrize("become", SPECIAL)
def test_a_configuration_that_is_no_usual_file_is_named(tiny, become):
    become(Path("settings.yaml"))
    refused(tiny("train --method bitfit -c settings.yaml"), "settings.yaml")


@pytest.mark.parametrize("become", SPECIAL)
def test_heads_that_are_no_usual_file_are_named(tiny, become):
    become(Path("heads.json"))
    refused(tiny("train --method hifi-layerwise --heads heads.json"), "heads.json")


def test_a_link_to_a_record_is_read_and_not_merged(hifi, finish_run):
    """Links to files elsewhere are how git-annex and scratch disks keep results."""
    run = finish_run()
    shutil.move(run / "results.json", "elsewhere.json")
    (run / "results.json").symlink_to(Path("elsewhere.json").resolve())
    assert hifi("table").code == 0
    refused(hifi("results merge results --results-dir x"), "is a link")


def test_a_file_that_is_larger_than_its_kind_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(b"text")
    assert read_file(tmp_path / "a", 4) == b"text"
    with pytest.raises(UsageError, match="larger than such files are"):
        read_file(tmp_path / "a", 3)


# --- records and packed studies


@pytest.mark.parametrize("config", [{"a": {"b": 1}}, {}, {"task": "rte", "method": "lora"}])
def test_a_configuration_that_is_none_is_named_with_its_key(hifi, finish_run, config):
    run = finish_run()
    assert hifi("results pack results --out packed").code == 0
    line = json.loads(Path("packed/runs.jsonl").read_text())
    line["record"]["config"] = config
    Path("packed/runs.jsonl").write_text(json.dumps(line) + "\n")
    refused(hifi("results merge packed --results-dir x"), "config: ", "is missing")
    assert not Path("x/runs").exists()
    answer = hifi("results check packed")
    assert answer.code == 1 and "config: " in answer.out and "is missing" in answer.out
    record = read_json(run / "results.json") | {"config": config}
    (run / "results.json").write_text(json.dumps(record))
    refused(hifi("eval", run), "config: ", "is missing")


def test_a_record_of_a_later_version_is_read(hifi, finish_run):
    run = finish_run()
    record = read_json(run / "results.json")
    record["config"] |= {"a_later_key": 1}
    (run / "results.json").write_text(json.dumps(record))
    assert hifi("table").code == 0


def test_a_packed_study_without_predictions_lacks_a_file(hifi, finish_run):
    finish_run()
    assert hifi("results pack results --out packed").code == 0
    Path("packed/predictions.parquet").unlink()
    answer = hifi("results check packed")
    assert answer.code == 1 and "no file packed/predictions.parquet" in answer.out
    merge = ("results", "merge", "packed", "--results-dir", "x")
    refused(hifi(*merge), "no file packed/predictions.parquet", code=3)
    assert not Path("x").exists()


# --- size bombs


def many_rows(path):
    parquet.write_table(pa.table({"text": ["a"] * 3_000_000, "label": [1] * 3_000_000}), path)


def many_zeros(path):
    parquet.write_table(
        pa.table({"text": ["0" * 400_000_000], "label": [1]}), path, compression="zstd"
    )


def a_repeated_text(path):
    places = pa.array(np.zeros(2_000, dtype=np.int32))
    texts = pa.DictionaryArray.from_arrays(places, pa.array(["x" * 500_000]))
    table = pa.table({"text": texts, "label": [1] * 2_000})
    parquet.write_table(table, path, compression="zstd", store_schema=False)


def many_columns(path):
    parquet.write_table(pa.table({f"c{number}": [1] for number in range(20_000)}), path)


BOMBS = [
    many_rows,
    pytest.param(many_zeros, marks=pytest.mark.slow),
    many_columns,
    a_repeated_text,
]


@pytest.mark.parametrize("write", BOMBS)
def test_a_parquet_file_that_declares_too_much_is_refused(hifi, finish_run, write):
    write("data.parquet")
    refused(hifi("ls data.parquet"), "data.parquet", "no file of data is like that")
    run = finish_run()
    refused(hifi("predict", run, "data.parquet"), "data.parquet", "no file of data is like that")
    assert hifi("results pack results --out packed").code == 0
    shutil.copy("data.parquet", "packed/predictions.parquet")
    assert hifi("results check packed").code in (1, 2)


def test_a_table_of_many_columns_is_refused(hifi):
    line = "\t".join(f"c{number}" for number in range(1_000_000))
    Path("data.tsv").write_text("\n".join([line] * 10) + "\n")
    refused(hifi("ls data.tsv"), "1,000,000 columns")


@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 10**7}, {"hidden_size": 2**17, "num_attention_heads": 1}]
)
@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_an_encoder_that_declares_too_much_is_refused(tiny, encoders, change, words):
    folder = Path(shutil.copytree(encoders["bert"], "encoder"))
    content = read_json(folder / "config.json") | change
    (folder / "config.json").write_text(json.dumps(content))
    answer = tiny("train --method bitfit --backbone", folder, *words)
    if words:
        assert answer.code == 0 and "config.json describes" in answer.out
    else:
        refused(answer, "config.json describes", code=3)


# --- YAML

YAMLS = {
    "a part of itself": ("settings: &a {b: *a}\n", "contains itself"),
    "a list of itself": ("settings: {a: &a [*a]}\n", "contains itself"),
    "a key twice": ("epochs: 1\nepochs: 2\n", "the key 'epochs' is there twice"),
    "an inner key twice": ("heads: {k: 1, k: 2}\n", "the key 'k' is there twice"),
    "a huge text": (f"settings: {{a: {'x' * 2**21}}}\n", "larger than such files are"),
}


@pytest.mark.parametrize("kind", YAMLS)
def test_a_hostile_yaml_is_named(tiny, kind):
    text, said = YAMLS[kind]
    Path("settings.yaml").write_text(text)
    refused(tiny("train --method bitfit -c settings.yaml"), "settings.yaml", said)


def test_a_merged_key_may_be_replaced(tmp_path):
    content = b"a: &a {k: 1, l: 2}\nb: {<<: *a, k: 3}\n"
    assert registry.parse_yaml(content, tmp_path)["b"] == {"k": 3, "l": 2}


@pytest.mark.parametrize(
    "text", ["1e5", "1E5", "010", "1:30", "1.5e3", "+.5", "2024-01-01", "0x1F", "yes", "1_0", "-.5"]
)
def test_a_text_that_looks_like_a_number_is_written_and_read_as_a_text(text, tmp_path):
    """YAML 1.1 and 1.2 take different texts for numbers."""
    written = registry.yaml_text({"labels": [text]})
    assert registry.parse_yaml(written.encode(), tmp_path) == {"labels": [text]}
    assert yaml.safe_load(written) == {"labels": [text]}


# --- what is printed


def labelled(hifi, run, label):
    """A run of a method of others, whose own YAML has this label."""
    record = read_json(run / "results.json") | {"method": "mine"}
    record["config"]["method"] = "mine"
    (run / "results.json").write_text(json.dumps(record))
    moved = run.parents[1] / "mine/seed1"
    moved.parent.mkdir()
    shutil.move(run, moved)
    (moved / "own/methods").mkdir(parents=True)
    method = yaml.safe_load(hifi("ls methods/full-ft").out) | {"label": label}
    (moved / "own/methods/mine.yaml").write_text(yaml.safe_dump(method))
    return moved


def test_a_text_of_a_run_is_no_formula_in_csv(hifi, finish_run):
    formula = '=HYPERLINK("http://x","y")'
    run = labelled(hifi, finish_run(), formula)
    record = read_json(run / "results.json") | {"status": "diverged", "reason": "@SUM(A1)"}
    diverged = run.with_name("seed2")
    shutil.copytree(run, diverged)
    record["seed"] = record["config"]["seed"] = 2
    (diverged / "results.json").write_text(json.dumps(record))
    assert hifi("table --format csv").code == 0
    assert hifi("table --format csv --out table.csv").code == 0
    assert "'=HYPERLINK" in "".join(pd.read_csv("table.csv")["label"])
    assert formula in hifi("table --format md").out.replace("\\", "")
    listed = hifi("ls runs --format csv").out
    Path("runs.csv").write_text(listed)
    runs = pd.read_csv("runs.csv")
    assert "'@SUM(A1)" in set(runs["detail"])
    assert runs["score"].dropna().gt(0).all()


def test_the_users_own_texts_and_negative_numbers_stay_in_csv(hifi, finish_run):
    finish_run()
    rows = [{"method": "full-ft", "label": "+ all weights", "published": "none"}]
    spec = {"protocol": "hifi", "backbone": "tiny-bert", "rows": rows, "columns": ["rte"]}
    Path("mine.yaml").write_text(yaml.safe_dump(spec))
    assert hifi("table mine.yaml --format csv --out t.csv").code == 0
    assert "+ all weights" in set(pd.read_csv("t.csv")["label"])
    assert "'-" not in hifi("ls runs --format csv").out


def test_markdown_has_no_links_of_a_run_and_no_text_turns_around(hifi, finish_run):
    label = "[x](javascript:alert) \\[y](javascript:alert) \u202egpj.exe\u2066"
    labelled(hifi, finish_run(), label)
    for form in ("text", "md", "tex", "csv", "json"):
        out = hifi("table --format", form).out
        assert "\u202e" not in out and "\u2066" not in out and "\\u202e" not in out, form
    from markdown_it import MarkdownIt

    html = MarkdownIt().enable("table").render(hifi("table --format md").out)
    assert "javascript" in html and "<a" not in html
    assert printed(hifi("table --format json"))
