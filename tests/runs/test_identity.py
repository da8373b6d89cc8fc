"""A run is everything that decides its numbers: what differs in one of them is another run, and is in no mean with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project_files import ROOT
from run_folders import run_folder
from safetensors.torch import load_file, save_file
from synthetic_runs import write_run

from hifi_cli.config import draws
from hifi_cli.digests import file_digest
from hifi_cli.models.encoder_files import encoder_digest
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import task_digest

GOLDEN = ROOT / "tests/golden/files/task-digests.json"


@pytest.fixture
def own_encoder(encoders, tmp_path):
    """A copy of the tiny BERT that a test may change."""
    return shutil.copytree(encoders["bert"], tmp_path / "encoders" / "mine")


def edit_json(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


def change_tokenizer(encoder):
    """Every word gets the number of another word."""
    path = encoder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    words = [word for word in vocabulary if not word.startswith("[")]
    numbers = [vocabulary[word] for word in words]
    vocabulary.update(zip(words, numbers[1:] + numbers[:1], strict=True))
    path.write_text(json.dumps(content))


def change_activation(encoder):
    edit_json(encoder / "config.json", hidden_act="relu")


def change_number_of_heads(encoder):
    edit_json(encoder / "config.json", num_attention_heads=2)


def change_weights(encoder):
    weights = load_file(encoder / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    save_file(weights | {name: weights[name] * 2}, encoder / "model.safetensors")


CHANGES = [change_tokenizer, change_activation, change_number_of_heads, change_weights]


def notes(hifi, *words):
    answer = hifi("table --format json", *words)
    assert answer.code == 0, answer.err
    return answer.out


def compared(hifi, *words):
    """The number of pairs of bitfit's or the random heads' runs with Full-FT's, and the notes."""
    answer = hifi("compare", *words, "--format", "json")
    assert answer.code == 0, answer.err
    main, _ = json.loads(answer.out)
    return main["rows"][0]["pairs"], main["notes"]


@pytest.mark.parametrize("change", CHANGES)
def test_another_encoder_under_the_same_name_is_another_run(tiny, hifi, own_encoder, data, change):
    train = ["train", "--method", "hifi-layerwise", "--backbone", own_encoder]
    assert tiny(*train, "--seeds", "1").code == 0
    change(own_encoder)
    refused = tiny(*train, "--seeds", "1")
    (message,) = [line for line in refused.err.splitlines() if line.startswith("hifi: ")]
    assert refused.code == 4 and "another encoder" in message and "(backbone_weights)" in message
    assert tiny(*train, "--seeds", "2").code == 0
    assert "1 run left out: different encoder" in notes(hifi)
    # the second encoder's heads are scored anew
    assert len(list(Path("results/scores").rglob("*.json"))) == 2
    run = run_folder(backbone="mine", method="hifi-layerwise")
    answer = hifi(f"eval {run} --data-dir {data}")
    assert answer.code == 2 and "its weights, configuration or tokenizer differ" in answer.err


def test_keys_that_say_how_a_file_came_about_do_not_change_an_encoder(tiny, own_encoder):
    train = ["train", "--method", "full-ft", "--backbone", own_encoder]
    assert tiny(*train).code == 0
    edit_json(own_encoder / "config.json", transformers_version="4.0", _name_or_path="elsewhere")
    edit_json(own_encoder / "tokenizer_config.json", name_or_path="elsewhere")
    content = json.loads((own_encoder / "tokenizer.json").read_text())
    (own_encoder / "tokenizer.json").write_text(json.dumps(content, indent=3, sort_keys=True))
    answer = tiny(*train)
    assert answer.code == 0 and "finished before" in answer.err


@pytest.mark.slow
def test_the_same_files_are_one_encoder_in_a_directory_and_in_the_hub_s_cache(
    encoders, tmp_path, data
):
    """In a process of its own, as huggingface_hub reads at its start where its cache is."""
    commit = "0123456789" * 4
    repository = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(encoders["bert"], repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    line = f"train --task rte --method linear-probing --backbone owner/tiny --data-dir {data}"
    command = [sys.executable, "-m", "hifi_cli", *line.split(), "epochs=1", "limit=8"]
    environment = os.environ | {
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    for _ in range(2):
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
    assert "finished before" in ended.stderr
    (results,) = (tmp_path / "results/runs").rglob("results.json")
    weights = json.loads(results.read_text())["backbone_weights"]
    assert weights == encoder_digest(encoders["bert"])


def test_an_adapter_in_the_encoder_s_folder_is_refused(tiny, own_encoder):
    """transformers would load it into the weights in silence."""
    (own_encoder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    answer = tiny("train --method full-ft --backbone", own_encoder)
    assert answer.code == 3 and "adapter_config.json is of an adapter of peft" in answer.err
    assert not [path for path in Path("results").rglob("*") if path.suffix in (".yaml", ".json")]


# --- the task and its data


def write_reviews(path, rows=60, **extra):
    lines = ["text,other,label"]
    for row in range(rows):
        lines.append(f"the dog sees {row},a cat likes {row},{1 + row % 2}")
    path.write_text("\n".join([*lines, *extra.get("more", [])]) + "\n")


def own_task(hifi, path=Path("reviews.csv")):
    """The YAML of own data, as `hifi ls FILE` prints it."""
    answer = hifi(f"ls {path}")
    assert answer.code == 0, answer.err
    Path("reviews.yaml").write_text(answer.out)
    return yaml.safe_load(answer.out)


EDITS = {
    "inputs": {"inputs": ["other"]},
    "labels": {"labels": ["2", "1"]},
    "primary": {"primary": "f1", "metrics": ["f1", "accuracy"]},
}


@pytest.mark.parametrize("edit", EDITS)
def test_runs_of_an_edited_task_are_in_no_mean_with_those_before(hifi, edit):
    write_reviews(Path("reviews.csv"))
    content = own_task(hifi)
    words = ["--protocol", "demo", "--task", "reviews.yaml", "--method", "linear-probing"]
    assert hifi("train", *words, "epochs=1", "--seeds", "1,2").code == 0
    Path("reviews.yaml").write_text(yaml.safe_dump(content | EDITS[edit]))
    assert hifi("train", *words, "epochs=1", "--seeds", "3").code == 0
    assert "1 run left out: different" in notes(hifi) and "task as read" in notes(hifi)
    refused = hifi("train", *words, "epochs=1", "--seeds", "1")
    assert refused.code == 4 and "another task" in refused.err


def test_data_changed_behind_a_task_are_another_run_in_train_and_grid(hifi):
    write_reviews(Path("reviews.csv"))
    own_task(hifi)
    words = ["--protocol", "demo", "--task", "reviews.yaml", "--method", "linear-probing"]
    assert hifi("train", *words).code == 0
    grid = {"protocol": "demo", "backbone": "demo", "tasks": ["reviews.yaml"], "seeds": [1]}
    grid |= {"description": "One run", "methods": ["linear-probing"]}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    listed = hifi("grid grid.yaml --print")
    assert listed.code == 0 and listed.out == ""
    write_reviews(Path("reviews.csv"), more=["one more,row,1"])
    for command in (["train", *words], ["grid", "grid.yaml", "--print"], ["grid", "grid.yaml"]):
        refused = hifi(*command)
        assert refused.code == 4, command
        assert "other data of train and validation (data)" in refused.err
    # on another machine, a login node for example, the data are not there
    Path("reviews.csv").unlink()
    listed = hifi("grid grid.yaml --print")
    assert listed.code == 0 and listed.out == ""
    assert listed.err.count("the data of reviews are not on this machine: which of its runs") == 1
    trained = hifi("train", *words)
    assert trained.code == 0
    assert trained.err.count("are not on this machine") == 1


def test_where_rows_come_from_and_what_their_columns_are_called_make_no_other_task():
    spec = task_spec.load("rte")
    renamed = spec.local.model_copy(update={"columns": {"sentence1": ["premise"]}, "folder": "x"})
    moved = spec.model_copy(update={"local": renamed, "hub": None, "description": "other words"})
    assert task_digest(moved) == task_digest(spec)
    for change in ({"labels": spec.labels[::-1]}, {"inputs": spec.inputs[::-1]}, {"primary": "f1"}):
        assert task_digest(spec.model_copy(update=change)) != task_digest(spec)


def test_shipped_tasks_keep_their_digests():
    """A digest that changes makes every finished run of the task another one: on purpose only."""
    stored = json.loads(GOLDEN.read_text())
    # A new task needs no digest here before somebody has trained on it.
    assert {name: task_digest(task_spec.load(name)) for name in stored} == stored


def test_the_code_of_an_own_metric_is_part_of_the_task(tmp_path):
    metric = tmp_path / "metric.py"
    metric.write_text("a = 1")
    spec = task_spec.load("rte").model_copy(update={"evaluate": str(metric)})
    before = task_digest(spec)
    shutil.copy(metric, tmp_path / "copy.py")
    copied = spec.model_copy(update={"evaluate": str(tmp_path / "copy.py")})
    assert task_digest(copied) == before
    metric.write_text("a = 2")
    assert task_digest(spec) != before


# --- random draws


def test_every_method_says_whether_it_draws():
    """By the files in hifi_cli/methods: a new one is listed in config/draws.py, or this fails."""
    shared = {"base", "common", "find"}
    files = {path.stem for path in (ROOT / "hifi_cli/methods").glob("[!_]*.py")} - shared
    assert files == set(draws.VERSIONS_OF_METHODS)


def test_a_record_names_the_draws_that_its_run_used(tiny, finish_run):
    def used(method):
        return set(json.loads((finish_run(method) / "results.json").read_text())["draws"])

    always = {"order of data", "task head", "dropout on cpu"}
    assert used("full-ft") == always
    assert used("mixout") == always | {"method mixout"}
    assert used("hifi-layerwise") == always | {"samples that score heads"}
    assert used("hifi-random") == always | {"choice of heads"}


def test_a_finished_run_with_other_draws_is_refused(tiny, finish_run, monkeypatch):
    finish_run("mixout")
    finish_run("full-ft")
    monkeypatch.setitem(draws.VERSIONS_OF_METHODS, "mixout", 9)
    answer = tiny("train --method mixout")
    assert answer.code == 4
    assert "other random draws: method mixout, version 1 there, 9 here (draws)" in answer.err
    assert tiny("train --method full-ft").code == 0


def test_runs_of_two_versions_of_draws_stand_in_no_mean_unless_asked_for(hifi):
    for seed, version in ((1, 2), (2, 2), (3, 1)):
        common = {"order of data": 1, "dropout on cpu": version}
        write_run("results", "full-ft", "rte", seed, 0.5 + 0.1 * seed, draws=common)
        write_run("results", "bitfit", "rte", seed, 0.5, draws=common | {"dropout on cpu": 2})
    excluded_because = (
        "1 run left out: different random draws (dropout on cpu version 1 and those of this"
        " program) (--include draws includes them)"
    )
    assert excluded_because in notes(hifi)
    assert excluded_because in notes(hifi, "--include", "unequal")
    assert "left out" not in notes(hifi, "--include", "draws")
    pairs, _ = compared(hifi, "bitfit", "full-ft")
    assert pairs == 2
    pairs, texts = compared(hifi, "bitfit", "full-ft", "--include", "draws")
    assert pairs == 3 and any("compared although" in text for text in texts)


def test_a_record_that_names_no_draws_is_in_no_mean_with_those_that_do(hifi):
    for seed in (1, 2, 3):
        changes = {"draws": {}} if seed == 3 else {}
        write_run("results", "full-ft", "rte", seed, 0.5 + 0.1 * seed, **changes)
        write_run("results", "bitfit", "rte", seed, 0.5)
    excluded_because = (
        "1 run left out: different random draws (order of data of no version and those of this"
        " program) (--include draws includes them)"
    )
    assert excluded_because in notes(hifi)
    pairs, _ = compared(hifi, "bitfit", "full-ft")
    assert pairs == 2


def test_runs_that_differ_in_draws_and_more_name_both_flags(hifi):
    """Each flag alone leaves them out, so that a message with one of the two would be wrong."""
    for seed in (1, 2, 3):
        write_run("results", "full-ft", "rte", seed, 0.5 + 0.1 * seed)
        changes = (
            {"draws": {"order of data": 1, "dropout on cpu": 1}, "backbone_weights": "u"}
            if seed == 3
            else {}
        )
        write_run("results", "bitfit", "rte", seed, 0.5, **changes)
    both = "--include unequal,draws includes them"
    assert both in notes(hifi)
    assert "--include draws includes them" in notes(hifi, "--include", "unequal")
    assert "left out" not in notes(hifi, "--include", "unequal,draws")
    for seed in (1, 2, 3):
        changes = {"draws": {"order of data": 1, "dropout on cpu": 1}, "backbone_weights": "u"}
        write_run("results", "bitfit", "rte", seed, 0.5, **changes)
    answer = hifi("compare bitfit full-ft --format json")
    assert answer.code == 3 and "--include unequal,draws compares them" in answer.err
    pairs, texts = compared(hifi, "bitfit", "full-ft", "--include", "unequal,draws")
    assert pairs == 3 and any("compared although" in text for text in texts)


def test_no_flag_is_named_for_runs_of_two_metrics(hifi):
    for seed in (1, 2):
        write_run("results", "full-ft", "mrpc", seed, 0.5)
        write_run("results", "bitfit", "mrpc", seed, 0.6, primary_metric="accuracy")
    answer = hifi("compare bitfit full-ft --include unequal")
    assert answer.code == 3 and "differ in" in answer.err
    assert "--include" not in answer.err


def test_methods_that_draw_more_are_compared_with_methods_that_draw_less(hifi):
    """An old choice of heads concerns the random heads alone."""
    for seed in (1, 2):
        write_run("results", "full-ft", "rte", seed, 0.5, draws={"order of data": 1})
        old = {"order of data": 1, "choice of heads": 1}
        write_run("results", "hifi-random", "rte", seed, 0.5 + 0.01 * seed, draws=old)
    pairs, _ = compared(hifi, "hifi-random", "full-ft")
    assert pairs == 2


# --- records of an earlier schema


def make_schema_1(run):
    """Bring a record to schema 1, as the program wrote it before the schema had a number."""
    path = run / "results.json"
    content = json.loads(path.read_text())
    for key in ("schema_version", "task_digest", "draws", "processes"):
        del content[key]
    encoder = Path(content["config"]["backbone"]["path"])
    content["backbone_weights"] = file_digest(encoder / "model.safetensors")
    content["data"] = dict.fromkeys(content["data"], "0" * 64)
    path.write_text(json.dumps(content))


def test_a_run_of_schema_1_is_read_and_evaluated_but_is_not_the_same_run(
    tiny, hifi, finish_run, tmp_path, data
):
    run = finish_run("full-ft")
    shutil.copytree("results", tmp_path / "new")
    before = hifi("results check").out
    make_schema_1(run)
    assert "left out" not in notes(hifi)
    assert hifi("results check").out == before
    evaluated = hifi(f"eval {run} --data-dir {data}")
    assert evaluated.code == 0, evaluated.err
    schemas = "holds a run of schema 1, and this version of hifi writes schema 2"
    refused = tiny("train --method full-ft")
    assert refused.code == 4 and schemas in refused.err
    merged = hifi(f"results merge {tmp_path}/new")
    assert merged.code == 4 and "schema 2 there, 1 here" in merged.err
    assert tiny("train --method full-ft --seeds 2").code == 0
    assert "1 run left out: of schema 1, not 2 as others" in notes(hifi)
    assert "of schema 1" in notes(hifi, "--include", "unequal,draws,limited")


# --- a run that goes on elsewhere


def test_every_process_of_a_run_is_recorded(make, workspace, monkeypatch, tmp_path, data):
    """A run with `precision=auto` is stopped where bf16 is at hand, and goes on where it is not."""
    from finished_runs import Stop

    from hifi_cli.runs import run as runs
    from hifi_cli.training.checkpoint import Checkpoint
    from hifi_cli.training.runner import ModelRunner

    config = make("full-ft", "precision=auto", "epochs=2")
    measure = ModelRunner.measure

    def stop_at_the_end(*arguments):
        measure(*arguments)
        raise Stop

    with monkeypatch.context() as patched, pytest.raises(Stop):
        for module in ("hifi_cli.training.runner", "hifi_cli.runs.provenance"):
            patched.setattr(f"{module}.uses_bf16", lambda *_: True)
        patched.setattr(Checkpoint, "is_due", lambda self: True)
        patched.setattr(ModelRunner, "measure", stop_at_the_end)
        runs.run(config, workspace)
    for module in ("hifi_cli.training.runner", "hifi_cli.runs.provenance"):
        monkeypatch.setattr(f"{module}.uses_bf16", lambda *_: False)
    result = runs.run(config, workspace)
    assert [process.precision for process in result.processes] == ["bf16", "fp32"]
    assert result.precision == "bf16 and fp32"
    first, second = result.processes
    assert 0 < first.last_step == second.first_step - 1 < second.last_step
    assert result.wall_s > first.seconds > 0


OWN_CODE = """
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except


class Mine(Method):
    def prepare(self, encoder):
        freeze_except(encoder, encoder.task_head)
"""


def edit_task():
    path = Path("reviews.yaml")
    path.write_text(path.read_text().replace("primary: accuracy", "primary: f1"))


def edit_data():
    write_reviews(Path("reviews.csv"), more=["one more,row,1"])


def edit_encoder():
    path = Path("encoder/config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "relu"}))


def edit_code():
    path = Path("mine.py")
    path.write_text(path.read_text().replace("encoder.task_head", "[*encoder.task_head]"))


def edit_draws():
    path = next(Path("results").rglob("results.json"))
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"draws": {**record["draws"], "task head": 9}}))


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (edit_task, "(task_digest)"),
        (edit_data, "(data)"),
        (edit_encoder, "(backbone_weights)"),
        (edit_code, "own/methods/mine.py"),
        (edit_draws, "(draws)"),
    ],
    ids=["task", "data", "encoder", "code", "draws"],
)
def test_whatever_decides_the_numbers_is_refused_by_name_in_train_and_grid(
    hifi, own_encoder, tmp_path, edit, field
):
    shutil.copytree(own_encoder, "encoder")
    write_reviews(Path("reviews.csv"))
    own_task(hifi)
    Path("mine.py").write_text(OWN_CODE)
    method = {"description": "d", "label": "Mine", "source": "s", "implementation": "./mine.py"}
    Path("mine.yaml").write_text(yaml.safe_dump(method))
    grid = {"protocol": "demo", "backbone": "./encoder", "tasks": ["reviews.yaml"]}
    Path("grid.yaml").write_text(yaml.safe_dump(grid | {"methods": ["mine.yaml"]}))
    train = ["train", "--protocol", "demo", "--backbone", "./encoder", "--task", "reviews.yaml"]
    words = ["epochs=1", "max_length=16"]
    assert hifi(*train, "--method", "mine.yaml", *words).code == 0
    assert hifi("grid", "grid.yaml", "--print", *words).out == ""
    edit()
    commands = (
        [*train, "--method", "mine.yaml"],
        ["grid", "grid.yaml", "--print"],
        ["grid", "grid.yaml"],
    )
    for command in commands:
        refused = hifi(*command, *words)
        assert refused.code == 4, command
        assert field in refused.err
