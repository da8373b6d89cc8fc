"""Finding one's way: hifi ls and completion."""

import json
import re
from pathlib import Path

import pytest
import yaml
from project_files import ROOT
from synthetic_runs import write_run

from hifi_cli.config import registry
from hifi_cli.config.run_config import HeadsConfig


@pytest.mark.parametrize("kind", [*registry.KINDS])
def test_every_name_has_a_line_with_what_it_is(hifi, kind):
    lines = [line for line in hifi("ls", kind).out.splitlines() if not line.startswith("#")]
    names = [line.split()[0] for line in lines]
    assert sorted(names) == sorted(registry.names(kind))
    if kind != "methods":
        assert names == registry.names(kind)
    assert all(len(line.split("  ")) > 1 for line in lines)
    if kind in ("methods", "tasks"):
        assert all(re.search(r"\b(18|19|20)\d\d\b|table|project", line) for line in lines), (
            "a source is missing"
        )


def test_methods_are_listed_by_kind_as_in_the_docs(hifi):
    sections = re.split(r"^## ", (ROOT / "docs/methods.md").read_text(), flags=re.MULTILINE)[1:5]
    listed = re.split(r"^# .*\n", hifi("ls methods").out, flags=re.MULTILINE)[1:]
    assert len(sections) == len(listed) == 4
    for section, lines in zip(sections, listed, strict=True):
        table = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        # `-r1024` and `eh-ft-...-reserve` are abbreviations.
        documented = set(re.findall(r"`([a-z0-9][a-z0-9-]+)`", " ".join(table)))
        names = {line.split()[0] for line in lines.splitlines()}
        assert documented <= names
        assert all("eh-ft-" in name or name == "peft" for name in names - documented)


def test_a_name_of_a_table_and_a_figure_prints_both(hifi):
    said = hifi("ls ehft-1").out
    table = (registry.configs_directory() / "tables/ehft-1.yaml").read_text()
    figure = (registry.configs_directory() / "figures/ehft-1.yaml").read_text()
    assert said == f"# tables/ehft-1\n{table}# figures/ehft-1\n{figure}"


def test_without_a_word_the_kinds_are_listed(hifi):
    folders = {
        path.name for path in registry.configs_directory().iterdir() if any(path.glob("*.yaml"))
    }
    assert folders == set(registry.KINDS), "configs/ has a folder that no command lists"
    lines = hifi("ls").out.splitlines()
    assert [line.split()[0] for line in lines] == [*registry.KINDS, "config", "runs"]
    assert lines[0].split()[:2] == ["tasks", str(len(registry.names("tasks")))]


@pytest.mark.parametrize(
    ("task", "positive"),
    [("mrpc", "equivalent"), ("qqp", "duplicate"), ("multirc", "true"), ("rte", "")],
)
def test_a_task_says_the_class_that_f1_counts(hifi, task, positive):
    said = hifi("ls", f"tasks/{task}").out
    content = yaml.safe_load(said)
    assert not positive or content["labels"][1].lower() == positive
    assert ("# F1 is of the class" in said) == bool(positive)
    assert f"'{content['labels'][1]}', the second" in said or not positive


def test_a_name_prints_its_yaml_and_a_method_its_settings_too(hifi):
    said = hifi("ls lora").out
    assert said.startswith((registry.configs_directory() / "methods/lora.yaml").read_text())
    assert yaml.safe_load(said) == yaml.safe_load(
        (registry.configs_directory() / "methods/lora.yaml").read_text()
    )
    assert re.search(r"^# settings\.r=8 +Rank of the updates\. \(int\)$", said, re.MULTILINE)
    assert "# settings.targets=[query, value]" in said and "heads." not in said
    said = hifi("ls hifi-midtop").out
    assert (
        "# heads.strategy=layerwise" in said and "Whether the biases of the rows train too" in said
    )
    assert hifi("ls rte").out == hifi("ls tasks/rte").out
    for word, message in [
        ("demo", "hifi ls backbones/demo or hifi ls protocols/demo or hifi ls tables/demo"),
        ("rt", "did you mean 'rte'?"),
    ]:
        answer = hifi("ls", word)
        assert answer.code == 2 and message in answer.err and not answer.out


def test_a_configuration_key_is_explained_with_its_type_and_default(hifi):
    (line,) = hifi("ls weight_decay").out.splitlines()
    meaning = "Weight decay of AdamW; not applied to biases and LayerNorms. (float)"
    assert line.split(maxsplit=1) == ["weight_decay=0.01", meaning]
    every = hifi("ls config").out
    assert all(
        name in every
        for name in (
            "weight_decay=0.01",
            "heads.damping=0.85",
            "scoring.xi",
            "(auto | fp32 | bf16)",
        )
    )
    section = hifi("ls heads").out.splitlines()
    assert len(section) == len(HeadsConfig.model_fields)
    assert any(
        line.startswith("heads.seed=null ") and line.endswith("(int | null)") for line in section
    )
    assert "did you mean" in hifi("ls headz.damping").err


def test_every_yaml_starts_with_a_command_that_uses_it():
    paths = registry.configs_directory().glob("*/*.yaml")
    assert [path for path in paths if not path.read_text().startswith("# hifi ")] == []


def test_lists_have_both_names_in_help(hifi):
    both = hifi("train --help").out
    assert all(name in both for name in ("--task,--tasks", "--method,--methods")) and not re.search(
        "--force +<bool>", both
    )


def test_a_yaml_of_ones_own_is_no_unknown_name(hifi):
    """Of a data file `hifi ls` prints the task's YAML; of a YAML there is nothing to add."""
    assert hifi("ls mine.yaml").code == 3
    Path("mine.yaml").write_text(hifi("ls methods/lora").out)
    answer = hifi("ls mine.yaml")
    assert answer.code == 2 and not answer.out
    assert "mine.yaml is a YAML of your own" in answer.err and "did you mean" not in answer.err


def test_a_whole_setting_stays_whole_where_some_runs_lack_it(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5)
    write_run("results", "lora", "rte", 1, 0.5, keys={"settings": {"r": 8, "alpha": 0.5}})
    full_ft, lora = json.loads(hifi("ls runs --format json").out)
    assert (lora["settings.r"], lora["settings.alpha"]) == (8, 0.5)
    assert isinstance(lora["settings.r"], int) and full_ft["settings.r"] is None
