"""Figures from the command line, and their pictures from a CSV alone."""

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml
from run_folders import run_folder
from synthetic_runs import write_search
from tiny_inputs import QUICK

from hifi_cli.config import figure_spec, registry
from hifi_cli.errors import ConflictError, MissingError, Terminated
from hifi_cli.figures import figure
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training.loop import Trainer

pytestmark = pytest.mark.slow

STORED = sorted((Path(__file__).parent / "stored").glob("*.csv"))  # numbers of a former study


def request_of(name, protocol, results_dir=Path("results"), **changes):
    return FigureRequest(
        figure_spec.load(name, protocol=protocol, **changes), Workspace(results_dir)
    )


@pytest.mark.parametrize("name", registry.names("figures"))
def test_every_figure_resolves_in_every_size(name, tmp_path):
    protocols = figure_spec.load(name).protocols
    assert "demo" in protocols and protocols.keys() & {"laptop", "laptop-ehft"}
    for protocol in [None, *protocols]:
        request = request_of(name, protocol, tmp_path, seeds=[1])
        spec = request.spec
        protocols = {
            request.config(task, method).protocol for task in spec.tasks for method in spec.methods
        }
        # Figures of finished runs name neither tasks nor methods
        assert protocols == (set() if request.kind.shows_finished_runs else {spec.protocol})
        assert all(cell.config.task in spec.tasks for cell in request.kind.cells(request))


def test_a_size_changes_only_the_settings_it_names():
    paper, small = figure_spec.load("hifi-6-k"), figure_spec.load("hifi-6-k", protocol="laptop")
    assert small.settings["key"] == paper.settings["key"] == "heads.k"
    assert small.settings["values"] != paper.settings["values"]
    assert (small.protocol, small.backbone, small.methods) == ("laptop", "minilm", paper.methods)
    changed = figure_spec.load("hifi-6-k", backbone="demo", tasks=["rte"], seeds=[7])
    assert (changed.backbone, changed.tasks, changed.seeds) == ("demo", ["rte"], [7])


def test_the_command_line_wins_over_the_figures_own_keys():
    request = request_of("hifi-3", None)
    assert request.config("mrpc").epochs == 1
    request.overrides = ("epochs=2",)
    assert request.config("mrpc").epochs == 2


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_numbers_of_every_kind_are_drawn(path, tmp_path, caplog):
    name = path.stem.removesuffix("-laptop")
    data = pd.read_csv(path)
    protocol = "laptop-ehft" if name.startswith("ehft") else "laptop"
    request = request_of(name, protocol, tasks=list(data["task"].dropna().unique()))
    figure.draw(request, data, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    words = [
        request.spec.description.split(" ")[0],
        *(registry.label_of("tasks", task) for task in request.spec.tasks),
    ]
    assert all(word in text for word in words) and caplog.records == []


def test_numbers_are_stored_for_every_kind():
    kinds = {figure_spec.load(path.stem.removesuffix("-laptop")).kind for path in STORED}
    assert kinds == figure.KINDS.keys()


def test_the_csv_is_the_cache_of_one_figure(tiny, tmp_path):
    words = ("figure", "hifi-6-d", "--out", tmp_path / "d.svg", "scoring.samples=4")
    assert tiny(*words).out == f"{tmp_path / 'd.svg'}\n"
    [numbers] = (tmp_path / "results" / "figures").glob("*.csv")
    assert numbers.name == "hifi-6-d-tiny-bert-rte-scoring.samples--4.csv"
    table = pd.read_csv(numbers)
    assert len(table) == 19 * 2  # damping factors and layers
    # "The number of iterations grows as d increases" (HiFi, section 5.3).
    iterations = table.groupby("damping")["iterations"].max()
    assert iterations.is_monotonic_increasing and iterations[0.95] > 3 * iterations[0.05]
    assert table.groupby("damping")["iterations"].nunique().max() == 2  # as the layers have
    assert "damping factor d" in (tmp_path / "d.svg").read_text()
    first = numbers.read_bytes()
    assert "computed before" in tiny(*words).err and numbers.read_bytes() == first
    assert tiny(*words, "--force").code == 0 and numbers.read_bytes() != first, (
        "the time was measured again"
    )


def test_a_figure_that_measures_itself_names_what_it_computed_from(tiny, hifi):
    assert tiny("train --method hifi-layerwise scoring.samples=4").code == 0
    assert tiny("figure hifi-6-d scoring.samples=4").code == 0
    [file] = Path("results/figures").glob("*.runs.json")
    (measured,) = json.loads(file.read_text())["runs"]
    run = run_folder(method="hifi-layerwise")
    record = json.loads((run / "results.json").read_text())
    assert measured["run"] == run.relative_to("results").as_posix()
    assert not measured["is_finished"] and measured["delta_sha256"] is None
    for name in ("task_digest", "backbone_weights", "method_code", "draws"):
        assert measured[name] == record[name]
    assert measured["data"].items() <= record["data"].items() and measured["data"]
    checked = json.loads(hifi("results check --format json").out)
    assert not any(name.startswith("figures/") for name in checked["findings"])
    (run / "results.json").write_text(json.dumps({**record, "task_digest": "0" * 64}))
    findings = json.loads(hifi("results check --format json").out)["findings"]
    (problem,) = next(found for name, found in findings.items() if name.startswith("figures/"))
    assert "rests on another" in problem and problem.endswith("differs in task_digest")


def test_numbers_without_their_runs_are_drawn_and_named(tiny):
    words = ("figure", "hifi-6-d", "scoring.samples=4")
    assert tiny(*words).code == 0
    [file] = Path("results/figures").glob("*.runs.json")
    assert "does not say which runs" not in tiny(*words).err
    file.unlink()
    answer = tiny(*words)
    assert answer.code == 0 and "does not say which runs it rests on" in answer.err


def test_numbers_of_other_seeds_are_replaced_only_by_force(ask):
    first = ask("training-curves", None, ("full-ft",), (1,))
    first.csv.parent.mkdir(parents=True)
    first.csv.write_text("seed\n1\n")
    assert figure.compute(first)["seed"].tolist() == [1]
    with pytest.raises(
        ConflictError, match="has the seeds 1: give --seeds 1, or --force to replace it"
    ):
        figure.compute(ask("training-curves", None, ("full-ft",), (1, 2)))
    first.csv.write_text("seed\n1\n2\n")
    with pytest.raises(ConflictError, match="has the seeds 1,2"):
        figure.compute(first)
    computed = figure.compute(ask("training-curves", None, ("full-ft",), (2,)), force=True)
    assert computed.equals(pd.read_csv(first.csv)) and {*computed["seed"]} == {2}


def test_a_class_may_be_called_none(ask):
    request = ask("tsne")
    request.csv.parent.mkdir(parents=True)
    request.csv.write_text("seed,x,label\n1,0.5,None\n1,,\n")
    stored = figure.compute(request)
    assert stored["label"][0] == "None" and stored.loc[1, ["x", "label"]].isna().all()


LANDSCAPE = {"points": 3, "examples": 4, "snapshots": 3, "shots": [None]}
HEAD = ("task_head.kind=mlp", "task_head.width=16", "settings.stage1_fraction=0.5")


def test_a_training_of_other_settings_or_seeds_is_not_taken(ask):
    asked = [
        ({"every": 1}, (1,)),
        ({"every": 2}, (1,)),
        ({"every": 1}, (1, 2)),
        ({"every": 1}, (1,)),
    ]
    found = []
    for number, (settings, seeds) in enumerate(asked):
        request = ask("training-curves", settings, ("full-ft",), seeds)
        found += request.part(request.config("rte"), lambda rows=number: [{"of": rows}])
    assert [row["of"] for row in found] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("kind", "settings", "method", "words"),
    [
        ("training-curves", None, "full-ft", ()),
        ("landscape", LANDSCAPE, "full-ft", ()),
        ("tsne", {"perplexity": 5}, "lp-ft", HEAD),
    ],
)
def test_a_figure_that_was_stopped_repeats_no_training(
    ask, monkeypatch, caplog, kind, settings, method, words
):
    """And its numbers are those of a figure that was not, byte for byte."""
    train, trained = Trainer.train, []

    def note(self, max_steps=None):
        trained.append(self.config.seed)
        if trained == [1, 2]:
            raise Terminated
        train(self, max_steps)

    monkeypatch.setattr(Trainer, "train", note)

    def request():
        return ask(kind, settings, (method,), (1, 2), *words)

    with pytest.raises(Terminated):
        figure.compute(request())
    figure.compute(request())
    assert trained == [1, 2, 2]
    assert "seed1: trained before, by a command that was stopped" in caplog.text
    csv = request().csv
    resumed = [path.read_bytes() for path in sorted(csv.parent.iterdir()) if path.is_file()]
    assert not request().parts.exists()
    figure.compute(request(), force=True)
    assert trained == [1, 2, 2, 1, 2]
    assert resumed == [path.read_bytes() for path in sorted(csv.parent.iterdir()) if path.is_file()]


def test_the_runs_of_a_figure_are_a_grid(tiny, hifi):
    sweep = {"description": "mine", "kind": "sweep", "tasks": ["rte"], "backbone": "demo"}
    quick = [word for word in QUICK if not word.startswith("heads.k")]  # it varies
    values = [1, 3]  # the second is the method's own
    Path("mine.yaml").write_text(
        yaml.safe_dump({**sweep, "settings": {"key": "heads.k", "values": values}})
    )
    Path("runs.yaml").write_text("figure: mine.yaml\n")
    answer = tiny("figure mine.yaml", *quick)
    assert answer.code == 3
    # The command that the message names is the one of these runs.
    message = answer.err.splitlines()[-1]
    named = shlex.split(message[message.index("hifi grid") : message.index(" trains them in")])
    assert named[2:4] == ["mine.yaml", quick[0]] and "--backbone" in named
    printed = hifi(*named[1:], "--print").out
    assert printed == tiny("grid mine.yaml --print", *quick).out
    commands = [
        shlex.split(line)[1:] for line in tiny("grid runs.yaml --print", *quick).out.splitlines()
    ]
    assert [words[0] for words in commands] == ["train", "train"]
    assert [hifi(*words).code for words in commands] == [0, 0]
    assert tiny("figure mine.yaml", *quick).code == 0
    # The usual run is that of any table, and an ablation has both.
    assert RunDirectory(run_folder(method="hifi-layerwise")).results.is_file()
    grid = {"protocol": "hifi", "backbone": "demo", "tasks": ["rte"], "methods": ["hifi-layerwise"]}
    Path("ablation.yaml").write_text(yaml.safe_dump({**grid, "vary": {"heads.k": values}}))
    assert tiny("grid ablation.yaml --print", *quick).out == ""
    for text, message in (
        ("figure: mine.yaml\nmethods: [full-ft]", "figures and claims define their own methods"),
        ("figure: hifi-3", "this figure needs no finished runs"),
    ):
        Path("runs.yaml").write_text(text)
        refused = tiny("grid runs.yaml")
        assert refused.code == 2 and message in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hifi-33"], "unknown figure 'hifi-33'; did you mean 'hifi-3'"),
        (["hifi-3", "--out", "x.gif"], "the name must end in .png, .pdf or .svg"),
        (["hifi-3", "--protocol", "lapto"], "unknown protocol 'lapto'; did you mean 'laptop'"),
        (["pie.yaml"], "unknown kind of figure 'dampin'; did you mean 'damping'"),
    ],
)
def test_wrong_words_are_told_before_anything_is_computed(hifi, words, message):
    Path("pie.yaml").write_text("description: mine\nkind: dampin\ntasks: [rte]\nbackbone: demo\n")
    answer = hifi("figure", *words)
    assert answer.code == 2 and message in answer.err


def test_the_bench_compares_every_pair_of_rankings(ask, tmp_path):
    request = ask("head-bench", None, ("hifi-layerwise", "hifi-gradient", "hifi-random"))
    table = figure.compute(request)
    pairs = table[["method", "other"]].agg(" ".join, axis=1).tolist()
    expected = ["layerwise hifi-gradient", "layerwise hifi-random", "gradient hifi-random"]
    assert pairs == [f"hifi-{pair}" for pair in expected]
    assert table["value"].abs().max() < 1 and table["value"].nunique() == 3
    figure.draw(request, table, tmp_path / "bench.pdf")
    assert (tmp_path / "bench.pdf").read_bytes().startswith(b"%PDF")


def test_a_diverged_run_is_no_number(ask):
    settings = ("learning_rate=1e30", "max_grad_norm=null", "warmup=0", "log_every=1")
    with pytest.raises(MissingError, match="1 of 1 runs are missing or diverged"):
        figure.compute(ask("features", None, ("full-ft",), (1,), *settings, train=True))


def test_a_search_is_drawn(ask, workspace, encoders, caplog):
    request = ask("search-budget", None, ("full-ft", "bitfit"))
    with pytest.raises(MissingError, match="no runs of a search for full-ft on rte"):
        figure.compute(request)
    for method, scores in {"full-ft": [0.6, 0.8, 0.7], "bitfit": [0.9, None]}.items():
        write_search(workspace.results_dir, method, "rte", scores, backbone=encoders["bert"].name)
    few = {"shots": 4, "epoch_metrics": [{"epoch": 2, "selection": 0.1}]}  # no part
    place = {"backbone": encoders["bert"].name}
    write_search(workspace.results_dir, "full-ft", "rte", [0.1, 0.2], **place, **few)
    write_search(workspace.results_dir, "full-ft", "rte", [0.2, 0.99], seed=2, **place, limit=20)
    # Other protocols, backbones and tasks are no part either.
    write_search(workspace.results_dir, "full-ft", "rte", [0.98], **place, protocol="laptop")
    write_search(workspace.results_dir, "full-ft", "rte", [0.97], backbone="another")
    write_search(workspace.results_dir, "full-ft", "cola", [0.96], **place)
    table = figure.compute(request)
    methods = [("full-ft", 1), ("full-ft", 2), ("full-ft", 3), ("bitfit", 1)]
    assert list(zip(table["method"], table["settings"], strict=True)) == methods
    expected = [0.7, 6.7 / 9, 20.7 / 27, 0.9]  # a diverged setting has no score
    assert table["mean"].tolist() == pytest.approx(expected)
    assert "bitfit on rte: 1 settings diverged and are left out" in caplog.text
    assert "full-ft on rte: 2 runs left out: limited otherwise than the figure" in caplog.text
    # Their scores alone, with a line below the picture; and runs of other limits are none of these.
    limited = ask("search-budget", None, ("full-ft",), (1,), "limit=20")
    table = figure.compute(limited)
    assert table["mean"].tolist() == pytest.approx([0.595, (0.2 + 3 * 0.99) / 4])
    notes = {}
    for asked in (request, limited):
        out = workspace.results_dir / f"{len(notes)}.svg"
        figure.draw(asked, table, out)
        notes[out.stem] = "Rows are limited" in out.read_text()
    assert notes == {"0": False, "1": True}


def explanation_of(name, data, **changes):
    """The words below a picture of the project, drawn of some numbers."""
    return request_of(name, None, **changes).kind.explanation(data)


def test_the_words_below_a_picture_name_its_curves_and_stages():
    stored = next(path for path in STORED if path.stem.startswith("ehft-5"))
    data = pd.read_csv(stored)
    of_distances = explanation_of("ehft-5", data)
    assert of_distances == (
        "Mean over 6 seeds, running mean over 5 % of the iterations."
        " EH-FT (BitFit): stage 2, which starts from the pretrained backbone."
    )
    assert "Gradients are those before clipping." in explanation_of("ehft-7", data)
    few = data[(data["method"] == "full-ft") & (data["seed"] == 1) & (data["step"] < 30)]
    assert explanation_of("ehft-5", few) == "One seed."
    # Another method of several stages need not start anew from the pretrained backbone.
    other = few.assign(method="diff-pruning", stage=2)
    assert explanation_of("ehft-5", other) == "One seed. Diff-Pruning: the last stage."


def test_the_words_below_a_picture_name_the_settings_that_it_shows():
    names = {"hifi-4": "ST", "hifi-8": "BS", "hifi-9": "LR", "hifi-10": "SL", "hifi-11": "SS"}
    for name, setting in names.items():
        words = explanation_of(name, pd.DataFrame({"setting": [setting]}))
        assert words.startswith(f"{setting}: batch ") and "after 115 steps" in words
        others = {*names.values(), "PT"} - {setting}
        assert not any(f"{other}:" in words for other in others)
    all_settings = explanation_of("hifi-3", pd.DataFrame({"setting": [*names.values(), "PT"]}))
    assert all_settings.startswith(
        "ST: batch 32, learning rate 2e-5, 128 tokens, up to 300 samples, after 115 steps of full"
        " fine-tuning. The others differ from it in this alone. BS: batch 16. LR: learning rate"
        " 5e-5. SL: 64 tokens. SS: up to 1000 samples."
        " PT: the pretrained encoder, as in Algorithm 1."
    )


def test_the_words_below_a_picture_name_no_deviation_of_one_seed():
    bars = pd.DataFrame({"task": "rte", "method": "lora", "pair": "a-b", "seed": [4, 5, 7]})
    assert explanation_of("ehft-1", bars).endswith(
        "Mean over 3 seeds; error bars: standard deviation."
    )
    assert explanation_of("ehft-1", bars[:1]) == "Models of the kept epoch. One seed."
    assert "stage1: the model after stage 1" in explanation_of("ehft-stages", bars)
    points = pd.DataFrame({"task": "rte", "method": "lora", "x": [1, 1, 2], "seed": [4, 5, 4]})
    assert (
        explanation_of("hifi-6-k", points) == "Mean over 1 to 2 seeds; shade: standard deviation."
    )
    interval = pd.DataFrame({"low": [None, 3.0]})
    for name in ("scores", "forest"):
        assert "t-interval" in explanation_of(name, interval)
        assert "t-interval" not in explanation_of(name, interval[:1])
