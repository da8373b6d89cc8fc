"""Figures from the command line, and their pictures from a CSV alone."""

import csv
import json
import re
import shlex
from pathlib import Path
from typing import get_args

import matplotlib.image
import numpy as np
import pytest
import yaml
from project_files import copy_yaml
from synthetic_grids import write_cell
from tiny_inputs import QUICK

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.base import parse
from hifi_cli.figures import figure, style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.training.data import ResourceCache

pytestmark = pytest.mark.slow

STORED = Path(__file__).parent / "stored_figures"  # of a former study, whose pictures are drawn again
KEPT = sorted(STORED.glob("*.csv"))


@pytest.mark.parametrize("name", registry.names("figures"))
def test_every_figure_resolves_in_every_size(name, tmp_path):
    protocols = figure_spec.load(name).protocols
    assert "demo" in protocols and protocols.keys() & {"laptop", "laptop-ehft"}
    for protocol in [None, *protocols]:
        spec = figure_spec.load(name, protocol=protocol, seeds=[1])
        request = FigureRequest(spec, ResourceCache(tmp_path))
        for task in spec.tasks:
            for method in spec.methods:
                assert request.config(task, method).protocol == spec.protocol
        assert all(cell.config.task in spec.tasks for cell in request.cells())


@pytest.mark.parametrize("kind", get_args(figure_spec.FigureKind))
def test_every_kind_is_a_module_that_computes_and_draws(kind):
    module = figure.module_of(kind)
    settings = {"key": "heads.k", "values": [1]} if kind == "sweep" else {}
    assert callable(module.compute) and callable(module.draw) and parse(module.Settings, settings, kind)


def test_a_size_changes_only_the_settings_it_names():
    paper, small = figure_spec.load("hifi-6-k"), figure_spec.load("hifi-6-k", protocol="laptop")
    assert small.settings["key"] == paper.settings["key"] == "heads.k"
    assert small.settings["values"] != paper.settings["values"]
    assert (small.protocol, small.backbone, small.methods) == ("laptop", "minilm", paper.methods)
    assert figure_spec.load("hifi-6-k", backbone="demo", tasks=["rte"], seeds=[7]).model_dump(
        include={"backbone", "tasks", "seeds"}
    ) == {
        "backbone": "demo",
        "tasks": ["rte"],
        "seeds": [7],
    }


KEPT_BY_KIND = {figure_spec.read_record(path).kind: path for path in KEPT}


@pytest.mark.parametrize("path", KEPT_BY_KIND.values(), ids=KEPT_BY_KIND)
def test_kept_numbers_are_drawn_from_the_csv_alone(path, tmp_path):
    figure.draw(path, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    content = json.loads(path.with_suffix(".json").read_text())
    assert content["description"].split(" ")[0] in text
    assert content["backbone"] in text
    assert all(registry.label_of("tasks", task) in text for task in content["tasks"])


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_figures_have_the_words_of_their_yaml(path):
    record = figure_spec.read_record(path)
    spec = figure_spec.load(path.stem.removesuffix("-laptop"), protocol=record.protocol)
    assert (record.description, record.source, record.note) == (spec.description, spec.source, spec.note)


def test_numbers_are_kept_for_every_kind_of_figure():
    assert KEPT_BY_KIND.keys() == set(get_args(figure_spec.FigureKind))


def test_figure_command_writes_numbers_and_a_picture(tiny, hifi, tmp_path):
    answer = tiny("figure", "hifi-6-d", "--out", tmp_path / "d.pdf", "scoring.samples=4")
    assert (answer.code, answer.out) == (0, f"{tmp_path / 'd.pdf'}\n")
    assert (tmp_path / "d.pdf").read_bytes().startswith(b"%PDF")
    [numbers] = (tmp_path / "results" / "figures").glob("*.csv")
    assert numbers.name == "hifi-6-d-tiny-bert-rte-scoring.samples--4.csv"
    with numbers.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 19 * 2  # damping factors and layers
    again = hifi("figure", numbers, "--out", tmp_path / "d.svg")
    assert again.code == 0
    assert "damping factor d" in (tmp_path / "d.svg").read_text()
    first = (tmp_path / "d.svg").read_bytes()
    assert hifi("figure", numbers, "--out", tmp_path / "d.svg").code == 0
    assert (tmp_path / "d.svg").read_bytes() == first


def test_missing_runs_are_named_with_their_commands(tiny):
    answer = tiny("figure", "ehft-6a", "--seeds", "1,2")
    assert answer.code == 3
    assert answer.err.startswith("hifi: 10 of 10 runs are missing: hifi train --task rte --method eh-ft-bitfit --backbone ")
    assert answer.err.count("\n") == 1
    printed = tiny("figure", "ehft-6a", "--seeds", "1,2", "--print")
    assert printed.code == 0
    lines = printed.out.splitlines()
    assert len(lines) == 10 and sum("--seeds 2 " in line for line in lines) == 5
    fractions = {line.partition("settings.stage1_fraction=")[2] for line in lines}  # 0.1 is the method's own
    assert sorted(fractions) == [""] + [f"{value} variant=settings.stage1_fraction--{value}" for value in (0.3, 0.5, 0.7, 0.9)]


def test_a_users_own_yamls_have_their_names_in_a_figure_and_their_paths_in_its_commands(hifi):
    copies = {"tasks/demo-entailment": "own/task.yaml", "methods/bitfit": "own/bits.yaml", "protocols/demo": "own/rules.yaml"}
    Path("own").mkdir()
    for source, copy in copies.items():
        copy_yaml(hifi, source, copy)
    bits = Path("own/bits.yaml")
    bits.write_text(bits.read_text().replace("label: BitFit", "label: My BitFit"))
    content = {
        "description": "d",
        "kind": "sweep",
        "tasks": ["own/task.yaml"],
        "methods": ["own/bits.yaml"],
        "backbone": "demo",
    }
    Path("mine.yaml").write_text(yaml.safe_dump({**content, "settings": {"key": "epochs", "values": [6]}}))
    command = ("figure", "mine.yaml", "--protocol", "own/rules.yaml")
    answer = hifi(*command, "--print")
    paths = "--task own/task.yaml --method own/bits.yaml --backbone demo --protocol own/rules.yaml"
    assert answer.code == 0 and paths in answer.out
    spec = figure_spec.load("mine.yaml", protocol="own/rules.yaml")
    [cell] = FigureRequest(spec, ResourceCache(Path("results"), None)).cells()
    write_cell(cell, Path("results"))
    assert hifi(*command).code == 0
    numbers = Path("results/figures/mine-rules.csv")
    (row,) = csv.DictReader(numbers.read_text().splitlines())
    record = figure_spec.read_record(numbers)
    assert (row["task"], row["method"], record.protocol, record.tasks) == ("task", "bits", "rules", ["task"])
    claim = {"kind": "number", "text": "t", "where": "w", "figure": "mine.yaml", "column": "score", "at_least": 0.1}
    claims = {"description": "d", "protocol": "own/rules.yaml", "backbone": "demo", "tasks": ["own/task.yaml"]}
    Path("claims.yaml").write_text(yaml.safe_dump({**claims, "claims": {"high": {**claim, "every": True}}}))
    answer = hifi("claims", "claims.yaml", "--format", "json")
    assert answer.code == 0, answer.err
    table = json.loads(answer.out)
    assert table["rows"][0]["cells"]["verdict"]["value"] == "undecided (a single seed)", table
    registry.find("methods", "own/bits.yaml")
    assert registry.label_of("methods", "bits") == "My BitFit"


def test_the_runs_of_a_figure_are_a_grid(tiny, hifi):
    sweep = {
        "description": "mine",
        "kind": "sweep",
        "tasks": ["rte"],
        "backbone": "demo",
        "settings": {"key": "heads.k", "values": [1, 2]},
    }
    quick = [word for word in QUICK if not word.startswith("heads.k")]  # it varies
    Path("mine.yaml").write_text(yaml.safe_dump(sweep))
    Path("runs.yaml").write_text("figure: mine.yaml\n")
    assert tiny("figure", "mine.yaml", *quick).code == 3
    commands = [shlex.split(line)[1:] for line in tiny("grid", "runs.yaml", "--print", *quick).out.splitlines()]
    assert [words[0] for words in commands] == ["score", "train", "train"]
    assert [hifi(*words).code for words in commands] == [0, 0, 0]
    assert tiny("figure", "mine.yaml", *quick).code == 0
    for word, message in (
        ("methods: [full-ft]", "a figure defines its own methods"),
        ("", "this figure needs no finished runs"),
    ):
        Path("runs.yaml").write_text(f"figure: {'mine.yaml' if word else 'hifi-3'}\n{word}\n")
        refused = tiny("grid", "runs.yaml")
        assert refused.code == 2 and message in refused.err
    Path("runs.yaml").write_text("figure: mine.yaml\n")
    refused = tiny("grid", "runs.yaml", "--methods", "full-ft")
    assert refused.code == 2 and "a figure defines its own methods" in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hifi-33"], "unknown figure 'hifi-33'; did you mean 'hifi-3'"),
        (["hifi-3", "--out", "x.gif"], "the name must end in .png, .pdf, .svg"),
        (["hifi-3", "--protocol", "lapto"], "unknown protocol 'lapto'; did you mean 'laptop'"),
        (["any.csv", "--protocol", "demo", "--train"], "hifi figure of a CSV does not use --protocol and --train"),
    ],
)
def test_wrong_words_are_told_before_anything_is_computed(hifi, words, message):
    answer = hifi("figure", *words)
    assert answer.code == 2
    assert message in answer.err


def test_a_csv_without_metadata_or_with_another_figures_is_refused(hifi, tmp_path):
    path = tmp_path / "f.csv"
    assert hifi("figure", path).code == 3
    path.write_text("a,b\n1,2\n")
    assert hifi("figure", path).code == 3
    content = json.loads(KEPT[0].with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(content))
    answer = hifi("figure", path)
    assert answer.code == 2
    assert "do not hold this figure" in answer.err
    path.with_suffix(".json").write_text(json.dumps({**content, "kind": "pie"}))
    answer = hifi("figure", path)
    assert (answer.code, "kind: Input should be" in answer.err) == (2, True)


def test_the_color_map_and_lines_differ_in_grey():
    import matplotlib as mpl

    def grey(colors):
        return np.asarray(colors)[:, :3] @ [0.2126, 0.7152, 0.0722]

    assert (np.diff(grey(mpl.colormaps[style.COLOR_MAP](np.linspace(0, 1, 32)))) < 0).all()
    looks = [style.line(number) for number in range(6)]
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == 6


def test_a_pdf_is_written_without_warnings_of_libraries(tmp_path, caplog):
    [path] = [path for path in KEPT if path.name.startswith("ranking")]  # its mathematical symbols come from another font
    figure.draw(path, tmp_path / "figure.pdf")
    assert caplog.records == []


def test_chance_is_named_in_the_legend_once(tmp_path):
    for name in ("ranking", "robustness"):
        [path] = [path for path in KEPT if path.name.startswith(name)]
        figure.draw(path, tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_text().count(">chance<") == 1


def test_the_color_bar_of_losses_has_round_ticks(tmp_path):
    [path] = [path for path in KEPT if path.name == "hifi-7-laptop.csv"]
    figure.draw(path, tmp_path / "figure.svg")
    labels = re.findall(r">([\d.]+)</text>", (tmp_path / "figure.svg").read_text())
    assert labels[-8:] == ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]


def test_a_png_has_ink_and_no_color_where_nothing_is(tiny, tmp_path):
    assert tiny("figure", "ranking", "--out", tmp_path / "r.png", "scoring.samples=4", "heads.k=2").code == 0
    picture = matplotlib.image.imread(tmp_path / "r.png")[..., :3]
    assert picture.shape[1] == round(style.WIDE * 200)
    assert 0.3 < (picture.min(-1) > 0.99).mean() < 0.95
