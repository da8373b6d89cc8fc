"""What is refused before anything runs, with a message that says what is wrong."""

from pathlib import Path

import pytest
import yaml
from synthetic_runs import write_run
from tiny_inputs import QUICK

from hifi_cli.config import registry

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("word", ["heads.k=1", " heads.k = 1", "heads={k: 1}"])
def test_a_key_that_varies_in_a_grid_cannot_be_set(hifi, word):
    answer = hifi("grid", "demo-search", word, "--print")
    assert answer.code == 2 and "sets heads.k: leave it out" in answer.err and not answer.out


def test_a_key_that_names_a_grids_runs_cannot_be_set(hifi):
    answer = hifi("grid", "laptop-rates", "holdout=0.2", "--print")
    assert answer.code == 2 and "grid laptop-rates sets holdout: leave it out" in answer.err and not answer.out


@pytest.mark.parametrize(
    ("name", "word"), [("hifi-6-k", "heads={k: 1}"), ("hifi-7", "shots=8"), ("ehft-7", "settings.stage1_fraction=0.2")]
)
def test_a_key_that_varies_in_a_figure_cannot_be_set(hifi, name, word):
    answer = hifi("figure", name, "--protocol", "demo", word)
    assert answer.code == 2 and f"this figure sets {word.partition('=')[0]}" in answer.err and ": leave it out" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "methods", "--protocol", "laptop"], "--protocol selects runs: hifi ls runs --protocol ..."),
        (["ls", "--tasks", "rte"], "--tasks selects runs: hifi ls runs --tasks ..."),
        (["train", "--task", "rte", "--method", "full-ft", "epochs=abc"], "epochs: Input should be a valid integer, not 'abc'"),
    ],
)
def test_options_and_values_that_do_not_fit(hifi, words, message):
    answer = hifi(*words)
    assert answer.code == 2 and message in answer.err and not answer.out


@pytest.mark.parametrize(("words", "given"), [(["--protocol", "laptop"], "--protocol laptop"), (["--shots", "3"], "--shots 3")])
def test_a_table_of_a_setting_without_runs_says_which_there_are(hifi, words, given):
    write_run("results", "full-ft", "rte", 1, 0.5)
    write_run("results", "full-ft", "rte", 1, 0.5, shots=16)
    answer = hifi("table", *words, "--out", "table.md")
    assert answer.code == 3 and not Path("table.md").exists()
    message = f"no finished run of {given} in results; there are runs of protocol hifi (backbone bert-large, 16 shots) and protocol hifi (backbone bert-large)"
    assert message in answer.err


def test_a_conflict_in_a_section_that_the_stored_run_lacks(finish_run, tiny):
    finish_run()
    answer = tiny("train", "--method", "full-ft", "stage1.method=bitfit")
    assert answer.code == 4 and "stage1.method is None there" in answer.err


def test_an_unknown_metric_of_a_task_is_found_by_the_dry_run(hifi, encoders, data):
    content = registry.load("tasks", "rte") | {"metrics": ["acuracy"], "primary": "acuracy"}
    Path("task.yaml").write_text(yaml.safe_dump(content))
    words = ["train", "--task", "task.yaml", "--method", "bitfit", "--backbone", encoders["bert"], "--data-dir", data, *QUICK]
    for more in (["--dry-run"], []):
        answer = hifi(*words, *more)
        assert answer.code == 2 and "unknown metric 'acuracy'; did you mean 'accuracy'?" in answer.err
    assert not Path("results").exists()


@pytest.mark.parametrize("command", ["eval", "predict", "export"])
def test_runs_that_were_copied_without_weights_say_so(finish_run, hifi, data, command):
    run = finish_run()
    (run / "delta.safetensors").unlink()
    more = {"predict": [data / "RTE/dev.tsv"], "export": ["--to", "out"]}.get(command, ["--data-dir", data])
    answer = hifi(command, run, *more)
    assert answer.code == 3 and "delta.safetensors: copy the run with its weights (--weights)" in answer.out + answer.err


def test_claims_without_a_run_of_their_protocol_say_which_there_are(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5, protocol="laptop", backbone="minilm")
    answer = hifi("claims", "rankings")
    assert (
        answer.code == 0
        and "no finished run of --protocol hifi in results; there are runs of protocol laptop (backbone minilm)" in answer.err
    )
    assert "no finished run" not in hifi("claims", "rankings", "--protocol", "laptop").err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("eval", "--task"),
        ("eval", "--method"),
        ("eval", "--protocol"),
        ("eval", "--seeds"),
        ("eval", "--shots"),
        ("score", "--task"),
        ("score", "--protocol"),
        ("score", "--warm-steps"),
    ],
)
def test_options_that_a_run_directory_already_answers_are_refused(command, option, hifi):
    run = ["eval", "some/run"] if command == "eval" else ["score", "--run", "some/run", "--out", "scores.json"]
    answer = hifi(*run, option, "1")
    assert answer.code == 2 and f"does not use {option}: leave it out" in answer.err


@pytest.mark.parametrize("words", [["--out", "scores.json", "scoring.samples=4"], []])
def test_scores_of_a_run_need_a_file_and_take_no_keys(words, hifi):
    answer = hifi("score", "--run", "some/run", *words)
    assert answer.code == 2 and "--run requires --out FILE and takes no KEY=VALUE" in answer.err


def test_a_kind_of_claim_that_there_is_not_is_named_in_short(hifi):
    claim = {"kind": "better", "text": "t", "where": "w"}
    content = {"description": "d", "protocol": "hifi", "backbone": "bert-large", "tasks": ["rte"], "claims": {"better": claim}}
    Path("claims.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("claims", "claims.yaml")
    assert answer.code == 2 and "claims.better.kind: 'better' is not one of 'difference'" in answer.err


def test_a_figure_with_overrides_does_not_replace_the_plain_one(tiny):
    for words in (["heads.k=2"], ["heads.k=1"]):
        assert tiny("figure", "ranking", "scoring.samples=4", *words).code == 0
    assert len(list(Path("results/figures").glob("ranking*.csv"))) == 2
    answer = tiny("figure", "ranking", "scoring.samples=4", "heads.k=99")
    assert answer.code == 2 and "k=99: the encoder has only 4 heads in a layer" in answer.err


CLAIM = {"kind": "difference", "text": "t", "where": "w", "first": "bitfit", "second": "full-ft"}
CLAIMS = {"description": "d", "protocol": "hifi", "backbone": "bert-large", "tasks": ["rte"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second": "ful-ft"}, "unknown method 'ful-ft'; did you mean 'full-ft'?"),
        ({"second": "bitfit"}, "a method is in `first` and in `second`"),
        ({"tasks": ["rtee"]}, "unknown task 'rtee'; did you mean 'rte'?"),
    ],
)
def test_a_wrong_name_in_a_file_of_claims_is_refused(hifi, changes, message):
    Path("claims.yaml").write_text(yaml.safe_dump({**CLAIMS, "claims": {"better": {**CLAIM, **changes}}}))
    answer = hifi("claims", "claims.yaml")
    assert answer.code == 2 and message in answer.err


def test_a_file_that_claims_name_and_that_is_not_there_is_told(hifi):
    for change in ({"first": "my-lora.yaml"}, {"protocol": "my-lora.yaml"}, {"tasks": ["my-lora.yaml"]}):
        Path("claims.yaml").write_text(yaml.safe_dump({**CLAIMS, "claims": {"better": {**CLAIM, **change}}}))
        answer = hifi("claims", "claims.yaml")
        assert (answer.code, answer.err) == (3, "hifi: no file my-lora.yaml\n")


def test_the_users_own_method_is_known_from_its_runs(hifi):
    Path("claims.yaml").write_text(yaml.safe_dump({**CLAIMS, "claims": {"better": {**CLAIM, "first": "my-lora"}}}))
    assert hifi("claims", "claims.yaml").code == 2
    for seed in range(1, 9):
        write_run("results", "my-lora", "rte", seed, 0.7 + seed / 1000)
        write_run("results", "full-ft", "rte", seed, 0.5)
    assert "reproduced" in hifi("claims", "claims.yaml").out


@pytest.mark.parametrize(("key", "message"), [("columns", "unknown task 'nope'"), ("rows", "unknown method 'nope'")])
def test_a_wrong_name_in_a_table_is_refused(hifi, key, message):
    content = {"protocol": "hifi", "backbone": "bert-large", "rows": ["full-ft"], "columns": ["rte"]} | {key: ["nope"]}
    Path("table.yaml").write_text(yaml.safe_dump(content))
    answer = hifi("table", "table.yaml")
    assert answer.code == 2 and message in answer.err and not answer.out


def test_a_claim_on_a_column_that_a_figure_does_not_have(hifi):
    Path("results/figures").mkdir(parents=True)
    stored = Path(__file__).parent / "stored_figures/hifi-6-d-laptop.csv"
    Path("results/figures/hifi-6-d-laptop.csv").write_text(stored.read_text())
    claim = {"kind": "number", "text": "t", "where": "w", "figure": "hifi-6-d", "per": ["layer"], "at_least": 1}
    for column, message in (
        ("nope", "has no column 'nope' (it has task, "),
        ("task", "column 'task' of the figure's CSV holds"),
    ):
        content = {**CLAIMS, "protocol": "laptop", "backbone": "minilm", "claims": {"better": {**claim, "column": column}}}
        Path("claims.yaml").write_text(yaml.safe_dump(content))
        answer = hifi("claims", "claims.yaml")
        assert answer.code == 2 and message in answer.err


def test_the_suffix_of_the_file_names_the_format(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5)
    for suffix, content in (
        ("md", "|---|"),
        ("csv", "method,label,source"),
        ("tex", "\\begin{tabular}"),
        ("json", '"rows"'),
        ("txt", "─"),
    ):
        assert hifi("table", "--out", f"table.{suffix}").code == 0
        assert content in Path(f"table.{suffix}").read_text(), suffix
    assert hifi("table", "--out", "table.md", "--format", "csv").code == 0
    assert Path("table.md").read_text().startswith("method,")
    assert hifi("table", "--out", "TABLE.MD").code == 0 and "|---|" in Path("TABLE.MD").read_text()
    assert hifi("table", "--out", "table").code == hifi("table", "--out", "table.html", "--format", "text").code == 0


def test_a_suffix_of_another_format_is_refused(hifi):
    for seed in (1, 2):
        for method in ("full-ft", "bitfit"):
            write_run("results", method, "rte", seed, 0.5)
    text = "the name must end in .txt, .md, .tex, .csv, .json; or give --format; hifi report writes HTML"
    for words in (["table"], ["compare", "full-ft", "bitfit"], ["claims", "hifi"]):
        answer = hifi(*words, "--out", "t.html")
        assert (answer.code, answer.err) == (2, f"hifi: --out t.html: '.html' is not written; {text}\n"), words
    answer = hifi("report", "--out", "r.pdf")
    assert answer.code == 2 and "the name must end in .html, .htm; hifi table writes other formats" in answer.err
    assert not list(Path().glob("*.*"))
    assert hifi("report", "--out", "r.HTML").code == 0
