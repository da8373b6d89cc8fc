"""What a new user meets: wrong input is refused in one line, before a run and not during it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from synthetic_runs import write_run
from tiny_inputs import QUICK, write_lines

from hifi_cli.config import registry
from hifi_cli.errors import ConflictError
from hifi_cli.grids.jobs import Job
from hifi_cli.results.search_result import MethodSearch, SearchResult, SettingScore
from hifi_cli.results.study import Study

pytestmark = pytest.mark.slow


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


def test_the_results_of_the_demo_are_read_where_there_are_no_others(hifi):
    for method in ("full-ft", "bitfit"):
        for seed in (1, 2):
            write_run("results/demo", method, "demo-entailment", seed, 0.7, protocol="demo", backbone="demo")
    for words in (["table"], ["ls", "runs"], ["compare", "full-ft", "bitfit"], ["report"]):
        answer = hifi(*words)
        assert answer.code == 0 and "no finished run in results: reading results/demo" in answer.err, words
    write_run("results/other", "lora", "rte", 1, 0.5)
    answer = hifi("table")
    assert answer.code == 3 and "but in results/demo, results/other: hifi table --results-dir results/demo" in answer.err


def write_search(chosen="0.002", backbone="tiny-bert"):
    """The file of a search with two settings, and four runs of it."""
    tried = [
        SettingScore(setting={"learning_rate": rate, "heads.k": "1"}, score=score, deviation=0.01, seeds=2)
        for rate, score in (("0.0005", 0.6), ("0.002", 0.7))
    ]
    search = MethodSearch(
        task="rte", method="full-ft", chosen=next(s for s in tried if s.setting["learning_rate"] == chosen), tried=tried
    )
    path = SearchResult.path(Path("results"), "my-search", "hifi", backbone)
    SearchResult(grid="my-search", protocol="hifi", backbone=backbone, searches=[search]).write(path)
    for variant in ("a", "b"):
        for seed in (1, 2):
            run = write_run("results", "full-ft", "rte", seed, 0.6, backbone=backbone, variant=variant)
            target = run.parent / variant / run.name
            target.parent.mkdir(exist_ok=True)
            run.rename(target)
    return path


def test_a_search_has_a_table_and_runs_left_out_are_counted(hifi, tmp_path):
    write_search()
    for words in (["table"], ["compare", "full-ft", "bitfit"]):
        answer = hifi(*words)
        assert answer.code == 3 and "no finished run in results but 4 of searches: hifi table search" in answer.err
    answer = hifi("table", "search", "--format", "md")
    assert answer.code == 0, answer.err
    assert "| Full-FT, learning_rate=0.0005 heads.k=1 | 60.00 ±1.00 | 2 |  |" in answer.out
    assert "| Full-FT, learning_rate=0.002 heads.k=1 | 70.00 ±1.00 | 2 | RTE |" in answer.out
    assert "-c results/grids/my-search/chosen-hifi-tiny-bert.json" in answer.out
    assert hifi("table", "search", "my-search", "--format", "md").out == answer.out
    assert hifi("report").code == 0
    assert "Search my-search (protocol hifi, backbone tiny-bert)" in Path("results/report.html").read_text()


def test_a_search_on_another_task_keeps_the_choice_of_the_first(tmp_path):
    path = tmp_path / "chosen.json"

    def write(tasks, rate, values=("1", "2"), **fields):
        setting = SettingScore(setting={"learning_rate": rate}, score=0.5, seeds=1)
        searches = [MethodSearch(task=task, method="full-ft", chosen=setting, tried=[setting]) for task in tasks]
        varied = {"full-ft": {"learning_rate": list(values)}}
        result = SearchResult(grid="g", protocol="hifi", backbone="b", searches=searches, varied=varied, **fields)
        result.with_earlier(path).write(path)
        return {search.task: search.chosen.setting["learning_rate"] for search in SearchResult.read(path).searches}

    assert write(["rte"], "1") == {"rte": "1"}
    assert write(["cola", "cb"], "1") == {"rte": "1", "cola": "1", "cb": "1"}
    assert write(["cola"], "2") == {"rte": "1", "cola": "2", "cb": "1"}
    assert write(["cb"], "3", values=("1", "2", "3")) == {"cb": "3"}, "other values are another search"
    for terms in ({"trials": 2}, {"splits": ["holdout"]}):
        with pytest.raises(ConflictError, match="such choices are not mixed"):
            write(["cola"], "2", **terms)


def test_the_setting_that_a_search_chose_is_a_configuration(tiny):
    chosen = write_search()
    answer = tiny("train", "--method", "full-ft", "-c", chosen, "--dry-run")
    assert "learning_rate: 0.002" in answer.out and f"# -c {chosen}" in answer.out
    answer = tiny("train", "--method", "bitfit", "-c", chosen, "--dry-run")
    assert answer.code == 2 and "holds no chosen setting of bitfit on rte" in answer.err


def test_a_conflict_is_found_before_any_run_trains_and_names_the_variant(finish_run, tiny):
    finish_run()
    answer = tiny("train", "--method", "bitfit,full-ft", "learning_rate=0.5")
    assert answer.code == 4 and "learning_rate" in answer.err and "variant=NAME" in answer.err
    assert not list(Path("results/runs").rglob("bitfit"))
    assert tiny("train", "--method", "full-ft", "learning_rate=0.5", "variant=fast").code == 0
    assert Study(Path("results")).runs["variant"].notna().sum() == 1


def test_another_encoder_in_a_directory_of_the_same_name_is_another_run(hifi, finish_run, encoders, data, tmp_path):
    from safetensors.torch import load_file, save_file

    finish_run()
    other = tmp_path / "other" / encoders["bert"].name
    shutil.copytree(encoders["bert"], other)
    words = ("train", "--task", "rte", "--backbone", other, "--method", "full-ft", "--data-dir", data, *QUICK)
    again = hifi(*words)
    assert again.code == 0 and "finished before" in again.err, "the same weights elsewhere"
    weights = load_file(other / "model.safetensors")
    first = next(iter(weights))
    save_file(weights | {first: weights[first] + 1}, other / "model.safetensors", metadata={"format": "pt"})
    grid = {"protocol": "hifi", "backbone": str(other), "tasks": ["rte"], "methods": ["full-ft"], "seeds": [1]}
    Path("once.yaml").write_text(yaml.safe_dump(grid))
    for command in (words, ["grid", "once.yaml", "--data-dir", data, *QUICK]):
        answer = hifi(*command)
        assert answer.code == 4 and "holds a run on other weights than those in" in answer.err


def test_eval_remembers_the_data_and_says_when_they_are_gone(hifi, encoders, data, tmp_path, monkeypatch):
    shutil.copytree(data, tmp_path / "glue")
    words = ["--task", "rte", "--method", "bitfit", "--backbone", encoders["bert"], "--data-dir", "glue"]
    assert hifi("train", *words, *QUICK).code == 0
    run = "results/runs/hifi/tiny-bert/rte/bitfit/seed1"
    answer = hifi("eval", run)
    assert answer.code == 0 and "logits identical" in answer.out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "logits identical" in hifi("eval", tmp_path / run).out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glue").rename(tmp_path / "moved")
    answer = hifi("eval", run)
    assert answer.code == 3 and "was trained on the data in glue/RTE, which are not there now" in answer.err
    assert hifi("eval", run, "--data-dir", "moved").code == 0


def test_a_forced_grid_repeats_finished_runs(hifi, finish_run, encoders, data, tmp_path, monkeypatch):
    """Its process only writes down its command, so that the run is not repeated; then this process runs the command."""
    grid = {"protocol": "hifi", "backbone": str(encoders["bert"]), "tasks": ["rte"], "methods": ["full-ft"], "seeds": [1]}
    Path("once.yaml").write_text(yaml.safe_dump(grid))
    run = finish_run()
    words = ["grid", "once.yaml", "--data-dir", data, *QUICK]
    assert hifi(*words, "--print").out == ""
    assert hifi(*words, "--print", "--force").code == 2 and (run / "results.json").is_file()
    before = (run / "results.json").stat().st_mtime_ns
    script = ["sh", "-c", f'echo "$@" > {tmp_path}/command', "sh"]
    monkeypatch.setattr(Job, "process_arguments", lambda job, options: [*script, *job.arguments(options)])
    answer = hifi(*words, "--force", "-j", "1")
    assert answer.code == 1 and "0 of 1 done, 1 failed" in answer.err
    assert hifi(*Path("command").read_text().split()).code == 0
    assert (run / "results.json").stat().st_mtime_ns > before


def test_a_refused_method_stops_a_list_before_any_training(hifi, encoders, data):
    words = ["--task", "rte", "--backbone", encoders["bert"], "--data-dir", data, *QUICK, "batch_size=64", "epochs=1"]
    answer = hifi("train", *words, "--method", "full-ft,lp-ft,bitfit")
    assert answer.code == 2 and not list(Path("results").rglob("results.json"))
    assert "lp-ft: 1 training step cannot be shared by 2 stages" in answer.err
    assert "Nothing was trained; the other methods can run: --method full-ft,bitfit" in answer.err
    answer = hifi("train", *words, "--method", "lp-ft,eh-ft-bitfit")
    assert answer.code == 2 and "can run" not in answer.err


def test_the_command_of_a_missing_run_repeats_the_data_directory(hifi):
    write_run("results", "full-ft", "rte", 1, 0.6, backbone="bert-large")
    (missing,) = json.loads(hifi("table", "hifi-2", "--data-dir", "glue data", "--format", "json").out)["missing"]
    assert missing.endswith("hifi grid hifi-2 --data-dir 'glue data'")
    answer = hifi("claims", "hifi", "--data-dir", "glue_data")
    assert answer.code == 0 and "--data-dir glue_data" in answer.out


def test_a_copy_of_a_task_is_told_from_the_original(hifi):
    write_run("results", "full-ft", "rte", 1, 0.6)
    run = write_run("results", "full-ft", "my-rte", 1, 0.7)
    (run / "own/tasks").mkdir(parents=True)
    (run / "own/tasks/my-rte.yaml").write_text(f"{registry.find('tasks', 'rte').read_text()}")
    table = hifi("table", "--format", "md")
    assert "| my-rte (Acc.) |" in table.out and "| rte (Acc.) |" in table.out, table.err


def test_ctrl_c_is_confirmed(hifi, monkeypatch):
    def interrupt(kind):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "names", interrupt)
    answer = hifi("ls", "methods")
    assert (answer.code, answer.err.strip()) == (130, "hifi: interrupted")
