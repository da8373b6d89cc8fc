"""39 edits of a results directory, and what finds each of them: `hifi results check`, `hifi table`, or nothing."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from run_folders import demo_folder

from hifi_cli.config.run_config import config_hash_of
from hifi_cli.config.sources import resolve

pytestmark = pytest.mark.slow

TASK = demo_folder().parents[1]
RUN = TASK / "bitfit/seed1"
OTHER_SEED = TASK / "bitfit/seed2"
OTHER_METHOD = TASK / "linear-probing/seed1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four finished runs on the demo's data: two methods, two seeds."""
    from hifi_cli.runs import run as runs
    from hifi_cli.runs.workspace import Workspace

    directory = tmp_path_factory.mktemp("trained") / "results"
    workspace = Workspace(directory)
    for method in ("bitfit", "linear-probing"):
        for seed in (1, 2):
            config = resolve(
                task="demo-entailment",
                method=method,
                backbone=None,
                protocol="demo",
                seed=seed,
                overrides=["epochs=2"],
            )
            runs.run(config, workspace)
    return directory


# --- how a record is edited


def text_of(run):
    return (run / "results.json").read_text()


def record_of(run):
    return json.loads(text_of(run))


def store(run, record):
    (run / "results.json").write_text(json.dumps(record))


def edit(run=RUN, **keys):
    """Set keys of a record."""
    store(run, record_of(run) | keys)


def edit_inner(outer, **keys):
    """Set keys of a part of a record."""
    record = record_of(RUN)
    store(RUN, record | {outer: record[outer] | keys})


def edit_config(**keys):
    """Set keys of a configuration and of its record, with the hashes that belong to them."""
    record = record_of(RUN)
    config = record["config"] | keys
    without_seed = {key: value for key, value in config.items() if key != "seed"}
    known = {key: value for key, value in keys.items() if key in record}
    hashes = {
        "config_hash": config_hash_of(config),
        "setting_hash": config_hash_of(without_seed),
    }
    store(RUN, record | known | hashes | {"config": config})


def replace_text(old, new):
    """Replace a text of results.json that stands there."""
    text = text_of(RUN)
    assert old in text
    (RUN / "results.json").write_text(text.replace(old, new, 1))


def predictions_of(run=RUN):
    return [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]


def store_predictions(rows):
    (RUN / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def claim_score(value):
    """Say the same score wherever the record has the one of its best epoch."""
    record = record_of(RUN)
    best = record["epochs"]["best"]
    lines = record["epoch_metrics"]
    for line in lines:
        line["accuracy"] = min(line["accuracy"], value)
        if line["epoch"] == best:
            line["accuracy"] = value
    last = lines[-1]["accuracy"]
    store(
        RUN,
        record
        | {
            "metrics": {"accuracy": value},
            "scores": {"last": last, "best": value, "max": value},
            "epoch_metrics": lines,
        },
    )
    written = (RUN / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in written if '"epoch"' not in line]
    epochs = [json.dumps({"epoch": at["epoch"], "accuracy": at["accuracy"]}) for at in lines]
    (RUN / "metrics.jsonl").write_text("\n".join([*steps, *epochs]) + "\n")


# --- the edits


def swap_methods():
    for name in ("results.json", "config.yaml"):
        kept = (RUN / name).read_bytes()
        (RUN / name).write_bytes((OTHER_METHOD / name).read_bytes())
        (OTHER_METHOD / name).write_bytes(kept)


def cut_predictions(also_count):
    store_predictions(predictions_of()[:150])
    if also_count:
        edit_inner("n_examples", reported=150)


def hide_collapse():
    rows = predictions_of()
    for row in rows:
        row["prediction"], row["logits"] = "entailment", [1.0, 0.0]
    store_predictions(rows)
    claim_score(sum(row["label"] == "entailment" for row in rows) / len(rows))


def labels_from_predictions():
    rows = predictions_of()
    for row in rows:
        row["label"] = row["prediction"]
    store_predictions(rows)
    claim_score(1.0)


def copies_of_right_rows():
    rows = predictions_of()
    right = [row for row in rows if row["label"] == row["prediction"]]
    wrong = [at for at, row in enumerate(rows) if row["label"] != row["prediction"]]
    for at, row in zip(wrong, right, strict=False):
        rows[at] = row
    store_predictions(rows)
    claim_score(1.0)


def predictions_from_labels():
    rows = predictions_of()
    for row in rows:
        row["prediction"] = row["label"]
    store_predictions(rows)
    claim_score(1.0)


def delete_predictions():
    (RUN / "predictions.jsonl").unlink()
    claim_score(0.95)


def rate_in_config_yaml():
    path = RUN / "config.yaml"
    text = path.read_text()
    assert "learning_rate: 0.006" in text
    path.write_text(text.replace("learning_rate: 0.006", "learning_rate: 0.0006"))


def counts_of_one():
    edit_inner("params", trainable=1, stored=1)
    edit(time_s=1.0)


def everything_together():
    rows = predictions_of()
    for row in rows:
        row["prediction"] = row["label"]
        is_first = row["label"] == "entailment"
        row["logits"] = [1.0, 0.0] if is_first else [0.0, 1.0]
    store_predictions(rows)
    claim_score(1.0)
    edit_inner("classes", predicted=record_of(RUN)["classes"]["labels"])


def add_byte_order_mark():
    path = RUN / "results.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def first_epoch_higher():
    record = record_of(RUN)
    record["epoch_metrics"][0]["accuracy"] = 0.99
    store(RUN, record)


def learning_rate_without_hash():
    edit(config=record_of(RUN)["config"] | {"learning_rate": 0.5})


EDITS = {
    # what `check` finds
    "the score alone": (lambda: edit_inner("scores", best=0.99), "check"),
    "the maximum": (lambda: edit_inner("scores", max=0.99), "check"),
    "the last score": (lambda: edit_inner("scores", last=0.99), "check"),
    "epochs": (lambda: edit_config(epochs=6), "check"),
    "a run as another seed's": (
        lambda: shutil.copytree(RUN, OTHER_SEED, dirs_exist_ok=True),
        "check",
    ),
    "two methods swapped": (swap_methods, "check"),
    "the precision": (
        lambda: edit(config=record_of(RUN)["config"] | {"precision": "bf16"}),
        "check",
    ),
    "the selection": (lambda: edit(selection="holdout"), "check"),
    "the rate without its hash": (learning_rate_without_hash, "check"),
    "the hash": (lambda: edit(config_hash="0" * 16), "check"),
    "NaN": (lambda: replace_text('"accuracy": 0', '"accuracy": NaN, "was": 0'), "check"),
    "Infinity": (lambda: replace_text('"best": 0.', '"best": Infinity, "was": 0.'), "check"),
    "1e400": (lambda: replace_text('"best": 0.', '"best": 1e400, "was": 0.'), "check"),
    "a key twice": (lambda: replace_text('"collapsed"', '"time_s": 3.5, "collapsed"'), "check"),
    "a Cyrillic letter": (lambda: edit_config(method="b\u0456tfit"), "check"),
    "a byte order mark": (add_byte_order_mark, "check"),
    "fewer predictions": (lambda: cut_predictions(False), "check"),
    "fewer predictions and rows": (lambda: cut_predictions(True), "check"),
    "negative counts": (lambda: edit_inner("params", trainable=-1, trainable_backbone=-1), "check"),
    "a collapse that is none": (lambda: edit(collapsed=True), "check"),
    "a hidden collapse": (hide_collapse, "check"),
    "the limit": (lambda: edit(limit=100), "check"),
    "the protocol's name": (lambda: edit_config(protocol="hifi"), "check"),
    "an escape character": (lambda: edit_config(variant="\x1b[2J"), "check"),
    "right labels": (labels_from_predictions, "check"),
    "rows twice": (copies_of_right_rows, "check"),
    "predictions": (predictions_from_labels, "check"),
    "rows to train on": (lambda: edit_inner("n_examples", train=450), "check"),
    "no predictions": (delete_predictions, "check"),
    "another seed's weights": (
        lambda: shutil.copy(RUN / "delta.safetensors", OTHER_SEED / "delta.safetensors"),
        "check",
    ),
    "config.yaml": (rate_in_config_yaml, "check"),
    "truncated rows": (
        lambda: edit_inner("truncated", train=-5, reported=1_000_000_000),
        "check",
    ),
    "sizes of one": (counts_of_one, "check"),
    "an epoch's score": (first_epoch_higher, "check"),
    # what stands below a table
    "the precision at the top": (lambda: edit(precision="bf16"), "check"),
    "the data's digest": (lambda: edit(data={"train": "0" * 64, "validation": "1" * 64}), "table"),
    "the weights' digest": (lambda: edit(backbone_weights="0" * 64), "table"),
    "a seed less": (lambda: shutil.rmtree(RUN), "table"),
    # what only the trained model can tell
    "predictions, logits and scores together": (everything_together, "nothing"),
}


def test_all_but_one_of_the_edits_are_found():
    counts = Counter(finder for _, finder in EDITS.values())
    assert counts == {"check": 35, "table": 3, "nothing": 1}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_a_record_is_found(hifi, trained, name):
    shutil.copytree(trained, "results")
    before = hifi("table --protocol demo")
    assert hifi("results check").code == 0
    make, finder = EDITS[name]
    make()
    answer = hifi("results check")
    assert (answer.code == 1) == (finder == "check"), answer
    if answer.code:
        assert f"{TASK.relative_to('results')}/" in answer.out
        assert "\x1b" not in answer.out + answer.err
    table = hifi("table --protocol demo")
    if finder == "table":
        added = set(table.out.splitlines()) - set(before.out.splitlines())
        assert any("left out" in line or "of 2 seeds" in line for line in added), table.out
    if finder == "nothing":
        assert table.code == 0


DAMAGES = {
    "byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "cut off": lambda content: content[: len(content) // 2],
    "not UTF-8": lambda content: content[:40] + b"\xff\xfe" + content[40:],
    "empty": lambda content: b"",
    "a list": lambda content: b"[]",
}


@pytest.mark.parametrize(
    "file", ["results.json", "predictions.jsonl", "config.yaml", "metrics.jsonl"]
)
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_hides_no_other_finding(hifi, trained, how, file):
    shutil.copytree(trained, "results")
    edit(OTHER_METHOD, collapsed=True)
    found = f"{OTHER_METHOD.relative_to('results')}: collapsed is True"
    path = RUN / file
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    answer = hifi("results check")
    assert answer.code == 1
    assert found in answer.out
    if (how, file) != ("byte order mark", "config.yaml"):  # which YAML allows
        assert f"{RUN.relative_to('results')}: " in answer.out


def test_a_number_too_long_for_one_reader_hides_no_other_finding(hifi, trained):
    shutil.copytree(trained, "results")
    edit(OTHER_METHOD, collapsed=True)
    replace_text('"collapsed"', f'"unknown": {"9" * 5000}, "collapsed"')
    answer = hifi("results check")
    assert answer.code == 1
    assert f"{OTHER_METHOD.relative_to('results')}: collapsed is True" in answer.out


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_run_is_left_out_by_name(hifi, trained, how):
    shutil.copytree(trained, "results")
    (RUN / "results.json").write_bytes(DAMAGES[how]((RUN / "results.json").read_bytes()))
    name = str(RUN.relative_to("results"))
    for words in (
        ["table"],
        ["compare", "bitfit", "linear-probing"],
        ["claims", "hifi", "--protocol", "demo", "--backbone", "demo"],
        ["report"],
    ):
        answer = hifi(*words)
        assert answer.code == 0, answer
        told = [line for line in answer.err.splitlines() if name in line]
        assert len(told) == 1, answer
        assert told[0].startswith("left out: 1 damaged run: ")
        page = answer.out
        if words == ["report"]:
            page = Path("results/report.html").read_text()
        assert "left out: 1 damaged run: " in " ".join(page.split())
    runs = json.loads(hifi("ls runs --format json").out)
    assert Counter(run["state"] for run in runs) == {"done": 3, "damaged": 1}


@pytest.mark.parametrize("content", ["{", ""])
def test_damaged_predictions_leave_the_other_runs_measures(hifi, trained, content):
    shutil.copytree(trained, "results")
    (RUN / "predictions.jsonl").write_text(content)
    for command in ("table per-class", "results pack results --out again"):
        assert "predictions.jsonl" in hifi(command).err
    answer = hifi("table --metrics score,nll")
    assert answer.code == 0, answer
    assert "predictions of 1 run" in answer.err
    assert "1 of 2 seeds" in answer.out
    assert hifi("report").code == 0


def test_damaged_predictions_of_a_packed_study_are_named_once(hifi, trained):
    shutil.copytree(trained, "results")
    assert hifi("results pack results --out packed").code == 0
    Path("packed/predictions.parquet").write_bytes(b"x")
    answer = hifi("table --metrics score,nll --results-dir packed")
    (line,) = answer.err.splitlines()
    assert line.startswith(
        "left out: predictions of all runs: packed/predictions.parquet is damaged"
    )
    assert answer.code == 0 and "no nll stored" in answer.out
    checked = hifi("results check packed")
    # No run is said to be wrong, as the file is none.
    text = "hifi: predictions.parquet cannot be read, so that no score was recomputed\n"
    assert (checked.code, checked.err) == (1, text)


def test_the_deltas_digest_is_compared_with_the_file_on_the_disk(hifi, trained):
    shutil.copytree(trained, "results")
    shutil.copy(RUN / "delta.safetensors", OTHER_SEED / "delta.safetensors")
    answer = hifi("results check")
    assert "seed2: delta.safetensors is not the file that the run wrote" in answer.out
    for delta in TASK.rglob("delta.safetensors"):
        delta.unlink()
    assert hifi("results check").code == 0  # weights stay where they were trained


def test_a_packed_studys_damaged_line_is_one_finding(hifi, trained):
    shutil.copytree(trained, "results")
    edit(OTHER_METHOD, collapsed=True)
    assert hifi("results pack results --out packed").code == 0
    lines = Path("packed/runs.jsonl").read_text().splitlines()
    Path("packed/runs.jsonl").write_text("\n".join(["{", lines[0], *lines]))
    answer = hifi("results check packed")
    assert answer.code == 1
    assert "runs.jsonl, line 1: is damaged" in answer.out
    assert "runs.jsonl, line 3: is damaged" in answer.out  # the same run a second time
    assert "linear-probing/seed1: collapsed is True" in answer.out
    assert hifi("table --results-dir packed").code == 0
    Path("packed/predictions.parquet").write_bytes(b"x")
    answer = hifi("results check packed")
    damaged = [line for line in answer.out.splitlines() if "predictions.parquet" in line]
    assert len(damaged) == 1


def test_a_run_of_which_no_score_follows_is_named(hifi, trained):
    shutil.copytree(trained, "results")
    assert json.loads(hifi("results check --format json").out)["not_recomputed"] == {}
    (RUN / "predictions.jsonl").unlink()
    answer = hifi("results check")
    name = RUN.relative_to("results")
    assert f"{name}: has no predictions, and a score" in answer.out
    assert f"{name}: note: score not recomputed: no predictions are stored" in answer.out
    checked = json.loads(hifi("results check --format json").out)
    assert checked["recomputed"] == 3
    assert list(checked["not_recomputed"]) == [str(name)]
