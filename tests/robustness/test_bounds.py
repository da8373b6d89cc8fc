"""Bad input that is large, deep or of the wrong type: one line that names it, a documented exit code, little memory."""

import json
import shutil

import pytest
from synthetic_runs import write_run
from tiny_inputs import QUICK_WORDS
from transformers import AutoModel

from hifi_cli.models.encoder import Encoder

pytestmark = pytest.mark.slow


def said(answer, code):
    """The one line of a refusal."""
    assert answer.code == code, (answer.code, answer.err)
    (line,) = [line for line in answer.err.splitlines() if line.startswith("hifi: ")]
    assert "unexpected" not in line, line
    assert len(line) < 1000
    return line


TRAIN = ("train", "--task", "rte", "--method", "full-ft", "--backbone", "bert-base", "--dry-run")


@pytest.mark.parametrize(
    ("words", "bound"),
    [
        (("--seeds", "1-999999999"), "at most 100,000 distinct numbers"),
        (("--seeds", "9" * 5000), "at most 100,000 distinct numbers"),
        (("--seeds", "4294967296"), "seed must be less than or equal to 4294967295"),
        (
            ("scoring.seed=1" + "0" * 30,),
            "scoring.seed must be less than or equal to 4294967295",
        ),
        (
            ("max_length=1" + "0" * 30,),
            "max_length must be less than or equal to 1000000000",
        ),
        (
            ("task_head.width=1" + "0" * 9,),
            "task_head.width must be less than or equal to 65536",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_too_much_is_refused_with_its_bound(hifi, words, bound):
    assert bound in said(hifi(*TRAIN, *words), 2)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_of_more_tokens_than_there_are_positions_is_refused(
    hifi, encoders, tmp_path, family
):
    """The tiny encoders have 40 positions; RoBERTa begins after the padding token's."""
    bound = Encoder(AutoModel.from_pretrained(encoders[family])).max_tokens
    assert (bound < 40) == (family != "bert")
    rows = [f"{'the dog ' * (99 if at == 7 else 1)}{at},{at % 2}\n" for at in range(40)]
    (tmp_path / "long.csv").write_text("".join(["text,label\n", *rows]))
    words = [
        *f"train --task long.csv --method bitfit --backbone {encoders[family]}".split(),
        *QUICK_WORDS,
    ]
    message = said(hifi(*words, "max_length=1000000", "inputs=text"), 2)
    assert f"positions for {bound}; set max_length={bound}" in message
    assert hifi(*words, f"max_length={bound}", "inputs=text").code == 0


def test_a_text_too_long_to_score_heads_on_names_the_key_of_the_scoring(hifi, encoders, tmp_path):
    rows = [f"{'the dog ' * 99}{at},{at % 2}\n" for at in range(40)]
    (tmp_path / "long.csv").write_text("".join(["text,label\n", *rows]))
    words = [
        *f"train --task long.csv --method hifi-layerwise --backbone {encoders['bert']}".split(),
        *QUICK_WORDS,
        "inputs=text",
        "max_length=40",
        "heads.k=1",
    ]
    message = said(hifi(*words, "scoring.max_length=1000"), 2)
    assert "hifi: scoring.max_length=1000:" in message
    assert "set scoring.max_length=40" in message
    assert hifi(*words, "scoring.max_length=40").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--task", ",", "--method", "full-ft", "--dry-run"),
        ("grid", "demo", "--method", ",", "--print"),
        ("table", "--tasks", ","),
    ],
    ids=" ".join,
)
def test_a_list_without_a_name_is_an_error(hifi, words):
    assert "'' is not a name" in said(hifi(*words), 2)


def change(path, **changes):
    """Edit a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


SIZES = {"trainable_backbone": 1, "stored": 1, "stored_bytes": 4, "total": 9}
WRONG_RESULTS = [
    {"scores": {"last": 0.5, "best": float("nan"), "max": 0.5}},
    {"scores": None},
    {"metrics": {"accuracy": "high"}},
    {"report": "first"},
    # Numbers that a table cannot hold, and those without which it cannot be made
    {"peak_memory_bytes": 10**30},
    {"params": {**SIZES, "trainable": 10**30}},
    {"epochs": {"total": 0, "last": 0, "best": 0, "max": 0}},
    {"n_examples": {"train": 8}},
    {"classes": {"labels": {"entailment": 4}, "predicted": {"not_entailment": 4}}},
]


@pytest.mark.parametrize("changes", WRONG_RESULTS, ids=lambda changes: str(changes)[:60])
def test_results_of_wrong_types_are_named(hifi, tmp_path, changes):
    for method in ("full-ft", "bitfit"):
        run = write_run(tmp_path / "results", method, "rte", 1, 0.5)
        (run / "config.yaml").touch()
    change(run / "results.json", **changes)
    answer = hifi("table")
    assert answer.code == 0
    (line,) = answer.err.splitlines()
    assert f"{run.relative_to(tmp_path) / 'results.json'} is damaged (" in line
    assert next(iter(changes)) in line
    assert line.removeprefix("left out: 1 damaged run: ") in hifi("ls runs").out


DEEP = "[" * 200_000


def test_damaged_predictions_and_results_of_a_run_are_named(finish_run, hifi, data, tmp_path):
    run = finish_run()
    kept = (run / "predictions.jsonl").read_bytes()
    lines = kept.splitlines(keepends=True)
    damaged = {
        kept[: len(lines[0]) + 20]: "line 2",
        lines[0] + DEEP.encode(): "line 2",
        b"[1]\n": "line 1 is damaged (delete it and make it again): no JSON object",
        lines[0]
        + b'{"id": "1"}\n': "line 2 is damaged (delete it and make it again): 'label' is missing",
        **{
            lines[0]
            + json.dumps({**json.loads(lines[1]), "logits": logits}).encode()
            + b"\n": "line 2 is damaged (delete it and make it again): logits"
            for logits in ("x", [None, 1.0])
        },
        b"\xff": "damaged",
        lines[0]: "does not hold the predictions of this split",
        b"": "is damaged (delete it and make it again): it is empty",
    }
    for content, why in damaged.items():
        (run / "predictions.jsonl").write_bytes(content)
        line = said(hifi("eval", run, "--data-dir", data), 2)
        assert "predictions.jsonl" in line and why in line
    (run / "predictions.jsonl").unlink()
    assert "predictions.jsonl" in said(hifi("eval", run, "--data-dir", data), 3)
    (run / "predictions.jsonl").write_bytes(kept)
    change(run / "results.json", data="x")
    assert "results.json is damaged (delete it and make it again): data" in said(
        hifi("export", run, "--to", "out", "--data-dir", data), 2
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [DEEP, "[]", "null"], ids=lambda text: text[:12])
def test_a_backbone_whose_configuration_is_none_is_named(hifi, encoders, data, tmp_path, content):
    shutil.copytree(encoders["bert"], tmp_path / "mine")
    (tmp_path / "mine" / "config.json").write_text(content)
    assert "mine" in said(
        hifi(f"train --task rte --method full-ft --backbone mine --data-dir {data}"),
        3,
    )
