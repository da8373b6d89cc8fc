"""A name in a run of others is never a path: no file that the user did not name is read for it, and no code runs."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from finished_runs import read_json
from run_folders import run_folder

from hifi_cli.config.run_config import config_hash_of

CODE = "open({mark!r}, 'w').close()\n"
METHOD = {
    "description": "d",
    "label": "l",
    "source": "s",
    "implementation": "./evil.py",
    "config": {"learning_rate": 1e-3},
}
FIELDS = ("method", "task", "backbone.name", "protocol", "heads.rank", "stage1.method")
FILES = {
    "method": ("evil.yaml", "adapter_config.json"),
    "task": ("evil-task.yaml",),
    "backbone.name": ("evil-backbone.yaml",),
    "protocol": ("evil-protocol.yaml",),
    "heads.rank": ("evil.py",),
    "stage1.method": ("evil.yaml", "adapter_config.json"),
}
CASES = [(field, name) for field in FIELDS for name in FILES[field]]


@pytest.fixture
def executed(tmp_path):
    """A file that exists once code of others was executed."""
    return tmp_path / "executed"


@pytest.fixture
def evil(hifi, tmp_path, executed):
    """A folder in the working directory with files that name code, as a clone of a study may have it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "evil.py").write_text(CODE.format(mark=str(executed)))
    for name in ("evil.yaml", "adapter_config.json"):
        (folder / name).write_text(json.dumps(METHOD))
    task = yaml.safe_load(hifi("ls tasks/rte").out) | {"evaluate": "./shared/evil.py"}
    (folder / "evil-task.yaml").write_text(yaml.safe_dump(task))
    (folder / "evil-backbone.yaml").write_text("{path: ., description: d}")
    (folder / "evil-protocol.yaml").write_text("{base: hifi, description: d, method: ./evil.yaml}")
    return folder


def named(evil, name, kind):
    """The path of a file in the three forms in which a record may hold it."""
    if kind == "absolute":
        return str(evil / name)
    return f"shared/{name}" if kind == "relative" else f"./shared/{name}"


def put(content, field, value):
    """Put a value at a dotted key of a configuration, which then has a whole first stage."""
    section, _, key = field.rpartition(".")
    if section == "stage1":
        content["stage1"] = {"method": "bitfit"}
    (content[section] if section else content)[key] = value


def poison(run, field, value, *, in_record=True):
    """Put a path in place of a name into a record, and move the run to where the record belongs."""
    record = read_json(run / "results.json")
    put(record["config"], field, value)
    top_level = {"backbone.name": "backbone"}.get(field, field)
    if top_level in record and in_record:
        record[top_level] = value
    record["config_hash"] = config_hash_of(record["config"])
    (run / "results.json").write_text(json.dumps(record))
    names = {key: record[key] for key in ("protocol", "backbone", "task", "method", "seed")}
    results = run.parents[5]
    path = run_folder(results, **names).relative_to(results)
    if results / path != run:
        (results / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(run, results / path)
    return (results / path).relative_to(Path.cwd())


def refused(answer, *said):
    assert answer.code == 2, answer
    others = ("warning: ", "note: ")
    (line,) = (line for line in answer.err.splitlines() if not line.startswith(others))
    for text in said:
        assert text in line


@pytest.mark.parametrize("kind", ["absolute", "relative", "with a dot"])
@pytest.mark.parametrize(("field", "name"), CASES)
def test_a_record_with_a_path_in_place_of_a_name_is_refused_and_named(
    hifi, tiny, finish_run, data, evil, executed, field, name, kind
):
    value = named(evil, name, kind)
    run = poison(finish_run(), field, value)
    Path("new.tsv").write_text("sentence1\tsentence2\na\tb\n")
    for words in (
        ["eval", run, "--data-dir", data],
        ["predict", run, "new.tsv"],
        ["export", run, "--to", "model", "--data-dir", data],
        ["results", "merge", "results", "--results-dir", "elsewhere"],
    ):
        for more in ([], ["--trust"]):
            refused(hifi(*words, *more), value, "is a path", str(run / "results.json"))
    refused(hifi("results pack results --out packed"), value, "is a path")
    assert hifi("table").code in (2, 3)
    refused(
        tiny("train", "--method", "full-ft", "--seed", "2", f"start_from={run}"), value, "is a path"
    )
    answer = hifi("results check")
    assert answer.code == 1 and f"{field}: " in answer.out.replace("config: ", ""), answer
    assert "is a path" in answer.out and value in answer.out
    assert not executed.exists()
    assert not Path("elsewhere/runs").exists() and not Path("packed").exists()


@pytest.mark.parametrize(("field", "name"), CASES)
def test_a_path_in_the_configuration_alone_is_refused(
    hifi, finish_run, data, evil, executed, field, name
):
    run = poison(finish_run(), field, str(evil / name), in_record=False)
    refused(hifi("eval", run, "--data-dir", data, "--trust"), "is a path")
    assert hifi("table").code in (2, 3)
    assert hifi("results check").code == 1
    assert not executed.exists()


@pytest.mark.parametrize(("field", "name"), CASES)
def test_a_packed_record_with_a_path_in_place_of_a_name_is_refused_and_named(
    hifi, finish_run, evil, executed, field, name
):
    run = finish_run()
    assert hifi("results pack results --out packed").code == 0
    file = Path("packed/runs.jsonl")
    line = json.loads(file.read_text())
    moved = poison(run, field, str(evil / name))
    line = {"path": str(moved.relative_to("results")), "record": read_json(moved / "results.json")}
    file.write_text(json.dumps(line) + "\n")
    refused(hifi("results merge packed --results-dir elsewhere"), "is a path")
    assert hifi("table --results-dir packed").code in (2, 3)
    answer = hifi("results check packed")
    assert answer.code == 1 and "is a path" in answer.out
    assert not executed.exists()


@pytest.mark.parametrize("kind", ["absolute", "relative", "with a dot"])
@pytest.mark.parametrize(("field", "name"), CASES)
def test_a_config_file_with_a_path_in_place_of_a_name_is_refused_and_named(
    hifi, finish_run, data, evil, executed, field, name, kind
):
    run, value = finish_run(), named(evil, name, kind)
    content = yaml.safe_load((run / "config.yaml").read_text())
    put(content, field, value)
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    for more in ([], ["--dry-run"], ["--trust"], ["--seeds", "2"]):
        answer = hifi("train", "-c", run / "config.yaml", "--data-dir", data, *more)
        refused(answer, "config.yaml", field, value, "is a path")
    answer = hifi("results check")
    assert answer.code == 1 and f"config.yaml: {field}: " in answer.out, answer
    assert not executed.exists()


@pytest.mark.parametrize("field", ["heads.rank", "stage1.method"])
def test_a_file_of_settings_names_no_file_of_code(tiny, evil, executed, field):
    """A file with a few keys may be that of others too; the command line is the user's own."""
    value = f"./shared/{FILES[field][0]}"
    Path("settings.yaml").write_text(yaml.safe_dump({field: value}))
    method = "hifi-layerwise" if field == "heads.rank" else "eh-ft-bitfit"
    answer = tiny("train", "--method", method, "-c", "settings.yaml", "--dry-run")
    refused(answer, "settings.yaml", field, value, "is a path")
    assert not executed.exists()
    tiny("train", "--method", method, f"{field}={value}", "--dry-run")
    assert executed.exists() == (field == "stage1.method")


@pytest.mark.parametrize("name", ["evil", "adapter_config"])
@pytest.mark.parametrize("implementation", ["absolute", "relative", "above"])
def test_a_copy_in_own_names_no_code_outside_of_it(
    hifi, finish_run, data, evil, executed, name, implementation
):
    run = poison(finish_run(), "method", name)
    above = os.path.relpath(evil / "evil.py", run / "own/methods")
    code = {"absolute": str(evil / "evil.py"), "relative": "shared/evil.py", "above": above}
    (run / "own/methods").mkdir(parents=True)
    content = METHOD | {"implementation": code[implementation]}
    (run / f"own/methods/{name}.yaml").write_text(json.dumps(content))
    (run / "config.yaml").unlink()
    for more in ([], ["--trust"]):
        refused(hifi("eval", run, "--data-dir", data, *more))
    if implementation != "relative":  # which lies below the copy, where nothing is
        answer = hifi("results check")
        assert answer.code == 1 and "outside the YAML's folder" in answer.out
    assert not executed.exists()


@pytest.mark.parametrize("where", ["beside the run", "in own"])
def test_a_metric_that_a_record_brings_runs_with_trust_only(
    hifi, finish_run, data, evil, executed, where
):
    run = finish_run()
    own = run / "own/tasks"
    own.mkdir(parents=True)
    task = yaml.safe_load((evil / "evil-task.yaml").read_text())
    metric = own / "evil.py" if where == "in own" else evil / "evil.py"
    shutil.copy(evil / "evil.py", metric) if where == "in own" else None
    (own / "rte.yaml").write_text(yaml.safe_dump(task | {"evaluate": str(metric)}))
    refused(hifi("eval", run, "--data-dir", data), "--trust", str(metric))
    hifi("results check")
    assert not executed.exists()


def test_a_base_that_a_copy_names_by_a_path_is_not_read(hifi, finish_run, evil, executed):
    run = poison(finish_run(), "method", "evil")
    (run / "own/methods").mkdir(parents=True)
    content = {**METHOD, "implementation": "full_ft", "base": "shared/missing.yaml"}
    (run / "own/methods/evil.yaml").write_text(json.dumps(content))
    for words in (["table"], ["ls", "runs"], ["report"]):
        assert hifi(*words).code == 0
    assert not executed.exists()


@pytest.mark.parametrize("content", ["without peft_type", "with peft_type"])
def test_an_adapter_config_names_no_code(tiny, evil, executed, content):
    """What is downloaded as a configuration of peft is data, even where the user names it."""
    more = {"peft_type": "LORA", "r": 2} if content == "with peft_type" else {}
    file = evil / "adapter_config.json"
    file.write_text(json.dumps(METHOD | more))
    answer = tiny("train", "--method", file, "--dry-run")
    refused(answer)
    assert not executed.exists()


def test_options_of_peft_import_nothing(tiny, evil, executed, monkeypatch):
    monkeypatch.syspath_prepend(evil)
    file = evil / "adapter_config.json"
    options = {"r": 2, "megatron_config": "x", "megatron_core": "evil"}
    file.write_text(json.dumps({"peft_type": "LORA", **options}))
    answer = tiny("train --method", file)
    refused(answer, "megatron_config: not supported here")
    assert not executed.exists()


def test_a_ranking_without_a_copy_is_not_looked_for_elsewhere(hifi, finish_run, data, executed):
    """The same name in the working directory, that of a cloned study, is another file."""
    Path("rank.py").write_text(CODE.format(mark=str(executed)))
    run = poison(finish_run("hifi-layerwise"), "heads.rank", "rank.py")
    (run / "config.yaml").write_text(yaml.safe_dump(read_json(run / "results.json")["config"]))
    for more in ([], ["--trust"], ["--dry-run"], ["--seeds", "2"]):
        answer = hifi("train", "-c", run / "config.yaml", "--force", "--data-dir", data, *more)
        refused(answer, "rank.py", "heads.rank=PATH")
    assert hifi("eval", run, "--data-dir", data).code == 0
    assert not executed.exists()


def test_a_run_with_files_of_the_users_own_is_repeated_and_evaluated(tiny, hifi, data, executed):
    """The way in which the user's own files are used stays as it is."""
    Path("mine.yaml").write_text(json.dumps(METHOD | {"implementation": "./mine.py"}))
    Path("mine.py").write_text(
        CODE.format(mark=str(executed))
        + "from hifi_cli.methods.linear_probing import LinearProbing\n\n"
        + "class Mine(LinearProbing):\n    pass\n"
    )
    assert tiny("train --method ./mine.yaml epochs=1").code == 0
    run = run_folder(method="mine")
    assert read_json(run / "results.json")["method"] == "mine"
    refused(hifi("train", "-c", run / "config.yaml", "--data-dir", data, "--force"), "--trust")
    for words in (
        ["train", "-c", run / "config.yaml", "--force", "--data-dir", data, "--trust"],
        ["train", "-c", run / "config.yaml", "--seeds", "2", "--data-dir", data, "--trust"],
        ["eval", run, "--data-dir", data, "--trust"],
    ):
        answer = hifi(*words)
        assert answer.code == 0, answer.err


def test_a_file_whose_name_would_be_a_path_again_is_refused(tiny):
    Path("mine.yaml.yaml").write_text(json.dumps(METHOD))
    refused(tiny("train --method mine.yaml.yaml"), "rename the file")
