"""What is refused before anything runs, with a message that says what is wrong."""

from pathlib import Path

import pytest
import yaml
from finished_runs import flip_bit
from project_files import copy_yaml
from synthetic_runs import write_run

from hifi_cli.config.sources import resolve
from hifi_cli.errors import ConflictError
from hifi_cli.hub import unavailable_error
from hifi_cli.records.layout import RunDirectory

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["grid", "demo-search", "--print", " heads.k = 1"], "heads.k"),
        (["grid", "demo-search", "--print", "heads={k: 1}"], "heads.k"),
        (["grid", "laptop-rates", "--print", "holdout=0.2"], "holdout"),
        (["grid", "demo-search", "--print", "variant=mine"], "variant"),
        (["figure", "hifi-3", "--protocol", "demo", "learning_rate=1e-3"], "learning_rate"),
        (["figure", "head-bench", "--protocol", "demo", "heads.rank=richness"], "heads.rank"),
        (["figure", "ehft-5", "--protocol", "demo", "log_every=5"], "log_every"),
        (["figure", "hifi-6-k", "--protocol", "demo", "heads={k: 1}"], "heads"),
        (["figure", "hifi-7", "--protocol", "demo", "shots=8"], "shots"),
        (
            ["figure", "ehft-7", "--protocol", "demo", "settings.stage1_fraction=0.2"],
            "settings.stage1_fraction",
        ),
    ],
)
def test_a_key_that_varies_in_a_grid_or_figure_cannot_be_set(hifi, words, key):
    answer = hifi(*words)
    assert (
        answer.code == 2
        and f"sets {key}" in answer.err
        and ": leave it out" in answer.err
        and not answer.out
    )


@pytest.mark.parametrize("command", ["score", "select"])
def test_one_file_holds_the_result_of_one_task(hifi, command):
    answer = hifi(command, "--protocol", "demo", "--task", "rte,cola", "--out", "x.json")
    assert (
        answer.code == 2 and "--out x.json is for one task: give one, or leave it out" in answer.err
    )


@pytest.mark.parametrize(
    ("words", "given"),
    [(["--protocol", "laptop"], "--protocol laptop"), (["--shots", "3"], "--shots 3")],
)
def test_a_table_of_a_setting_without_runs_says_which_there_are(hifi, words, given):
    write_run("results", "full-ft", "rte", 1, 0.5)
    write_run("results", "full-ft", "rte", 1, 0.5, shots=16)
    answer = hifi("table", *words, "--out", "table.md")
    assert answer.code == 3 and not Path("table.md").exists()
    message = f"no finished run of {given} in results; there are runs of protocol hifi (backbone bert-large, 16 shots) and protocol hifi (backbone bert-large)"
    assert message in answer.err


@pytest.mark.parametrize("command", ["eval", "predict", "export"])
def test_runs_that_were_copied_without_their_weights_say_so(finish_run, hifi, data, command):
    run = finish_run()
    delta = run / "delta.safetensors"
    flip_bit(delta) if command == "eval" else delta.unlink()
    more = {"predict": [data / "RTE/dev.tsv"], "export": ["--to", "out"]}.get(
        command, ["--data-dir", data]
    )
    answer = hifi(command, run, *more)
    assert (
        answer.code == 3
        and "delta.safetensors is missing, or is not the file that the run wrote"
        in answer.out + answer.err
    )


def test_claims_without_a_run_of_their_protocol_say_which_there_are(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5, protocol="laptop", backbone="minilm")
    answer = hifi("claims rankings")
    assert (
        answer.code == 0
        and "no finished run of --protocol hifi in results; there are runs of protocol laptop (backbone minilm)"
        in answer.err
    )
    assert "no finished run" not in hifi("claims rankings --protocol laptop").err


CLAIM = {"kind": "difference", "text": "t", "where": "w", "first": "bitfit", "second": "full-ft"}
CLAIMS = {"description": "d", "protocol": "hifi", "backbone": "bert-large", "tasks": ["rte"]}


def test_the_users_own_method_is_known_from_its_runs(hifi):
    Path("claims.yaml").write_text(
        yaml.safe_dump({**CLAIMS, "claims": {"better": {**CLAIM, "first": "my-lora"}}})
    )
    assert hifi("claims claims.yaml").code == 2
    for seed in range(1, 9):
        write_run("results", "my-lora", "rte", seed, 0.7 + seed / 1000)
        write_run("results", "full-ft", "rte", seed, 0.5)
    assert "reproduced" in hifi("claims claims.yaml").out


@pytest.mark.parametrize(
    ("key", "message"), [("columns", "unknown task 'nope'"), ("rows", "unknown method 'nope'")]
)
def test_a_wrong_name_in_a_table_is_refused(hifi, key, message):
    content = {
        "protocol": "hifi",
        "backbone": "bert-large",
        "rows": ["full-ft"],
        "columns": ["rte"],
    } | {key: ["nope"]}
    Path("table.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("table table.yaml")
    assert answer.code == 2 and message in answer.err and not answer.out


def test_the_suffix_of_the_file_names_the_format(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5)
    for suffix, content in (
        ("md", "| --- |"),
        ("csv", "method,label,source"),
        ("tex", "\\begin{tabular}"),
        ("json", '"rows"'),
        ("txt", "─"),
    ):
        assert hifi("table", "--out", f"table.{suffix}").code == 0
        assert content in Path(f"table.{suffix}").read_text(), suffix
    assert hifi("table --out table.md --format csv").code == 0
    assert Path("table.md").read_text().startswith("method,")


def test_a_suffix_of_another_format_is_refused(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5)
    text = "the name must end in .txt, .md, .tex, .csv, .json; or give --format; hifi report writes HTML"
    for words in (["table"], ["claims", "hifi"]):
        answer = hifi(*words, "--out", "t.html")
        assert (answer.code, answer.err) == (
            2,
            f"hifi: --out t.html: '.html' is not written; {text}\n",
        ), words
    answer = hifi("report --out r.pdf")
    assert (
        answer.code == 2
        and "the name must end in .html, .htm; hifi table writes other formats" in answer.err
    )
    assert not list(Path().glob("*.*"))
    assert hifi("report --out r.HTML").code == 0


def test_a_ranking_that_is_not_there_is_missing(hifi):
    answer = hifi(
        "train --protocol demo --task demo-entailment --method hifi-layerwise heads.rank=./mine.py"
    )
    assert answer.code == 3 and answer.err.strip() == "hifi: no file ./mine.py"
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("predict run new.csv --out said.tsv", "the name must end in .csv, .jsonl"),
        ("results export results --out runs.csv", "the name must end in .parquet"),
    ],
)
def test_a_file_gets_no_suffix_of_another_format(hifi, command, known):
    write_run("results", "full-ft", "rte", 1, 0.5)
    answer = hifi(command)
    assert answer.code == 2 and known in answer.err and not Path(command.split()[-1]).exists()


@pytest.mark.parametrize("text", ["", "id,text\n1,fine\n"])
def test_a_file_without_heads_is_not_called_damaged(hifi, text):
    """It is the user's own: nothing makes it again."""
    Path("mine.csv").write_text(text)
    answer = hifi("train --protocol demo --method hifi-layerwise --heads mine.csv")
    assert answer.code == 2 and not Path("results").exists()
    assert "--heads mine.csv: neither a file of hifi select nor a JSON list" in answer.err
    assert "delete" not in answer.err


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        # YAML reads this as a mapping from `rr:8` to null.
        (
            "settings.options={}",
            "settings.options={rr:8}",
            "settings.options.rr:8 is not set there, null here",
        ),
        (
            "settings.options={}",
            "settings.options={r: 4}",
            "settings.options.r is not set there, 4 here",
        ),
    ],
)
def test_a_setting_that_only_one_of_two_runs_names_is_a_difference(
    before, now, difference, tmp_path
):
    def config(word):
        return resolve(
            task="demo-entailment",
            method="peft",
            protocol="demo",
            overrides=["settings.type=lora", word],
        )

    directory = RunDirectory.of(config(before), tmp_path)
    directory.write_settings(config(before))
    with pytest.raises(ConflictError, match="another configuration") as refused:
        directory.check_is_of(config(now))
    assert f"({difference})" in str(refused.value)


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ("bitfit.yaml", "bitfit", "own/methods/bitfit.yaml is a file of your own, and this"),
        ("bitfit", "bitfit.yaml", "it keeps no copy of bitfit.yaml"),
        ("bitfit.yaml", "other/bitfit.yaml", "differs from other/bitfit.yaml"),
    ],
)
def test_a_method_of_the_users_own_with_a_shipped_name_is_another_one(
    hifi, before, now, difference
):
    copy_yaml(hifi, "methods/bitfit", "bitfit.yaml")
    Path("other").mkdir()
    Path("other/bitfit.yaml").write_text(f"{Path('bitfit.yaml').read_text()}# another\n")
    configs = [resolve(method=method, protocol="demo") for method in (before, now)]
    directory = RunDirectory.of(configs[0], Path("results"))
    directory.write_settings(configs[0])
    with pytest.raises(ConflictError, match=r"a run by another method bitfit\.yaml") as refused:
        directory.check_is_of(configs[1])
    assert difference in str(refused.value)


@pytest.mark.parametrize(
    ("content", "command", "said"),
    [
        ({"methods": ["bitfit"], "vary": {"epochz": [1]}}, "grid", "unknown key 'epochz'"),
        ({"methods": ["bitfit"], "vary": {"epochs": ["many"]}}, "grid", "epochs must be a whole"),
        ({"kind": "sweep", "settings": {"key": "heads.kk", "values": [1]}}, "figure", "'heads.kk'"),
        ({"kind": "head-ranking", "config": {"epochz": 1}}, "figure", "unknown key 'epochz'"),
    ],
)
def test_a_wrong_key_of_a_yaml_is_not_said_to_be_of_the_command_line(hifi, content, command, said):
    place = {"protocol": "demo", "backbone": "demo", "tasks": ["demo-entailment"], "seeds": [1]}
    Path("mine.yaml").write_text(yaml.safe_dump({"description": "d", **place, **content}))
    answer = hifi(command, "mine.yaml")
    assert answer.code == 2 and said in answer.err and not answer.out
    assert " mine: " in answer.err and "command line" not in answer.err


def test_the_advice_about_a_missing_dataset_is_not_for_shipped_tasks_alone():
    """`--data-dir` has the official files of shipped tasks, and none of `hub:NAME`."""
    message = str(unavailable_error("dataset", "nobody/nothing", OSError("HF_HUB_OFFLINE is set")))
    assert "'nobody/nothing' is not available on the hub" in message
    assert "a data file instead of hub:NAME (--task FILE)" in message
