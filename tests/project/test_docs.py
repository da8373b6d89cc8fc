"""Every command in README and docs/ runs: those of the demo completely, those on other data and weights with --dry-run."""

import importlib
import json
import re
import shlex
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from prepared_models import encoder_of, examples_of, pretrained_of
from project_files import PAGES, ROOT, copy_yaml, load_script
from scipy import stats

from hifi_cli.config import registry
from hifi_cli.heads.scores import head_outputs
from hifi_cli.methods.full_ft import FullFineTuning
from hifi_cli.models.families import FAMILIES as KNOWN_FAMILIES
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import collate, padding_values
from hifi_cli.training import step_graphs
from hifi_cli.training.runner import ModelRunner
from hifi_cli.training.step_graphs import unsupported_because

# Commands that need runs of other data; other tests run them.
NOT_RUN = {
    "reproduce.md": ["eval", "table", "table"],
    "clusters.md": ["ls"],
}
# Settings for the few rows of the tests.
SHORTER = {"train": ["epochs=1"], "figure": ["epochs=30"]}


def blocks(page, language=""):
    """The code blocks of a page in that language; commands have none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)
    return [content for its_language, content in fenced if its_language == language]


def block_with(text):
    """The Python block of the architecture's page that has a text."""
    (block,) = [block for block in blocks("architecture.md", "python") if text in block]
    return block


def commands_of(page, start):
    lines = [line.split("#")[0].strip() for block in blocks(page) for line in block.splitlines()]
    return [line for line in lines if line.startswith(start)]


def test_make_commands_are_there():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[1] for line in commands_of("README.md", "make ")] == ["demo", "test"]
    assert {"demo", "test"} <= set(targets)
    named = re.findall(
        r"`make ([a-z-]+)`", "".join(PAGES.values()) + (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert {name for name in named if not name.startswith("reproduce-")} <= set(targets)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_readme_leads_to_every_page():
    for page in PAGES.keys() - {"README.md"}:
        assert f"(docs/{page})" in PAGES["README.md"] and "(../README.md)" in PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    folder = ROOT if page == "README.md" else ROOT / "docs"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[page]):
        assert (folder / target).exists(), target


def headings_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page; a comment in a block of code is none."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_into_pages_lead_to_headings(page):
    file = next(path for path in (ROOT / page, ROOT / "docs" / page) if path.is_file())
    text = file.read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text):
        linked = (file.parent / target).read_text() if target else text
        assert anchor in headings_of(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_tests_that_are_named_are_there(page):
    text = PAGES.get(page) or (ROOT / page).read_text()
    named = re.findall(r"\btests/[\w/.-]+\w", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page, "hifi ")])
def test_commands_run(page, hifi, tmp_path):
    not_run: list[str] = []
    for content in blocks("data.md", "csv"):
        (tmp_path / "reviews.csv").write_text(content)
    for content in [*blocks(page, "python"), *blocks(page, "yaml")]:
        if name := re.match(r"# ([\w-]+\.(py|yaml))\n", content):
            (tmp_path / name[1]).write_text(content)
    has_demo_runs = False
    packed = [str(ROOT / "results" / name) for name in ("laptop-pilot", "study", "study-cpu")]
    for line in commands_of(page, "hifi "):
        words = shlex.split(re.sub(r"results/(?=laptop-pilot|study)", f"{ROOT}/results/", line))[1:]
        has_demo_runs = has_demo_runs or (words[0] == "train" and "demo" in words)
        if ">" in words:
            copy_yaml(hifi, words[1], words[-1], *words[2:-2])
            continue
        if words[0] in ("train", "score", "select") and "demo" not in words:
            answer = hifi("train", *words[1:], *(["--dry-run"] if "--dry-run" not in words else []))
            assert "learning_rate:" in answer.out
        elif (
            (words[0] == "ls" and words[1:] != ["runs"])
            or not set(packed).isdisjoint(words)
            or "--print" in words
            or has_demo_runs
        ):
            quick = {
                "train": ["epochs=1", "scoring.samples=20", "--allow-unused"],
                "versus": ["epochs=1", "scoring.samples=20"],
            }
            answer = hifi(*words, *quick.get(words[0], []))
        else:
            not_run.append(words[0])
            continue
        if words[:2] == [
            "results",
            "check",
        ]:  # the tests' demo data have fewer rows than their YAML says
            assert answer.code == 1 and all(
                "limit is not set" in line for line in answer.out.splitlines()
            )
            continue
        assert answer.code == 0, (words, answer.err)
    assert sorted(not_run) == NOT_RUN.get(page, [])


@pytest.mark.slow
def test_the_notebook_runs(hifi, tmp_path):
    """Without Jupyter: a line with ! is a command, a cell with %%writefile a file."""
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for source in ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]:
        first, _, rest = source.partition("\n")
        if first.startswith("%%writefile "):
            (tmp_path / first.split()[1]).write_text(rest)
            continue
        lines = source.splitlines()
        for words in (shlex.split(line)[1:] for line in lines if line.startswith("!hifi ")):
            answer = hifi(*words, *SHORTER.get(words[0], []))
            assert answer.code == 0, (words, answer.err)
        exec("\n".join(line for line in lines if not line.startswith("!")), names)
    assert len(names["runs"]) == 6 and (tmp_path / "heads.png").exists()


def test_the_example_of_a_task_is_the_shipped_one():
    assert (
        blocks("architecture.md", "yaml")[0]
        == (ROOT / "configs" / "tasks" / "wnli.yaml").read_text()
    )


def file_of(name):
    """The file that a page names as `runs/run.py`, or from the project's root."""
    in_package = ROOT / "hifi_cli" / name
    return in_package if in_package.exists() else ROOT / name


def test_the_files_that_the_architecture_names_are_there():
    named = re.findall(r"`((?:hifi_cli/)?\w+/[\w/]*\w(?:\.py|/))`", PAGES["architecture.md"])
    drawn = re.findall(
        r"^[ │├└─▼]*((?:\w+/)+(?:\w+\.py)?) ", PAGES["architecture.md"], re.MULTILINE
    )
    assert len(named) > 60 and len(drawn) > 10
    assert [name for name in [*named, *drawn] if not file_of(name).exists()] == []


def test_the_names_that_the_architecture_gives_are_in_their_files():
    """`RunIdentity` in `runs/identity.py`, or `LOSSES` of `training/losses.py`."""
    named = re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.py)`", PAGES["architecture.md"])
    assert len(named) > 20
    missing = [
        (name, file)
        for name, file in named
        if not re.search(rf"\b{name}\b", file_of(file).read_text())
    ]
    assert missing == []


def test_what_files_of_ones_own_may_import_is_there():
    section = PAGES["architecture.md"].partition("## Imports of your own files\n")[2]
    table = section.partition("\n## ")[0]
    rows = re.findall(r"^\| `(hifi_cli[\w.]+)` \| (.*?) \|", table, re.MULTILINE)
    assert len(rows) > 10
    for module, names in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(importlib.import_module(module), name), (module, name)


def test_the_example_of_a_ranking_ranks():
    names: dict[str, Any] = {}
    exec(block_with("def rank("), names)
    richness, correlation = (
        np.array([1.0, 2.0, 3.0]),
        np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 3.0], [1.0, 3.0, 0.0]]),
    )
    assert names["rank"](richness, correlation, 0.85, 1e-6).order == [2, 0, 1]


def test_the_example_of_a_measured_ranking_measures(make, workspace):
    names: dict[str, Any] = {}
    exec(block_with("def measure("), names)
    config = make()
    encoder = encoder_of(config, workspace)
    pretrained = pretrained_of(config, workspace)
    runner = ModelRunner(
        encoder, task_spec.load("rte"), config, padding_values(pretrained.tokenizer), encoder.device
    )
    examples = examples_of(config, workspace, "train", 32)[:2]
    ((outputs, _),) = head_outputs(encoder, [collate(examples[:1], runner.pad)])
    assert names["measure"](runner, examples[:1])[1, 2] == outputs[1][0, 2].max()


def test_the_figures_on_speed_are_those_that_were_measured():
    measured = json.loads((ROOT / "results" / "bench" / "whole_runs.json").read_text())
    assert load_script("bench").table(measured["tasks"]) in PAGES["performance.md"]
    assert measured["processor"] in PAGES["performance.md"]


def test_the_pairs_of_runs_beside_the_trainer_are_those_that_were_trained():
    """Every comparison that the stored scores allow, with scipy's paired interval."""
    lines = (ROOT / "results" / "parity" / "scores.jsonl").read_text().splitlines()
    scores = pd.DataFrame([json.loads(line) for line in lines])
    page = on_one_line("performance.md")
    rows = 0
    for label, first, second in load_script("trainer_parity").COMPARISONS:
        for (task, epochs), runs in scores.groupby(["task", "epochs"]):
            by_seed = runs.pivot_table(index="seed", columns="arm", values="score")
            if not {first, second} <= {*by_seed}:
                continue
            difference = (by_seed[first] - by_seed[second]).dropna()
            test = stats.ttest_1samp(difference, 0)
            low, high = test.confidence_interval()
            cells = f"{task} | {epochs} | {len(difference)} | {difference.mean():+.2f}"
            assert f"| {label} | {cells} | {low:+.2f} to {high:+.2f} |" in page
            rows += 1
            if epochs == 3:
                ours, other = by_seed[first], by_seed[second]
                assert f"({ours.mean():.1f} ±{ours.std():.1f} here, {other.mean():.1f}" in page
                assert f"±{other.std():.1f} with the Trainer; p = {test.pvalue:.3f})" in page
                assert f"which had {difference[:10].mean():.2f}." in page
                assert f"have {difference[10:].mean():.2f}; the row has all twenty" in page
            # "Only the interval of the first row is within 1.5 points."
            is_within = max(-low, high) < 1.5
            assert is_within == (label.endswith("Trainer, Full-FT") and epochs == 2)
    assert rows == len(re.findall(r"[-+]\d\.\d\d to [-+]\d\.\d\d \|", page))


# Rows of the page on performance: what was measured, and in which layout
STEPS_ON_A_GPU = {
    "Trainer, Full-FT, padded": ("Trainer, full-ft", "padded"),
    "Trainer, Full-FT, texts sorted by length": ("Trainer, full-ft", "grouped"),
    "Trainer, Full-FT, padded, cuDNN's attention": ("Trainer, full-ft", "cuDNN"),
    "Full-FT, not recorded": ("full-ft", "varlen"),
    "Full-FT, recorded": ("full-ft", "graphs"),
    "HiFi (layer-wise), not recorded": ("hifi-layerwise", "varlen"),
    "HiFi (layer-wise), recorded": ("hifi-layerwise", "graphs"),
    "Trainer, LoRA (peft), padded": ("Trainer, lora", "padded"),
    "LoRA, not recorded": ("lora", "varlen"),
    "LoRA, recorded": ("lora", "graphs"),
}


def measured_on_a_gpu(call=""):
    """What a call on a GPU wrote."""
    return json.loads((ROOT / "results" / "bench" / f"gpu-NVIDIA-H200{call}.json").read_text())


def on_one_line(page):
    """The text of a page without its line breaks."""
    return " ".join(PAGES[page].split())


def relative(*errors):
    """The largest relative difference, as pages print it: 3.2e-6."""
    return f"{max(errors):.1e}".replace("e-0", "e-")


def test_the_figures_of_a_gpu_are_those_that_were_measured():
    measured = measured_on_a_gpu()
    rows = [*measured["steps"], *measured["graph-steps"]]
    ms = {(row["step of"], row["layout"], row["tokens"]): row["ms"] for row in rows}
    for label, (program, layout) in STEPS_ON_A_GPU.items():
        rival = "Trainer, lora" if "lora" in program else "Trainer, full-ft"
        cells = []
        for tokens in (11, 53):
            if (program, layout, tokens) not in ms:
                cells += ["", ""]
                continue
            time = ms[program, layout, tokens]
            rivals = [ms[key] for key in ms if key[0] == rival and key[2] == tokens]
            ratio = time / min(rivals)
            cells += [f"{time:.1f}", "1" if ratio == 1 else f"{ratio:.2f}"]
        line = " | ".join([f"| {label}", *cells]) + " |"
        assert line.replace("|  |  |", "| | |") in PAGES["performance.md"], line


RECORDED = {"Full-FT": "full-ft", "HiFi (layer-wise)": "hifi-layerwise", "LoRA": "lora"}
# What a step lacks in each column of the table of savings; "-": nothing.
WITHOUT = ["-", "copies of weights", "gradients written", "rows written together"]


def test_what_each_saving_of_recorded_steps_brings_was_measured():
    rows = measured_on_a_gpu("-levers")["levers"]
    found = {(row["step of"], row["tokens"], row["without"]): row for row in rows}
    assert len(found) == len(rows) == 18
    for (label, method), tokens in product(RECORDED.items(), (11, 53)):
        cells = [f"| {label}", str(tokens)]
        for lever in WITHOUT:
            row = found.get((method, tokens, lever))
            cells.append(f"{row['ms']:.1f}" if row else "")
        cells.append(f"{found[method, tokens, '-']['GB']:.1f}")
        line = (" | ".join(cells) + " |").replace("|  |", "| |").replace("|  |", "| |")
        assert line in PAGES["performance.md"], line


def test_what_is_said_of_the_savings_was_measured():
    rows = measured_on_a_gpu("-levers")["levers"]
    page = on_one_line("performance.md")
    complete = {}
    for row in rows:
        if row["without"] == "-":
            complete[row["step of"], row["tokens"]] = row
    counts = [row["launches"] for row in complete.values()]
    assert f"launches are the same in all columns ({min(counts)} to {max(counts)})" in page
    more_memory, other_losses = [], {}
    for row in rows:
        step = row["step of"], row["tokens"]
        assert row["launches"] == complete[step]["launches"]
        more_memory.append(abs(row["GB"] - complete[step]["GB"]))
        if row["losses"]:
            other_losses[(*step, row["without"])] = f"{100 * row['losses']:.2f} %"
    assert f"peak memory differs by at most {max(more_memory):.2f} GB" in page
    busy = [100 * row["GPU ms"] / row["ms"] for row in complete.values()]
    assert f"the GPU computes for {min(busy):.0f} to {max(busy):.0f} % of the step" in page
    assert f"The losses of the first {load_script('gpu_check/setting').LARGE.steps} steps" in page
    casts = other_losses.pop(("full-ft", 53, "copies of weights"))
    added = other_losses.pop(("full-ft", 53, "gradients written"))
    assert f"{casts} with weights that are cast one by one, and {added} with gradients" in page
    assert other_losses == {}


def test_commits_and_days_of_the_calls_on_a_gpu_are_those_of_their_files():
    _, _, section = PAGES["performance.md"].partition("### What an H200 has shown")
    table = [line for line in section.splitlines() if "`gpu-NVIDIA-H200" in line]
    calls = ["", "-levers", "-checks", "-later"]
    assert len(table) == len(calls)
    for call, line in zip(calls, table, strict=True):
        measured = measured_on_a_gpu(call)["measured"]
        commit = measured["git"]["commit"][:8]
        if measured["git"]["changed"]:
            # The first call ran without git's history, and its commit was noted by hand.
            assert measured["note"] == "commit c2fc5968, copied without its history"
            commit = "c2fc5968"
        assert line.startswith(f"| {commit} | {measured['date']} |")
        assert line.endswith(f"`gpu-NVIDIA-H200{call}.json` |")
        libraries = measured["libraries"]
        assert f"All with torch {libraries['torch']} and peft {libraries['peft']};" in section
        version = libraries["transformers"]
        words = "the last one with" if call == "-later" else "the first three with transformers"
        assert f"{words} {version}" in section


def test_what_is_said_of_the_first_call_on_a_gpu_was_measured():
    measured = measured_on_a_gpu()
    with_dropout, *recorded = measured["graphs"]
    rows = recorded + [row for row in measured["kernels"] if "losses" in row]
    assert len(rows) == 6 and all(row["resumed"] == 0 for row in rows)
    assert with_dropout["losses"] == 0 < with_dropout["graphs"]
    largest = relative(*[row["losses"] for row in rows])
    words = f"Full-FT, HiFi and LoRA differ by up to a relative {largest} from the CPU's, recorded"
    assert words in on_one_line("performance.md")


def test_what_is_said_of_the_checks_on_a_gpu_was_measured():
    measured = measured_on_a_gpu("-checks")
    page = on_one_line("performance.md")
    for part in ("kernels", "correctness", "deterministic"):
        assert all(row["ok"] for row in measured[part])
    methods = [row for row in measured["correctness"] if "losses" in row]
    *missing, graphs = measured["not measured"]
    assert graphs == "graphs" and missing == ["correctness: top-k", "correctness: waveft"]
    count = len(methods)
    assert f"{count} of {count + len(missing)} implementations and adapter types have" in page
    assert all(row["resumed"] == 0 for row in methods)
    assert (
        f"without dropout, up to a relative {relative(*[row['losses'] for row in methods])}" in page
    )
    bf16 = max(row["bf16 losses"] for row in methods)
    assert f"In bf16 the losses are up to {100 * bf16:.1f} % off" in page
    large_model, *kernels = measured["kernels"]
    losses = relative(*[row["losses"] for row in kernels if "losses" in row])
    logits = relative(large_model["logits"])
    assert f"up to a relative {losses} off the CPU's, and the logits of a random encoder" in page
    assert f"shape up to {logits} of the largest" in page
    assert all(row["again"] and row["resumed"] for row in measured["deterministic"])


def test_what_is_said_of_c3a_on_a_gpu_was_measured():
    measured = measured_on_a_gpu("-checks")
    rows = {row["checked"]: row for row in measured["correctness"]}
    assert rows["c3a, initial values of the CPU"]["ok"]
    assert rows["c3a"]["ok"] and rows["c3a"]["resumed"] == 0
    page = on_one_line("methods.md")
    assert f"its losses are up to a relative {relative(rows['c3a']['losses'])} off" in page
    assert f"commit {measured['measured']['git']['commit'][:8]}" in page


# Names of the page for what the tests of recorded steps have as parameters.
KINDS_OF_TASK = {
    "copa": "COPA",
    "swag": "SWAG",
    "squad": "SQuAD",
    "conll2003": "CoNLL-2003",
    "wic": "WiC",
    "stsb": "STS-B",
}
FAMILIES = {
    "deberta-v2": "DeBERTa",
    "mpnet": "MPNet",
    "electra": "ELECTRA",
    "distilbert": "DistilBERT",
    "modernbert": "ModernBERT",
    "qwen3": "Qwen3",
}


def test_the_recorded_steps_that_passed_on_a_gpu_are_listed():
    measured = measured_on_a_gpu("-checks")
    page = on_one_line("performance.md")
    passed, failed = {}, []
    for row in measured["recorded"]:
        test, _, parameter = row["checked"].removesuffix("]").partition("[")
        if row["ok"]:
            passed.setdefault(test, []).append(parameter)
        else:
            failed.append(parameter)
    count = len(measured["recorded"])
    assert f"{count - len(failed)} of {count} tests of `tests/training/" in page
    recorded = len(passed["test_every_method"])
    others = len(passed["test_a_stage_that_cannot_be_recorded_computes"])
    assert f"all {recorded} that can be recorded; the other {others} train" in page
    _, _, table = PAGES["performance.md"].partition("| passed | |\n")
    _, kinds, families, settings = table.splitlines()[1:5]
    assert re.findall(r"[\w-]+(?=[,)])", kinds) == [
        KINDS_OF_TASK[task] for task in passed["test_every_kind_of_task"]
    ]
    names = [FAMILIES[family] for family in passed["test_every_family"]]
    assert families == f"| families | {', '.join(names)} |"
    listed = {name.partition("=")[0] for name in re.findall(r"`(.*?)`", settings)}
    words = " ".join(passed["test_every_setting_of_the_loss"]).split()
    assert listed == {word.partition("=")[0].partition(".")[0] for word in words}
    assert sorted(failed) == ["deberta-v2", "mpnet", "squad"]
    assert "**Two families failed**: DeBERTa and MPNet" in page
    refused = measured["measured"]["libraries"]["tokenizers"]
    assert f"(SQuAD) did not run: the machine had tokenizers {refused}" in page


def test_what_is_said_of_the_last_call_on_a_gpu_was_measured():
    measured = measured_on_a_gpu("-later")
    page = on_one_line("performance.md")
    assert len(measured["recorded"]) == 7 and all(row["ok"] for row in measured["recorded"])
    text = page.partition("seven of these tests ran and passed:")[2].partition(".")[0]
    names = [row["checked"] for row in measured["recorded"]]
    assert text.startswith(" MPNet, SQuAD, the two of Prefix-Tuning, and the three with")
    for part, count in {"mpnet": 1, "squad": 1, "prefix-tuning": 2, "class_weights": 3}.items():
        assert sum(part in name for name in names) == count
    libraries = measured["measured"]["libraries"]
    named = f"transformers {libraries['transformers']} and tokenizers {libraries['tokenizers']}"
    assert named in page
    replays = [f"{sum(row['replays']):,}" for row in measured["replays"]]
    one, by_mps, by_turns = replays
    words = (
        f"{by_mps} times in three seconds with it, {by_turns} times without, and one process {one}"
    )
    assert words in on_one_line("clusters.md")

    repeated = steps = 0
    for line in (ROOT / "results/study/runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        if run["path"].startswith("runs/study-mpnet/"):
            for process in run["record"]["processes"]:
                repeated += process["repeated_steps"]
                steps += process["last_step"] - process["first_step"] + 1
    assert f"repeated {repeated / steps:.0%} of their steps".replace("%", " %") in page


def test_the_bounds_of_recorded_steps_on_a_gpu_are_those_of_their_tests():
    source = (ROOT / "tests" / "training" / "test_recorded_on_a_gpu.py").read_text()
    fp32, bf16 = map(float, re.findall(r"^TOLERANCE\w* = (\S+)", source, re.MULTILINE))
    words = (
        f"by {fp32:g} and {100 * fp32:g} % in fp32, and by {bf16:g} and {100 * bf16:g} % in TF32"
    )
    assert words in on_one_line("performance.md")


def test_what_is_not_recorded_is_listed_with_the_words_of_the_log(monkeypatch):
    """The reasons of every adapter type, option and encoder, of a hook, and of several processes."""

    class OwnStep(FullFineTuning):
        def before_step(self, model, step, steps):
            pass

    types = {*registry.names("methods")}
    options = [{}, {"module_dropout": 0.1}, {"rank_dropout": 0.1}]
    said = set()
    for adapter, chosen in product(types, options):
        settings = SimpleNamespace(type=adapter, options=chosen)
        runner = SimpleNamespace(
            process_state=SimpleNamespace(num_processes=2), config=SimpleNamespace(method="NAME")
        )
        said.update(unsupported_because(runner, OwnStep(settings, None)).split(", "))
    _, _, after = PAGES["performance.md"].partition("| not recorded | because |\n| --- | --- |\n")
    table, _, _ = after.partition("\n\n")
    rows = {line.split("`")[1]: line for line in table.splitlines()}
    monkeypatch.setattr(step_graphs.transformers, "__version__", "5.8.0")
    encoders = {family for family in KNOWN_FAMILIES if step_graphs.encoder_obstacle(family)}
    assert encoders == {*re.findall(r"`([\w-]+)`", rows["encoders of type NAME"])}
    said.update(step_graphs.encoder_obstacle(family).replace(family, "NAME") for family in encoders)
    assert len(rows) == len(table.splitlines()) and rows.keys() == said
