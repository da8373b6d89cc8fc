"""Finding one's way: hifi ls, hifi cp and completion."""

import json
import re
from pathlib import Path

import pytest
import yaml

from hifi_cli.cli.app import app
from hifi_cli.config import registry
from hifi_cli.config.run_config import HeadsConfig


@pytest.mark.parametrize("kind", [*registry.KINDS])
def test_every_name_has_a_line_with_what_it_is(hifi, kind):
    lines = hifi("ls", kind).out.splitlines()
    assert [line.split()[0] for line in lines] == registry.names(kind)
    assert all(len(line.split("  ")) > 1 for line in lines)
    if kind in ("methods", "tasks"):
        assert all(re.search(r"\b(18|19|20)\d\d\b|table|project", line) for line in lines), "a source is missing"


def test_without_a_word_the_kinds_are_listed(hifi):
    folders = {path.name for path in registry.configs_directory().iterdir() if any(path.glob("*.yaml"))}
    assert folders == set(registry.KINDS), "configs/ has a folder that no command lists"
    lines = hifi("ls").out.splitlines()
    assert [line.split()[0] for line in lines] == [*registry.KINDS, "runs"]
    assert lines[0].split()[:2] == ["tasks", str(len(registry.names("tasks")))]


def test_json_lists_every_name_and_csv_is_for_runs(hifi):
    listed = [(entry["kind"], entry["name"]) for entry in json.loads(hifi("ls", "--format", "json").out)]
    assert listed == [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]
    answer = hifi("ls", "tasks", "--format", "csv")
    assert answer.code == 2 and "hifi ls runs --format csv" in answer.err


def test_a_key_names_the_yamls_that_set_it_for_some_tasks_only(hifi):
    protocols, methods = (line.split("  ")[-1].split(", ") for line in hifi("ls", "learning_rate").out.splitlines()[1:])
    assert "ehft-released: (by method)" in protocols and "ehft: (by method/backbone/task/case)" in protocols
    assert "bitfit: 0.0004 (by task)" in methods and "dora: 0.0003" in methods


def test_a_name_is_explained_with_settings_defaults_and_meanings(hifi):
    said = hifi("ls", "lora").out
    for part in (
        "hifi train --task mrpc --method lora",
        "Hu et al. 2022",
        "settings.r=8",
        "Rank of the updates.",
        "settings.targets=[query, key]",
    ):
        assert part in said
    assert re.search(r"settings\.targets=.*Default: \[query, value\]", said)
    said = hifi("ls", "hifi-midtop").out
    assert re.search(r"heads\.strategy=midtop .*Default: layerwise", said) and "heads.damping=0.85" in said
    assert "Whether the biases of the rows train too" in said
    assert "nyu-mll/glue" in hifi("ls", "rte").out
    both = hifi("ls", "demo").out
    assert all(f"{kind} demo" in both for kind in ("backbone", "protocol", "table"))
    assert "protocol demo" not in hifi("ls", "tables/demo").out
    answer = hifi("ls", "rt")
    assert answer.code == 2 and "did you mean 'rte'?" in answer.err


def test_a_configuration_key_is_explained_with_its_default(hifi):
    first, *setters = hifi("ls", "weight_decay").out.splitlines()
    assert first.split(maxsplit=1) == ["weight_decay=0.01", "Weight decay of AdamW; not applied to biases and LayerNorms."]
    assert any(line.split()[0] == "protocols" and "ehft: " in line for line in setters), setters
    every = hifi("ls", "config").out
    assert all(name in every for name in ("weight_decay=0.01", "heads.damping=0.85", "scoring.xi"))
    section = [line for line in hifi("ls", "heads").out.splitlines() if line.startswith("heads")]  # a claim has this name too
    assert len(section) == 1 + len(HeadsConfig.model_fields)
    assert any(line.startswith("heads.damping=0.85 ") for line in section)
    assert "did you mean" in hifi("ls", "headz.damping").err


@pytest.mark.parametrize("path", sorted(registry.configs_directory().glob("*/*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_starts_with_a_command_that_uses_it(path):
    assert path.read_text().startswith("# ")


def test_a_copy_works_wherever_it_lies(hifi, tmp_path):
    assert hifi("cp", "tasks/rte", tmp_path).out.strip() == str(tmp_path / "rte.yaml")
    assert hifi("cp", "backbones/demo", "mine.yaml").code == 0
    answer = hifi("train", "--protocol", "demo", "--backbone", "mine.yaml", "--dry-run")
    path = yaml.safe_load(answer.out)["backbone"]["path"]
    assert (Path(path) / "config.json").is_file()
    for words, message in [
        (("cp", "demo", "x.yaml"), "backbones/demo, protocols/demo, tables/demo"),
        (("cp", "rte", tmp_path), "exists; name another file"),
        (("cp", "rte", "mine.txt"), "must end in .yaml"),
        (("cp", "rtee", "y.yaml"), "did you mean 'rte'?"),
    ]:
        answer = hifi(*words)
        assert answer.code == 2 and message in answer.err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("hifi train --task demo-", {"demo-acceptability", "demo-entailment", "demo-roles", "demo-similarity", "demo-topics"}),
        ("hifi train --task rte,wn", {"rte,wnli"}),
        ("hifi train --method hifi-la", {"hifi-layerwise"}),
        ("hifi train --backbone mini", {"minilm"}),
        ("hifi ls hifi-mid", {"hifi-midtop"}),
        ("hifi cp backbones/", {f"backbones/{name}" for name in registry.names("backbones")}),
        ("hifi table ehft-", {"ehft-1", "ehft-2", "ehft-3", "ehft-4", "ehft-random"}),
        ("hifi export run --as d", {"delta"}),
        ("hifi table --score ", {"best", "last", "max"}),
        ("hifi table --include limited,u", {"limited,unequal"}),
        ("hifi train heads.strat", {"heads.strategy="}),
        ("hifi train heads.strategy=mid", {"heads.strategy=midtop"}),
        ("hifi train heads.strategy = mid", {"midtop"}),  # the words that bash makes of it
        ("hifi train --task rte tf32=", {"tf32=true", "tf32=false"}),
        ("hifi select --rank rich", {"richness", "richness-inverse"}),
    ],
)
def test_the_shell_completes_names(typed, offered, monkeypatch, capsys):
    words = {"_HIFI_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app(prog_name="hifi")
    assert set(capsys.readouterr().out.split()) == offered


def test_a_protocol_lists_what_its_paper_leaves_open_its_bases_words_included(hifi):
    lines = {line.split()[0]: line for line in hifi("ls", "protocols/ehft-released").out.splitlines()}
    assert "draws four random seeds" in lines["seeds"]
    assert lines["task_head.activation"].split()[1] == "code:"  # open in the text, not in the code
    assert lines["lora"].endswith("settings: {r: 8}")
    lines = {line.split()[0]: line for line in hifi("ls", "protocols/hifi-fewshot").out.splitlines()}
    assert "128 for scoring only" in lines["max_length"]  # hifi's reason


def test_flags_have_no_type_in_help_and_lists_have_both_names(hifi):
    for command in ("train", "table", "grid", "ls"):
        assert "<bool>" not in hifi(command, "--help").out
    both = hifi("train", "--help").out
    assert all(name in both for name in ("--task,--tasks", "--method,--methods"))
