"""The command line as a user meets it: what it prints, the files it leaves, and its exit codes."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import yaml
from hifi_processes import environment
from project_files import copy_yaml
from run_folders import demo_folder, run_folder

from hifi_cli.cli.app import COMMANDS, load
from hifi_cli.cli.options import TRACKERS
from hifi_cli.config.run_config import Ranking
from hifi_cli.heads import measures, ranking

RUN = run_folder(method="hifi-layerwise")


def one_line(answer, code):
    """An error is one line, without a traceback."""
    assert answer.code == code, answer.err
    lines = [line for line in answer.err.splitlines() if line.startswith("hifi: ")]
    assert len(lines) == 1
    assert "Traceback" not in answer.err
    return lines[0]


def test_the_main_job(tiny, hifi, encoders, data):
    trained = tiny("train --method hifi-layerwise,full-ft --seeds 1,2")
    assert trained.code == 0, trained.err
    results = json.loads((RUN / "results.json").read_text())
    assert (results["status"], results["epochs"]["total"]) == ("done", 2)
    assert results["scores"]["best"] == results["scores"]["max"] >= results["scores"]["last"]
    assert results["n_examples"] == {"train": 48, "selection": 24, "reported": 24}
    assert results["data"].keys() == results["data_origin"].keys() >= {"train", "validation"}
    assert '"/' not in json.dumps([results["data_origin"], results["provenance"]["command"]])
    assert results["provenance"]["libraries"]["torch"] == version("torch")
    assert datetime.fromisoformat(results["provenance"]["finished"]).tzinfo == UTC
    linux = Path("/proc/cpuinfo")
    cpu = linux.read_text() if linux.is_file() else ""
    assert results["provenance"]["device"] in cpu or "model name" not in cpu
    assert results["schema_version"] == 2 and len(results["backbone_weights"]) == 64
    (process,) = results["processes"]
    assert process["device"] == results["provenance"]["device"] and process["first_step"] == 1
    assert process["precision"] == results["precision"] == "fp32"
    assert yaml.safe_load((RUN / "config.yaml").read_text()) == results["config"]
    assert results["config"]["heads"]["k"] == 2
    lines = [json.loads(line) for line in (RUN / "predictions.jsonl").read_text().splitlines()]
    hits = np.mean([line["label"] == line["prediction"] for line in lines])
    assert hits == pytest.approx(results["metrics"]["accuracy"])
    heads = list(Path("results/heads/tiny-bert/rte").glob("*.json"))
    assert len(heads) == 1  # one choice, shared by both seeds

    again = tiny("train --method hifi-layerwise --seeds 1,2")
    assert again.err.count("finished before") == 2
    evaluated = hifi(f"eval {RUN} --data-dir {data}")
    assert "logits identical" in evaluated.out


def test_score_and_select(tiny, hifi, tmp_path):
    scored = tiny("score --out scores.json scoring.samples=10")
    content = json.loads(Path("scores.json").read_text())
    assert scored.code == 0
    assert content["samples"] == 10 and np.shape(content["correlation"]) == (2, 4, 4)
    chosen = tiny("select --out heads.json scoring.samples=10 heads.k=2 heads.strategy=midtop")
    heads = json.loads(Path("heads.json").read_text())
    assert heads["heads"][0] == []
    assert chosen.out == f"layer  1: -\nlayer  2: {' '.join(map(str, heads['heads'][1]))}\n"
    Path("list.json").write_text(json.dumps(heads["heads"], indent=1))
    trained, again = (
        tiny(f"train --method hifi-layerwise --heads {name}.json") for name in ("heads", "list")
    )
    assert (
        trained.code == again.code == 0
        and "finished before" in again.err
        and "next: hifi table" in again.err
    )
    assert not Path("results/heads").exists()
    literal = tiny("select scoring.samples=10 heads.k=2 heads.rank=pagerank-literal")
    assert "nothing to choose" in one_line(literal, 2)


def test_a_finished_run_and_a_warmed_encoder_can_be_scored(finish_run, tiny):
    changes = {
        "before": [],
        "after": [f"start_from={finish_run()}"],
        "warm": ["scoring.warm_steps=3", "batch_size=8"],
    }
    for name, words in changes.items():
        answer = tiny(f"score --out {name}.json scoring.samples=10", *words)
        assert answer.code == 0, answer.err
    correlations = [json.loads(Path(f"{name}.json").read_text())["correlation"] for name in changes]
    assert correlations[0] != correlations[1] != correlations[2] != correlations[0]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "--task", "rtx", "--method", "full-ft"], 2, "did you mean 'rte'?"),
        (["train", "--task", "rte", "--method", "full-tf"], 2, "did you mean 'full-ft'?"),
        (["train", "--task", "rte", "epoch=3"], 2, "did you mean 'epochs'?"),
        (["train", "--task", "rte", "--seeds", "1,x"], 2, "--seeds"),
        (["train", "--task", "rte", "--seeds", "1,1"], 2, "distinct numbers"),
        (["train", "--task", "rte", "--seeds", "5-1"], 2, "1,2,3 or 1-5"),
        (["train", "--task", "rte", "--method", "hifi"], 2, "did you mean 'hifi-layerwise'?"),
        (
            ["compare", "hifi", "full-ft"],
            2,
            "unknown method 'hifi'; did you mean 'hifi-layerwise'?",
        ),
        (["compare", "full-ft"], 2, "needs two or more different methods"),
        (["train", "--no-such-option"], 2, "--no-such-option"),
        (["train", "--epochs", "1"], 2, "write epochs=VALUE"),
        (["grid", "demo", "--fp16"], 2, "write precision=bf16"),
        (["train"], 2, "--task is required"),
        (["nonsense"], 2, "nonsense"),
        (["table"], 3, "no finished run"),
        (["table", "nonsense"], 2, "unknown table"),
        (["table", "--score", "mean"], 2, "'best', 'last', 'max'"),
        (
            ["table", "--include", "limited,equal"],
            2,
            "--include: 'equal' is not one of limited, unequal",
        ),
        (["train", "--report-to", "wand"], 2, "'wand' is not one of aim, comet_ml"),
        (["grid", "demo", "--site", "slumr"], 2, "did you mean 'slurm'"),
        (["table", "--format", "pdf"], 2, "'text', 'md', 'tex', 'csv', 'json'"),
        (["eval", "nowhere"], 3, "nowhere holds no finished run"),
        (["ls", "nonsense"], 2, "unknown kind"),
        # A command without settings does not advise to write one.
        (["ls", "runs", "--task", "rte"], 2, "No such option: --task"),
        (["train", "--sedes", "1"], 2, "(hifi train --help)"),
        (["results", "chek"], 2, "(hifi results --help)"),
        (["train", "--heads", "nowhere.json", "--protocol", "demo"], 3, "nowhere.json"),
        (["ls", "rtx"], 2, "did you mean"),
    ],
)
def test_wrong_usage_is_one_line_and_the_documented_code(hifi, words, code, message):
    assert message in one_line(hifi(*words), code)


def test_missing_backbone_data_and_hub(hifi, encoders, data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answer = one_line(hifi(f"train --task rte --backbone {encoders['bert']} --data-dir nowhere"), 3)
    assert "there is no directory nowhere (--data-dir)" in answer
    answer = one_line(hifi(f"train --task rte --backbone no/such --data-dir {data}"), 3)
    for way in ("--backbone with a local directory", "--backbone minilm", "--protocol demo"):
        assert way in answer
    assert "--data-dir" not in answer


def test_an_encoder_without_known_heads_is_refused(hifi, encoders, data, tmp_path):
    from transformers import FNetConfig, FNetModel

    FNetModel(FNetConfig(hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path / "fnet")
    for path in encoders["bert"].glob("tok*"):
        (tmp_path / "fnet" / path.name).write_bytes(path.read_bytes())
    answer = one_line(
        hifi(
            f"train --task rte --method hifi-layerwise --backbone {tmp_path}/fnet --data-dir {data}"
        ),
        2,
    )
    assert "fnet" in answer


def test_heads_of_another_encoder_are_refused(tiny, tmp_path):
    assert tiny("select --out heads.json").code == 0
    selection = json.loads(Path("heads.json").read_text())

    def given(changes):
        Path("heads.json").write_text(json.dumps({**selection, **changes}))
        return one_line(tiny("train --method hifi-layerwise --heads heads.json"), 2)

    assert "of backbone 'other', not of 'tiny-bert'" in given(
        {"backbone": "other", "heads": [[0], [1]]}
    )
    assert "2 layers of 4 heads" in given({"backbone": "tiny-bert", "heads": [[0], [4]]})
    assert "chosen twice" in given({"backbone": "tiny-bert", "heads": [[0, 0], [1]]})
    assert "bitfit tunes no selected heads" in one_line(
        tiny("train --method bitfit --heads heads.json"), 2
    )
    assert "heads.json is damaged (delete it and make it again): heads " in given(
        {"backbone": "tiny-bert", "heads": "all"}
    )
    assert "only 4 heads" in one_line(tiny("select heads.k=5"), 2)


def test_a_diverged_run_is_told_and_enters_no_mean(tiny, hifi):
    answer = tiny(
        "train -q --method full-ft learning_rate=1e30 max_grad_norm=null warmup=0 log_every=1"
    )
    assert "1 of 1 runs diverged (rte/full-ft/seed1)" in one_line(answer, 1)
    results = json.loads(
        (Path(str(RUN).replace("hifi-layerwise", "full-ft")) / "results.json").read_text()
    )
    assert (results["status"], results["scores"], results["collapsed"]) == ("diverged", None, True)
    assert "1 run left out: diverged" in hifi("table").out


def test_a_run_on_ones_own_yamls_is_read_again_without_them(hifi):
    words = ["--protocol", "demo", "--task", "mine.yaml", "--method", "my-bitfit.yaml", "epochs=1"]
    run = demo_folder(task="mine", method="my-bitfit")
    for source, own in (
        ("tasks/demo-entailment", "mine.yaml"),
        ("methods/bitfit", "my-bitfit.yaml"),
    ):
        copy_yaml(hifi, source, own)
    assert hifi("train", *words, "limit=40").code == 0
    assert "finished before" in hifi("train", *words, "limit=40").err

    with Path("my-bitfit.yaml").open("a") as file:
        file.write("# and a word more\n")
    other = hifi("train", *words, "limit=40")
    assert other.code == 4 and "another method my-bitfit.yaml" in other.err
    assert hifi("train", *words, "limit=40", "--force").code == 0

    Path("mine.yaml").unlink()
    Path("my-bitfit.yaml").unlink()
    again = hifi(f"eval {run}")
    assert again.code == 0, again.err


LOCKING = """
import sys
from pathlib import Path
from hifi_cli.locks import locked
with locked(Path(sys.argv[1]), wait=False):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_two_processes_on_one_run_do_not_mix(tiny):
    folder = Path(str(RUN).replace("hifi-layerwise", "full-ft"))
    refused = tiny("train --method full-ft start_from=nowhere")
    assert refused.code == 3 and not folder.exists(), "a refused run leaves no directory"
    command = [sys.executable, "-c", LOCKING, folder.with_name(f".{folder.name}.lock")]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        assert "another process is writing" in one_line(tiny("train --method full-ft"), 4)
        other.communicate()
    assert tiny("train --method full-ft").code == 0


def test_a_command_frees_what_it_no_longer_needs_though_its_imports_are_not_searched():
    code = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.isenabled(), len(gc.get_objects()) < 100));"
        " sys.argv = ['hifi', 'ls', 'tasks']; from hifi_cli.cli.app import main; main()"
    )
    lines = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert lines[-1] == "True True"


def test_help_needs_no_torch():
    code = "import sys, hifi_cli.cli.app; print([m for m in ('torch', 'pydantic', 'yaml', 'pandas', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


IMPORTED_BY_HELP = """
import json, sys
from hifi_cli.cli.app import load
imported = []
for group in json.loads(sys.argv[1]):
    for name in group:
        load(name)
    imported.append(sorted(sys.modules))
print(json.dumps(imported))
"""
# Commands in the order in which one process loads them, each group with what none has imported until then.
WITHOUT_DATAFRAMES = ["ls", "train", "score", "select", "eval", "predict"]
HEAVY = {"torch", "transformers", "accelerate", "peft", "datasets"}
LOADED = [
    (WITHOUT_DATAFRAMES, HEAVY | {"sklearn", "scipy", "pandas", "pyarrow", "matplotlib"}),
    (["export", "figure"], HEAVY | {"sklearn", "scipy"}),
    ([*COMMANDS], HEAVY),
]


def test_help_of_a_command_imports_no_library_that_takes_seconds():
    """The options are those that `--help` prints; their commands are loaded one after the other."""
    groups = json.dumps([commands for commands, _ in LOADED])
    printed = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_HELP, groups],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for (commands, heavy), imported in zip(LOADED, json.loads(printed), strict=True):
        assert "hifi_cli.cli.train" in imported
        assert heavy & set(imported) == set(), commands


def test_the_trackers_are_those_of_accelerate():
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(TRACKERS) >= set(LOGGER_TYPE_TO_CLASS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_in_panels_and_an_example_that_it_accepts(name):
    command = load(name)
    words = command.epilog.removeprefix(f"Example: hifi {name}").split()
    command.make_context(name, words)
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    ]
    assert {"quiet", "verbose", "debug"} <= {option.name for option in options}
    assert [option.name for option in options if not option.rich_help_panel] == []


def test_a_list_is_given_once_with_commas_or_more_often(hifi):
    words = ["train", "--protocol", "demo", "--dry-run", "--method"]
    listed = [hifi(*words, "bitfit,full-ft"), hifi(*words, "bitfit", "--methods", "full-ft")]
    assert listed[0].out == listed[1].out and listed[0].out.count("\n--- ") == 1


def test_a_dry_run_says_once_what_runs_have_in_common(hifi):
    words = ["train", "--protocol", "demo", "--dry-run", "--method", "bitfit", "--seeds"]
    alone = hifi(*words, "1").out.splitlines()
    first, second = hifi(*words, "1,2").out.split("--- # as before, except for\n")
    # The first of several runs is without defaults and reasons.
    *shown, plan = first.split("# defaults and reasons: --dry-run with one run, or --format json\n")
    start = alone.index("# defaults")
    assert "".join(shown).splitlines() == alone[:start]
    assert plan and alone[-len(plan.splitlines()) :] == plan.splitlines()
    assert re.fullmatch(r"seed: 2 .*\n# directory .*seed2 \(new\)\n", second)


def test_a_dry_run_begins_with_what_is_set(hifi):
    words = "train --protocol demo --dry-run --method bitfit adam_epsilon=1e-7"
    chosen, defaults = hifi(words).out.split("# defaults\n")
    assert "adam_epsilon" in chosen and "eval_batch_size" not in chosen
    values = [line for line in defaults.splitlines() if "  # " in line]
    assert values and all(line.endswith("  # default") for line in values)


def test_a_dry_run_as_json_has_every_run_whole(hifi):
    words = "train --protocol demo --dry-run --method bitfit,full-ft --format json"
    runs = json.loads(hifi(words).out)
    assert [run["config"]["method"] for run in runs] == ["bitfit", "full-ft"]
    assert [run["sources"]["method"] for run in runs] == ["command line", "command line"]
    assert all(run["config"].keys() == runs[0]["config"].keys() for run in runs)
    assert {"about": "missing", "text": "nothing"} in runs[1]["plan"]


def test_the_rankings_are_those_that_are_implemented():
    assert {*ranking.RANKINGS, "random", *measures.MEASURES} == set(get_args(Ranking))


def test_a_runs_own_configuration_repeats_it(finish_run, hifi, data):
    config = finish_run() / "config.yaml"
    first = json.loads((config.parent / "results.json").read_text())
    answer = hifi(f"train -c {config} --data-dir {data} --results-dir again")
    again = json.loads((run_folder("again") / "results.json").read_text())
    assert answer.code == 0 and again["epoch_metrics"] == first["epoch_metrics"], answer.err
    assert again["config_hash"] == first["config_hash"]
    other = hifi(f"train -c {config} --seeds 2 --data-dir {data} epochs=1 --dry-run")
    assert "seed2 (new)" in other.out and "seed: 2" in other.out and "# -c config.yaml" in other.out
    assert re.search("epochs: 1 +# command line", other.out)
    answer = hifi(f"train -c {config} --method bitfit")
    assert "repeats a run, which decides --task, --method" in one_line(answer, 2)
