"""Bad input that is large, endless, deep or of the wrong type: one line that names it, a documented exit code, little memory."""

import json
import os
import resource
from pathlib import Path

import pytest
import yaml
from hifi_processes import call_hifi, run_copy
from synthetic_runs import write_run
from tiny_inputs import QUICK
from transformers import AutoModel

from hifi_cli.models.encoder import Encoder

pytestmark = pytest.mark.slow

ROOM = 1 << 30  # bytes of address space; a tiny run takes less


def said(answer, code):
    """The one line of a refusal."""
    assert answer.code == code, (answer.code, answer.err)
    (line,) = [line for line in answer.err.splitlines() if line.startswith("hifi: ")]
    assert "unexpected" not in line, line
    assert len(line) < 1000
    return line


def bounded(*commands, cwd, room=ROOM):
    """Commands in one process with little memory, which must end in time: their exit codes and what they say."""
    ended = run_copy(one_after_another, commands, room, cwd=cwd)
    assert "unexpected" not in ended.stderr and "Traceback" not in ended.stderr, ended.stderr[-500:]
    return [int(line) for line in ended.stdout.splitlines()], ended.stderr


def one_after_another(commands, room):
    """Run commands with little memory beside what this process has, and print their exit codes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
    for words in commands:
        try:
            call_hifi(words)
        except SystemExit as stopped:
            print(stopped.code)


TRAIN = ("train", "--task", "rte", "--method", "full-ft", "--backbone", "bert-base", "--dry-run")


@pytest.mark.parametrize(
    ("words", "bound"),
    [
        (("--seeds", "1-999999999"), "at most 100,000 distinct numbers"),
        (("--seeds", "1-50000,60000-110001"), "at most 100,000 distinct numbers"),
        (("--seeds", "9" * 5000), "at most 100,000 distinct numbers"),
        (("--seeds", "4294967296"), "seed: Input should be less than or equal to 4294967295"),
        (("-c", "/dev/zero"), "/dev/zero is not a regular file"),
        (("-c", "pipe"), "pipe is not a regular file"),
        (("-c", "."), ". is not a regular file"),
        (("-c", "large.yaml"), "large.yaml is larger than 1,048,576 bytes"),
        (("scoring.seed=1" + "0" * 30,), "scoring.seed: Input should be less than or equal to 4294967295"),
        (("max_length=1" + "0" * 30,), "max_length: Input should be less than or equal to 1000000000"),
        (("task_head.width=1" + "0" * 9,), "task_head.width: Input should be less than or equal to 65536"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_too_much_is_refused_with_its_bound(hifi, tmp_path, words, bound):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.yaml").write_text(" " * (1 << 20) + "\n")
    assert bound in said(hifi(*TRAIN, *words), 2)


def test_endless_input_is_refused_in_little_memory(tmp_path):
    commands = [(*TRAIN, "--seeds", "1-999999999"), (*TRAIN, "-c", "/dev/zero")]
    assert bounded(*commands, cwd=tmp_path)[0] == [2, 2]


def test_a_small_parquet_file_of_much_text_is_refused_in_little_memory(tmp_path):
    """4 GB of text in a few kilobytes, as one text that is repeated."""
    import pyarrow
    from pyarrow import parquet

    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 4000, pyarrow.int32()), ["word " * 200_000])
    table = pyarrow.table({"text": texts, "label": ["a", "b"] * 2000})
    parquet.write_table(table, tmp_path / "bomb.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    words = ("train", "--task", "bomb.parquet", "--method", "bitfit", "--backbone", "bert-base", "--dry-run")
    codes, errors = bounded(words, cwd=tmp_path, room=5 << 29)
    assert codes == [2] and "bomb.parquet holds more than 1,073,741,824 bytes, the maximum for such a file" in errors


@pytest.mark.parametrize("word", ["heads=&a {given: *a}", "heads.given=&a [*a]", "settings=&a [*a]", "file"])
def test_yaml_that_contains_itself_is_refused(hifi, word):
    Path("mine.yaml").write_text("scoring: &a\n  samples: *a\n")
    said(hifi(*TRAIN, *(["-c", "mine.yaml"] if word == "file" else [word])), 2)
    Path("mine.yaml").write_text("scoring: &a {samples: 7}\nheads: {k: &b 2, damping: 0.5, seed: *b}\n")
    answer = hifi(*TRAIN, "-c", "mine.yaml")
    assert answer.code == 0 and "samples: 7" in answer.out and "seed: 2" in answer.out


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_of_more_tokens_than_there_are_positions_is_refused(hifi, encoders, tmp_path, family):
    """The tiny encoders have 40 positions; RoBERTa begins after the padding token's."""
    bound = Encoder(AutoModel.from_pretrained(encoders[family])).max_tokens
    assert (bound < 40) == (family != "bert")
    rows = [f"{'the dog ' * (99 if at == 7 else 1)}{at},{at % 2}\n" for at in range(40)]
    (tmp_path / "long.csv").write_text("".join(["text,label\n", *rows]))
    words = ["train", "--task", "long.csv", "--method", "bitfit", "--backbone", encoders[family], *QUICK]
    message = said(hifi(*words, "max_length=1000000", "inputs=text"), 2)
    assert f"positions for {bound}; set max_length={bound}" in message
    assert hifi(*words, f"max_length={bound}", "inputs=text").code == 0


def test_betas_are_below_1(hifi):
    message = said(hifi(*TRAIN, "adam_betas=[1,1]"), 2)
    assert "adam_betas.0: Input should be less than 1, not 1" in message


def test_the_runs_of_a_grid_are_counted_before_they_are_made(hifi, tmp_path):
    values = list(range(1, 101))
    content = {"protocol": "hifi", "backbone": "bert-base", "tasks": ["rte"], "methods": ["full-ft"]}
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({**content, "vary": dict.fromkeys(("epochs", "batch_size", "log_every"), values)})
    )
    assert "1,000,000 runs; one command has at most 100,000" in said(hifi("grid", "mine.yaml", "--print"), 2)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**content, "seeds": [10**30]}))
    assert "seeds.0: Input should be less than or equal to 4294967295" in said(hifi("grid", "mine.yaml", "--print"), 2)
    assert "--shard" in said(hifi("grid", "demo", "--print", "--shard", f"1/{'9' * 5000}"), 2)
    assert hifi("grid", "demo", "--print", "-j", "1000000000").code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--task", ",", "--method", "full-ft", "--backbone", "bert-base", "--dry-run"),
        ("train", "--task", "rte", "--method", " , ", "--backbone", "bert-base", "--dry-run"),
        ("grid", "demo", "--tasks", ",", "--print"),
        ("grid", "demo", "--method", ",", "--print"),
        ("table", "--tasks", ","),
        ("report", "--tables", ","),
        ("figure", "hifi-4", "--task", ","),
    ],
    ids=" ".join,
)
def test_a_list_without_a_name_is_an_error(hifi, words):
    line = said(hifi(*words), 2)
    option = words[[word.strip() for word in words].index(",") - 1]
    assert "'' is not a name" in line
    assert option.removesuffix("s") in line


def test_a_text_of_100_megabytes_is_refused(finish_run, tmp_path):
    """By its length, before it is tokenized."""
    run = finish_run()
    with (tmp_path / "long.tsv").open("w") as file:
        file.write("sentence1\tsentence2\nthe dog\t" + "the dog " * (100 << 17) + "\n")
    os.mkfifo(tmp_path / "pipe.tsv")
    predict = ("predict", run)
    codes, err = bounded((*predict, "long.tsv"), (*predict, "pipe.tsv"), cwd=tmp_path)
    assert codes == [2, 2], err
    assert "long.tsv, line 2: sentence2 has 104,857,600 characters; the limit is 1,000,000" in err
    assert "pipe.tsv is not a regular file" in err


def test_a_module_that_no_memory_holds_is_told(tiny, monkeypatch):
    """In torch's own words; the real allocation is left out: a machine may overcommit."""
    from hifi_cli.methods.adapter import Adapter

    words = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 128 bytes."

    def fail(*_, **__):
        raise RuntimeError(words)

    monkeypatch.setattr(Adapter, "prepare", fail)
    assert "not enough memory" in said(tiny("train", "--method", "adapter"), 1)


def change(path, **changes):
    """Edit a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


SCORES = {"last": 0.5, "best": 0.5, "max": 0.5}
WRONG_RESULTS = [
    {"scores": {**SCORES, "best": float("nan")}},
    {"scores": {**SCORES, "best": float("inf")}},
    {"scores": {**SCORES, "best": "0.5"}},
    {"scores": {"best": 0.5}},
    {"scores": [0.5]},
    {"scores": None},
    {"metrics": {"accuracy": "high"}},
    {"params": {"trainable": 1, "trainable_backbone": 1, "total": 0}},
    {"params": "many"},
    {"epochs": "three"},
    {"epochs": {"total": None}},
    {"seed": "one"},
    {"seed": True},
    {"method": None},
    {"task": ["rte"]},
    {"report": "first"},
    {"status": "finished"},
    {"collapsed": "no"},
    {"data": "mine"},
    {"data_origin": {"train": ["x"]}},
    {"time_s": "long"},
    {"provenance": {"command": "hifi"}},
    {"provenance": None},
]


@pytest.mark.parametrize("changes", WRONG_RESULTS, ids=lambda changes: str(changes)[:60])
def test_results_of_wrong_types_are_named(hifi, tmp_path, changes):
    for method in ("full-ft", "bitfit"):
        run = write_run(tmp_path / "results", method, "rte", 1, 0.5)
        (run / "config.yaml").touch()
    change(run / "results.json", **changes)
    (key,) = changes
    for command in (("table",), ("report",), ("compare", "full-ft", "bitfit")):
        line = said(hifi(*command), 2)
        assert str(run.relative_to(tmp_path) / "results.json") in line
        assert "is damaged (" in line
        assert key in line
    answer = hifi("ls", "runs")
    assert answer.code == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines()] == ["state", "damaged", "done"]


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    "content", [DEEP, '{"a":' * 200_000, "9" * 5000, '{"seed": ' + "9" * 5000 + "}", "[]", "\xff"], ids=lambda text: text[:12]
)
def test_files_that_are_no_json_are_named(hifi, tmp_path, content):
    run = write_run(tmp_path / "results", "full-ft", "rte", 1, 0.5)
    (run / "config.yaml").touch()
    (run / "results.json").write_text(content, encoding="latin-1")
    for command in ("table", "report"):
        assert "results.json is not a" in said(hifi(command), 2)
    assert hifi("ls", "runs").out.splitlines()[1].startswith("damaged")


def test_damaged_predictions_and_results_of_a_run_are_named(finish_run, hifi, data, tmp_path):
    run = finish_run()
    kept = (run / "predictions.jsonl").read_bytes()
    lines = kept.splitlines(keepends=True)
    damaged = {
        kept[: len(lines[0]) + 20]: "line 2",
        lines[0] + DEEP.encode(): "line 2",
        b"[1]\n": "line 1: no JSON object",
        lines[0] + b'{"id": "1"}\n': "line 2: 'label' is missing",
        **{
            lines[0] + json.dumps({**json.loads(lines[1]), "logits": logits}).encode() + b"\n": "line 2: logits"
            for logits in ("x", [1.0], [None, 1.0])
        },
        b"\xff": "damaged",
        lines[0]: "does not hold the predictions of this split",
        b"": "does not hold the predictions of this split",
    }
    for content, why in damaged.items():
        (run / "predictions.jsonl").write_bytes(content)
        line = said(hifi("eval", run, "--data-dir", data), 2)
        assert "predictions.jsonl" in line and why in line
    (run / "predictions.jsonl").unlink()
    assert "predictions.jsonl" in said(hifi("eval", run, "--data-dir", data), 3)
    (run / "predictions.jsonl").write_bytes(kept)
    change(run / "results.json", data="x")
    assert "results.json is damaged (data" in said(hifi("export", run, "--to", "out", "--data-dir", data), 2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("header", [DEEP, "[1]", "5", "{}", '{"method": 3}', '{"x": 1}'])
def test_wrong_metadata_of_a_delta_is_one_line(tmp_path, header):
    from safetensors.numpy import save_file

    from hifi_cli.errors import UsageError
    from hifi_cli.models import delta

    save_file({}, tmp_path / "delta.safetensors", metadata={"hifi": header})
    with pytest.raises(UsageError, match=r"not a delta|missing|unknown key|should be") as caught:
        delta.load(tmp_path / "delta.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [DEEP, "[]", "[1", "null", '{"model_type": 3}'], ids=lambda text: text[:12])
def test_a_backbone_whose_configuration_is_none_is_named(hifi, encoders, data, tmp_path, content):
    import shutil

    shutil.copytree(encoders["bert"], tmp_path / "mine")
    (tmp_path / "mine" / "config.json").write_text(content)
    line = said(hifi("train", "--task", "rte", "--method", "full-ft", "--backbone", "mine", "--data-dir", data), 3)
    assert "mine" in line
