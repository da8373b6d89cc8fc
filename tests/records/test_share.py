"""`hifi results pack`, `merge`, `push` and `pull`: what comes from others does no harm, and nothing is overwritten."""

import json
import shutil
from pathlib import Path
from uuid import UUID

import pandas as pd
import pytest
from finished_runs import read_json
from huggingface_hub.utils import filter_repo_objects
from project_files import copy_yaml
from run_folders import run_folder
from synthetic_runs import flatten, write_run

from hifi_cli.config.registry import read_yaml
from hifi_cli.records import share
from hifi_cli.records.listing import read_results
from hifi_cli.records.study import Study

RUN = run_folder("")
FILES = {"config.yaml", "metrics.jsonl", "predictions.jsonl", "delta.safetensors", "results.json"}


def files_of(folder):
    """Every file below a folder with its content, lock files left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


def names(folder):
    return {path.name for path in (Path(folder) / RUN).iterdir()}


def change(run, **keys):
    path = Path(run) / "results.json"
    path.write_text(json.dumps(read_json(path) | keys))


# --- packed studies


def without_directory(record):
    """A record as another machine gets it: of the encoder's directory, which is not there, the name is left."""
    backbone = record["config"]["backbone"]
    place = f"elsewhere/{Path(backbone['path']).name}"
    return record | {"config": record["config"] | {"backbone": backbone | {"path": place}}}


def test_a_packed_study_holds_every_record_and_prediction_and_no_weights(hifi, finish_run):
    assert hifi("results pack results").code == 3
    for method in ("full-ft", "bitfit"):
        finish_run(method)
    answer = hifi("results pack results")
    assert (answer.code, answer.out) == (0, "results-packed\n")
    assert sorted(files_of("results-packed")) == ["predictions.parquet", "runs.jsonl"]
    stored, packed = Study(Path("results")), Study(Path("results-packed"))
    shared = {path: without_directory(record) for path, record in stored.records.items()}
    assert packed.records == shared and list(packed.records) == sorted(stored.records)
    for path in stored.records:
        pd.testing.assert_frame_equal(packed.predictions(path), stored.predictions(path))
        assert len(packed.predictions(path)) == stored.records[path]["n_examples"]["reported"]
    run = f"results-packed/{next(iter(packed.records))}"
    answer = hifi("eval", run)
    assert answer.code == 3
    assert f"{run} holds no run with its weights: results-packed is a packed study" in answer.err
    assert hifi("results pack results-packed --out again").code == 0
    assert files_of("again") == files_of("results-packed")
    answer = hifi("results pack results")
    assert answer.code == 2 and "results-packed exists" in answer.err


def test_runs_that_differ_in_their_seed_share_one_configuration_in_memory(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5)
    write_run("results", "full-ft", "rte", 2, 0.5)
    first, second = Study(Path("results")).results.values()
    assert first.config == {**second.config, "seed": 1}
    assert first.config["backbone"] is second.config["backbone"]


def test_a_seed_that_is_none_is_refused_beside_a_valid_configuration(hifi):
    """Equal configurations are checked once, and the seed of each."""
    write_run("results", "full-ft", "rte", 1, 0.5)
    for seed, wrong in enumerate([-1, 2**32, "two", None], start=2):
        run = write_run("results", "full-ft", "rte", seed, 0.5)
        change(
            run, config={**json.loads((run / "results.json").read_text())["config"], "seed": wrong}
        )
    study = Study(Path("results"))
    assert len(study.results) == 1
    assert len(study.damaged) == 4
    assert all("seed" in reason for reason in study.damaged.values())


def test_a_packed_study_is_merged_as_runs(hifi, finish_run):
    run = finish_run()
    assert hifi("results pack results --out packed").code == 0
    assert hifi("results merge packed --results-dir mine").code == 0
    assert names("mine") == FILES - {"metrics.jsonl", "delta.safetensors"}
    record = read_json(run / "results.json")
    assert read_json(Path("mine") / RUN / "results.json") == without_directory(record)
    assert (Path("mine") / RUN / "predictions.jsonl").read_bytes() == (
        run / "predictions.jsonl"
    ).read_bytes()
    assert hifi("train", "-c", Path("mine") / RUN / "config.yaml", "--dry-run").code == 0
    for words in (
        ["merge", "results", "--results-dir", "packed"],
        ["push", "hub:owner/shared", "--results-dir", "packed"],
    ):
        assert hifi("results", *words).code == 2
    table = pd.read_parquet("packed/predictions.parquet")
    table.assign(label="[").to_parquet("packed/predictions.parquet")
    answer = hifi("results merge packed --results-dir yours")
    assert (
        answer.code == 2
        and "predictions.parquet is damaged" in answer.err
        and not [*Path("yours").rglob("*.json*")]
    )


def test_a_packed_run_is_found_wherever_its_encoder_lies(
    hifi, tiny, finish_run, encoders, data, tmp_path
):
    """It holds no directory of the machine; the encoder's digest says which one it is."""
    finish_run()
    assert hifi("results pack results --out packed").code == 0
    text = Path("packed/runs.jsonl").read_text()
    assert str(encoders["bert"].parent) not in text and str(tmp_path) not in text
    assert "hash" not in hifi("results check packed").out
    assert "1 same" in hifi("results merge packed --results-dir results").out
    assert hifi("results merge packed --results-dir mine").code == 0
    settings = Path("mine") / RUN / "config.yaml"
    answer = hifi("train", "-c", settings, "--data-dir", data, "--results-dir", "yours")
    assert answer.code == 3
    assert f"in a directory '{encoders['bert'].name}' of the machine where the run was packed" in (
        answer.err
    )
    moved = tmp_path / "moved" / encoders["bert"].name
    shutil.copytree(encoders["bert"], moved)
    # The later option wins.
    found = tiny("train --method full-ft --results-dir mine --backbone", moved)
    assert found.code == 0 and "finished" in found.err, found.err
    weights = moved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    refused = tiny("train --method full-ft --results-dir mine --backbone", moved)
    assert refused.code == 4 and "another encoder" in refused.err


def test_a_packed_task_of_own_data_names_no_directory_of_this_machine(hifi, finish_run, tmp_path):
    run = finish_run()
    table = tmp_path / "my data" / "reviews.csv"
    table.parent.mkdir()
    table.write_text("text,label\n" + "".join(f"text {row},{row % 2}\n" for row in range(20)))
    own = run / "own/tasks/rte.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(hifi("ls", table).out)
    assert str(table.parent) in own.read_text()
    assert hifi("results pack results --out packed").code == 0
    packed = Path("packed") / RUN / "own/tasks/rte.yaml"
    assert str(tmp_path) not in packed.read_text()
    before, after = read_yaml(own), read_yaml(packed)
    assert after.pop("source") == "reviews.csv" and before.pop("source") == str(table)
    assert after["local"].pop("directory") == "elsewhere/my data"
    before["local"].pop("directory")
    assert before == after
    assert hifi("results pack packed --out again").code == 0
    assert files_of("again") == files_of("packed")


def test_a_packed_run_names_the_run_that_it_started_from_by_its_place_in_the_results(hifi):
    run = write_run("results", "lora", "rte", 1, 0.5)
    start = run_folder("runs/of/somebody/results", method="full-ft").as_posix()
    config = read_json(run / "results.json")["config"] | {"start_from": f"/home/{start}"}
    change(run, config=config)
    assert hifi("results pack results --out packed").code == 0
    (record,) = Study(Path("packed")).records.values()
    assert record["config"]["start_from"] == run_folder("", method="full-ft").as_posix()


@pytest.mark.parametrize("line", ["{", "[1]", '{"path": "runs/x"}', '{"path": ["x"], "record": 1}'])
def test_a_damaged_packed_study_is_named(hifi, line):
    Path("packed").mkdir()
    Path("packed/runs.jsonl").write_text(line + "\n")
    merged, checked = hifi("results merge packed"), hifi("results check packed")
    assert (merged.code, checked.code) == (2, 1)
    for said in (merged.err, checked.out):
        assert "packed/runs.jsonl" in said
        assert "is damaged" in said


def pack_of(*lines):
    """A packed study of some lines."""
    Path("packed").mkdir()
    Path("packed/runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "command",
    [
        "train --task demo-entailment --method full-ft --protocol demo",
        "grid demo",
        "grid demo --print",
        "versus lora --study packed",
        "results merge results",
    ],
)
def test_a_packed_study_takes_no_new_runs(hifi, finish_run, command):
    """No table of it would show them: they were trained and never seen again."""
    finish_run()
    pack_of({"path": str(RUN), "record": read_json(Path("results") / RUN / "results.json")})
    before = files_of("packed")
    answer = hifi(f"{command} --results-dir packed")
    assert answer.code == 2 and "packed is a packed study, which takes no new runs" in answer.err
    assert "hifi results merge packed --results-dir DIR copies its runs there" in answer.err
    assert files_of("packed") == before


def test_a_packed_record_with_a_path_for_a_name_is_a_line_to_remove(hifi, finish_run):
    """A user who was given a packed study has no file of the run to delete, and cannot make it again."""
    record = read_json(finish_run() / "results.json")
    path = str(run_folder("", method="evil"))
    named = {**record, "method": "/tmp/evil.yaml"}
    pack_of({"path": str(RUN), "record": record}, {"path": path, "record": named})
    for answer in (hifi("results merge packed"), hifi("results check packed")):
        said = " ".join((answer.out + answer.err).split())
        assert "packed/runs.jsonl, line 2 is damaged" in said
        assert "(remove this line, or ask who packed the study): method: " in said
        assert "delete it" not in said
    # The other run is usable.
    assert hifi("table --results-dir packed").code == 0


def test_lines_of_a_packed_study_in_another_order_are_the_same_study(hifi):
    """Two studies that were put together are so: the last run of a task may speak for it, and the order counts."""
    for seed in (1, 2, 10):
        labels = {"entailment": seed, "not_entailment": 1}
        classes = {"labels": labels, "predicted": labels}
        write_run("results", "full-ft", "rte", seed, 0.5, classes=classes)
    assert hifi("results pack results --out packed").code == 0
    before = hifi("table --results-dir packed").out
    lines = Path("packed/runs.jsonl").read_text().splitlines(keepends=True)
    Path("packed/runs.jsonl").write_text("".join(reversed(lines)))
    assert [*Study(Path("packed")).results] == [*Study(Path("results")).results]
    assert hifi("table --results-dir packed").out == before


def test_a_packed_run_that_is_there_twice_is_a_line_to_remove(hifi, finish_run):
    line = {"path": str(RUN), "record": read_json(finish_run() / "results.json")}
    pack_of(line, line)
    answer = hifi("results check packed")
    assert "runs.jsonl, line 2: is damaged" in answer.out
    assert "remove this line" in answer.out and f"{RUN} is there a second time" in answer.out


@pytest.mark.parametrize("path", ["../../outside", "/tmp/outside", str(run_folder("", seed=2))])
def test_a_packed_run_goes_nowhere_but_to_its_own_place(hifi, finish_run, path):
    record = read_json(finish_run() / "results.json")
    Path("packed").mkdir()
    Path("packed/runs.jsonl").write_text(json.dumps({"path": path, "record": record}) + "\n")
    answer = hifi("results merge packed --results-dir mine/deep")
    assert answer.code == 2 and "holds the run that belongs in" in answer.err
    assert not Path("mine").exists() and not Path("outside").exists()


# --- directories


def test_runs_travel_between_directories_and_a_falsified_one_is_a_conflict(hifi, finish_run, data):
    for method in ("full-ft", "hifi-layerwise"):
        finish_run(method)
    before = files_of("results")
    pushed = hifi("results push shared")
    assert pushed.code == 0 and pushed.out.endswith("2 copied\n"), pushed
    assert files_of("results") == before
    copied = files_of("shared")
    assert copied == {name: content for name, content in before.items() if name.startswith("runs/")}
    again = hifi("results push shared")
    assert again.code == 0 and again.out.endswith("2 same\n") and files_of("shared") == copied
    pulled = hifi("results pull shared --results-dir mine --quiet")
    assert (pulled.code, pulled.out, pulled.err) == (0, "", "")
    assert files_of("mine") == copied
    assert "logits identical" in hifi("eval", Path("mine") / RUN, "--data-dir", data).out

    scores = read_json(Path("shared") / RUN / "results.json")["scores"]
    change(
        Path("shared") / RUN, scores={name: min(1.0, score + 0.1) for name, score in scores.items()}
    )
    conflict = hifi("results merge shared --results-dir mine")
    assert conflict.code == 4 and files_of("mine") == copied
    assert str(RUN) in conflict.err and "1 of 2 runs were not copied" in conflict.err
    assert hifi("results merge shared --results-dir yours").code == 0
    caught = hifi("results check yours")
    assert caught.code == 1 and f"{RUN}: best is" in caught.out


def test_a_run_of_other_data_or_weights_is_another_run(hifi, finish_run):
    run = finish_run()
    for key, value in (
        ("data", {"train": "x"}),
        ("backbone_weights", "x"),
        ("config_hash", "x"),
        ("time_s", 999.0),
    ):
        shutil.copytree("results", "theirs")
        change(Path("theirs") / RUN, **{key: value})
        same = key == "time_s"  # trained again on another machine
        assert hifi("results merge theirs").code == (0 if same else 4)
        shutil.rmtree("theirs")
    assert read_json(run / "results.json")["time_s"] != 999.0


@pytest.mark.parametrize(
    "changes",
    [
        {"delta_sha256": "0" * 64},
        {"metrics": {"accuracy": 0.5, "f1": 0.1}},
        {"epoch_metrics": [{"epoch": 1, "accuracy": 0.4}]},
        {"n_examples": {"train": 1, "selection": 1, "reported": 1}},
        {"draws": {"order of data": 7}},
        {"task_digest": "0" * 64},
        {"method_code": "0" * 64},
        {"heads": [[0]] * 4},
    ],
)
def test_another_training_with_the_same_score_is_another_run(hifi, changes):
    write_run("results", "bitfit", "rte", 1, 0.5, delta_sha256="a" * 64)
    write_run("theirs", "bitfit", "rte", 1, 0.5, **{"delta_sha256": "a" * 64} | changes)
    before = files_of("results")
    answer = hifi("results merge theirs")
    assert answer.code == 4 and "rte/bitfit/seed1" in answer.err
    assert files_of("results") == before


def test_a_run_that_is_not_finished_is_neither_copied_nor_touched(hifi, finish_run):
    run = finish_run()
    shutil.copytree("results", "shared")
    (Path("shared") / RUN / "results.json").unlink()
    before = files_of("shared")
    answer = hifi("results push shared")
    assert answer.code == 4 and "unfinished" in answer.err and files_of("shared") == before
    (run / "results.json").unlink()
    answer = hifi("results push other")
    assert answer.code == 3 and "no finished runs" in answer.err and not Path("other").exists()


def test_only_known_files_are_copied_and_code_with_trust_alone(hifi, finish_run):
    run = finish_run()
    for name in ("tasks/rte", "methods/full-ft"):
        (run / "own" / name).parent.mkdir(parents=True)
        copy_yaml(hifi, name, run / f"own/{name}.yaml")
    for file in (
        "own/methods/mine.py",
        "run.py",
        "own/tasks/mine.py",
        "own/tasks/deep/a.yaml",
        "sitecustomize.py",
    ):
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text("raise SystemExit")
    for file in ("predictions-test.jsonl", "pruned.json"):
        (run / file).write_text("")
    own = ("own/tasks/rte.yaml", "own/methods/full-ft.yaml")
    files = {*FILES, *own, "predictions-test.jsonl", "pruned.json"}
    known = {f"{RUN}/{name}" for name in files}
    assert hifi("results push shared").code == 0
    assert set(files_of("shared")) == known
    assert hifi("results push trusted --trust").code == 0
    assert set(files_of("trusted")) == known | {f"{RUN}/own/methods/mine.py"}
    assert hifi("results pack results --out packed").code == 0
    assert not [*Path("packed").rglob("*.py")]
    assert hifi("results merge packed --results-dir unpacked").code == 0
    assert (Path("unpacked") / RUN / "own/tasks/rte.yaml").is_file()


@pytest.mark.parametrize("where", ["results.json", "own/tasks/rte.yaml", "", "own"])
def test_no_link_is_followed(hifi, finish_run, tmp_path, where):
    """Not of a file and not of a directory: it could be any file of this machine."""
    finish_run()
    own = Path("results") / RUN / "own/tasks"
    own.mkdir(parents=True)
    copy_yaml(hifi, "tasks/rte", own / "rte.yaml")
    linked = Path("results") / RUN / where
    shutil.move(linked, "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    answer = hifi("results push shared")
    assert answer.code == 2 and "is a link, or behind one" in answer.err, answer
    assert not Path("shared").exists()


def test_a_damaged_or_misplaced_run_is_refused_before_anything_is_copied(hifi, finish_run):
    run = finish_run()
    finish_run("bitfit")
    shutil.copytree(run, run.with_name("seed2"))
    answer = hifi("results push shared")
    assert (
        answer.code == 2
        and "seed2 holds the run that belongs in" in answer.err
        and not Path("shared").exists()
    )
    shutil.rmtree(run.with_name("seed2"))
    change(run, params=None)
    answer = hifi("results push shared")
    assert (
        answer.code == 2
        and "results.json is damaged (delete it and make it again): params" in answer.err
        and not Path("shared").exists()
    )
    assert hifi("results pull nowhere").code == 3


def test_damaged_weights_are_not_copied(hifi, finish_run):
    """Such a run could never be opened again, and the copy may be all that is kept."""
    run = finish_run("bitfit")
    (run / "delta.safetensors").write_bytes(b"")
    answer = hifi("results merge results --results-dir elsewhere")
    assert answer.code == 2 and "delta.safetensors is not the file that the run wrote" in answer.err
    assert not files_of("elsewhere")
    (run / "delta.safetensors").unlink()
    answer = hifi("results merge results --results-dir elsewhere")
    assert answer.code == 0 and "1 copied" in answer.out


def test_control_characters_of_others_do_not_reach_the_terminal(hifi, finish_run):
    run = finish_run()
    change(run, method="\x1b]0;owned\x07full-ft")
    Path("packed").mkdir()
    line = json.dumps({"path": "runs/\x1b[2J", "record": read_json(run / "results.json")})
    Path("packed/runs.jsonl").write_text(line + "\n")
    for words in (["push", "shared"], ["merge", "packed"], ["check"], ["check", "packed"]):
        answer = hifi("results", *words)
        said = answer.out + answer.err
        assert answer.code in (1, 2) and "\x1b" not in said and "\x07" not in said


# --- the hub


class FakeHub:
    """What `hifi` calls of HfApi, with one dataset repository, whose files are here."""

    def __init__(self):
        self.files = {}

    def list_repo_files(self, repository, *, repo_type):
        if (repository, repo_type) != ("owner/shared", "dataset"):
            raise FileNotFoundError("no such repository")
        return list(self.files)

    def upload_folder(self, *, repo_id, folder_path, repo_type="model", allow_patterns=None):
        if repo_id not in ("owner/shared", "owner/model"):
            raise FileNotFoundError("no such repository")
        names = allow_patterns or [path.name for path in folder_path.iterdir()]
        self.files |= {name: (folder_path / name).read_bytes() for name in names}

    def snapshot_download(
        self, repository, *, repo_type, local_dir, allow_patterns, ignore_patterns
    ):
        self.list_repo_files(repository, repo_type=repo_type)
        for name in filter_repo_objects(
            self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            path = Path(local_dir, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[name])


@pytest.fixture
def fake_hub(monkeypatch):
    hub = FakeHub()
    monkeypatch.setattr(share, "HfApi", lambda: hub)
    return hub


def test_results_travel_through_a_repository_of_the_hub(hifi, finish_run, data, fake_hub):
    run = finish_run()
    assert hifi("results push hub:owner/shared").code == 0
    assert set(fake_hub.files) == {f"{RUN}/{name}" for name in FILES}
    change(run, scores={"last": 1.0, "best": 1.0, "max": 1.0})
    before = dict(fake_hub.files)
    again = hifi("results push hub:owner/shared")
    assert again.code == 0 and again.out.endswith("1 there\n") and fake_hub.files == before
    conflict = hifi("results pull hub:owner/shared")
    assert conflict.code == 4 and str(RUN) in conflict.err
    assert hifi("results pull hub:owner/shared --results-dir mine").code == 0
    assert files_of("mine") == fake_hub.files
    assert hifi("eval", Path("mine") / RUN, "--data-dir", data).code == 0
    missing = hifi("results push hub:owner/unknown")
    assert missing.code == 3 and "hub:owner/unknown: FileNotFoundError" in missing.err
    assert "create it" in missing.err
    unread = hifi("results pull hub:owner/unknown")
    assert unread.code == 3 and "see whether its name is right" in unread.err


def test_damaged_weights_do_not_reach_the_hub(hifi, finish_run, fake_hub):
    finish_run("full-ft")
    (finish_run("bitfit") / "delta.safetensors").write_bytes(b"")
    answer = hifi("results push hub:owner/shared")
    assert answer.code == 2 and "delta.safetensors is not the file that the run wrote" in answer.err
    assert not fake_hub.files


def test_an_exported_model_is_uploaded(hifi, finish_run, data, fake_hub):
    words = ["export", finish_run(), "--data-dir", data, "--push"]
    assert hifi(*words, "hub:owner/model", "--to", "model").code == 0
    assert fake_hub.files == files_of("model") and "model.safetensors" in fake_hub.files
    answer = hifi(*words, "hub:owner/unknown", "--to", "other")
    assert answer.code == 3 and "hub:owner/unknown: FileNotFoundError" in answer.err
    assert hifi(*words, "owner/model", "--to", "third").code == 2 and not Path("third").exists()


def test_a_file_outside_of_the_runs_is_not_pulled_from_the_hub(
    hifi, finish_run, fake_hub, tmp_path
):
    finish_run()
    assert hifi("results push hub:owner/shared").code == 0
    fake_hub.files |= {
        "../evil.py": b"1",
        "runs/../../evil.py": b"1",
        "evil.py": b"1",
        f"{RUN}/own/methods/evil.py": b"1",
    }
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    hifi("results pull hub:owner/shared --results-dir mine")
    new = {path for path in tmp_path.rglob("*") if "cache" not in path.parts} - before
    assert not [path for path in new if path.name == "evil.py"]
    assert not (tmp_path.parent / "evil.py").exists()


def test_export_writes_the_rows_of_read_results_as_parquet(hifi):
    for seed, weights in ((1, "balanced"), (2, [1.0, 2.0])):
        write_run("results", "full-ft", "rte", seed, 0.5, keys={"class_weights": weights})
    answer = hifi("results export results --out runs.parquet")
    assert (answer.code, answer.out) == (0, "runs.parquet\n"), answer.err
    written, runs = pd.read_parquet("runs.parquet"), read_results("results")
    assert [*written] == [*runs] and [*written["seed"]] == [1, 2]
    assert [*written["score"]] == [*runs["score"]]
    assert [*written["class_weights"]] == ["balanced", "[1.0, 2.0]"] and runs.columns.is_unique


# Required by eval.schema.json of Every Eval Ever 0.3.0, and the type there; a dotted key is one of a section
LOG = {
    "schema_version": str, "evaluation_id": str, "retrieved_timestamp": str, "source_metadata.source_organization_name": str,
    "eval_library.name": str, "eval_library.version": str, "model_info.name": str, "model_info.id": str, "evaluation_results": list,
}  # fmt: skip
RESULT = {"evaluation_name": str, "source_data.dataset_name": str, "metric_config.lower_is_better": bool, "score_details.score": float}  # fmt: skip
VALUES = {  # one of a few values there
    "schema_version": "0.3.0", "source_metadata.source_type": "evaluation_run", "source_metadata.evaluator_relationship": "first_party",
    "model_info.additional_details.deployment_type": "self_deployed", "model_info.additional_details.model_availability": "unknown",
}  # fmt: skip


def test_export_writes_files_of_every_eval_ever(hifi):
    backbone = {"name": "bert-large", "hub": "google-bert/bert-large-uncased"}
    metrics = {"accuracy": 0.75, "own": 7.0}
    write_run("results", "full-ft", "cola", 1, 0.5, metrics=metrics, keys={"backbone": backbone})
    write_run("results", "full-ft", "rte", 1, 0.0, status="diverged", scores=None)
    codes = [
        hifi("results export results --format eee --out", out).code
        for out in ("eee", "again", "eee")
    ]
    assert codes == [0, 0, 2], "a directory that exists"
    (file,) = Path("eee").rglob("*.json")
    assert Path("again").joinpath(*file.parts[1:]).is_file(), "one name for one run"
    assert file.parent == Path("eee/data/hifi/google-bert/bert-large-uncased")
    assert UUID(file.stem).version == 4
    log, *results = map(flatten, [read_json(file), *read_json(file)["evaluation_results"]])
    for part, required in [(log, LOG), *((result, RESULT) for result in results)]:
        assert all(isinstance(part.get(key), kind) for key, kind in required.items()), part
        texts = [value for key, value in part.items() if "details." in key and "score" not in key]
        assert texts and all(isinstance(text, str) for text in texts)
    assert VALUES.items() <= log.items()
    keys = ("metric_config.metric_id", "metric_config.min_score", "score_details.score")
    assert not any(result["metric_config.lower_is_better"] for result in results)
    found = [tuple(map(result.get, keys)) for result in results]
    assert found == [("matthews", -1, 0.5), ("accuracy", 0, 0.75), ("own", None, 7)]


def test_an_exported_score_names_its_split(hifi):
    score = {"last": 0.5, "best": 0.5, "max": 0.5}
    write_run(
        "results",
        "full-ft",
        "mnli",
        1,
        0.5,
        metrics={"accuracy_mismatched": 0.25},
        extra_validation={"mismatched": score},
    )
    assert hifi("results export results --format eee --out eee").code == 0
    (file,) = Path("eee").rglob("*.json")
    results = read_json(file)["evaluation_results"]
    splits = {
        result["metric_config"]["metric_id"]: result["score_details"]["details"]["split"]
        for result in results
    }
    assert splits == {"accuracy": "validation", "accuracy_mismatched": "validation_mismatched"}
    for result in results:
        source = result["source_data"]["additional_details"]
        assert (source["split"], source["rows"]) == ("validation", "4")
        details = result["score_details"]["details"]
        assert (details["epoch"], details["epoch_selected_on"]) == ("2", "validation")


def test_without_network_the_hub_is_not_asked(hifi, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    answer = hifi("results pull hub:owner/shared")
    assert answer.code == 3 and "HF_HUB_OFFLINE" in answer.err, answer
