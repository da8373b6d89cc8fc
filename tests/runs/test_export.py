"""A finished run is opened, or leaves as a plain Hugging Face directory or a peft adapter: the same logits each time."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from prepared_models import data_of, splits_of
from run_folders import run_folder
from tiny_inputs import FAMILIES
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hifi_cli
from hifi_cli.errors import MissingError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import collate
from hifi_cli.text import command_line

pytestmark = pytest.mark.slow


def expected(config, workspace, count=6):
    examples = splits_of(config, workspace).reported[:count]
    stored = RunDirectory.of(config, workspace.results_dir).read_predictions()[:count]
    return collate(examples, {"input_ids": 0, "token_type_ids": 0}), torch.tensor(
        [row.logits for row in stored]
    )


OWN_HEAD = ["task_head.kind=mlp", "task_head.width=16", "task_head.one_logit=true"]


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("full-ft", []),
        ("hifi-layerwise", OWN_HEAD),
        ("lora", OWN_HEAD),
        ("diff-pruning", []),
        ("eh-ft-bitfit", OWN_HEAD),
        ("child-tuning-d", []),
    ],
)
def test_every_run_is_opened_with_its_logits(make, workspace, method, head):
    config = make(method, "epochs=1", "learning_rate=0.003", *head)
    runs.run(config, workspace)
    batch, logits = expected(config, workspace)
    run = RunDirectory.of(config, workspace.results_dir).path
    model, tokenizer = hifi_cli.open_model(run, results_dir=workspace.results_dir)
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-4, atol=1e-5)
    assert tokenizer("the dog")["input_ids"]


def test_a_form_that_cannot_hold_the_run_is_refused(make, workspace, hifi, data, tmp_path):
    own_head = ("task_head.kind=mlp", "task_head.width=16")
    for form, method, *head in [
        ("hf", "full-ft", *own_head),
        ("peft", "bitfit"),
        ("peft", "prefix-tuning"),
        ("peft", "lora", *own_head),
    ]:
        config = make(method, "epochs=1", *head)
        runs.run(config, workspace)
        run = RunDirectory.of(config, workspace.results_dir).path
        answer = hifi(f"export {run} --to {tmp_path}/out --data-dir {data} --as", form)
        assert answer.code == 2 and "open the run itself with hifi_cli.open_model" in answer.err
        assert not (tmp_path / "out").exists()
        RunDirectory(run).clear()
    with pytest.raises(MissingError, match="no finished run"):
        hifi_cli.open_model(tmp_path)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft's own, when it opens the directory
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", ["[query, key]", "[query, key, value, output]"])
def test_a_lora_run_leaves_as_a_peft_adapter_with_the_same_logits(
    make, workspace, hifi, data, encoders, tmp_path, family, targets
):
    from peft import PeftModel

    config = make(
        "lora",
        "epochs=1",
        "learning_rate=0.01",
        f"settings.targets={targets}",
        "settings.r=4",
        family=family,
    )
    runs.run(config, workspace)
    batch, logits = expected(config, workspace)
    run = RunDirectory.of(config, workspace.results_dir).path
    answer = hifi(f"export {run} --to {tmp_path}/out --data-dir {data} --as peft")
    assert answer.code == 0 and (answer.err, answer.out) == ("", f"{tmp_path / 'out'}\n")
    torch.manual_seed(
        7
    )  # another draw of the fresh head than the run's: the adapter must bring its own
    base = AutoModelForSequenceClassification.from_pretrained(encoders[family], num_labels=2)
    model = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-4, atol=1e-5)
        with model.disable_adapter():
            assert not torch.allclose(model(**batch).logits, logits, atol=1e-3)
    assert model.peft_config["default"].base_model_name_or_path == f"tiny-{family}"
    assert str(encoders[family]) not in "".join(
        path.read_text() for path in (tmp_path / "out").glob("*.[jm][sd]*")
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the dog")["input_ids"]
    assert ModelCard.load(tmp_path / "out" / "README.md").data.library_name == "peft"


def test_the_card_tells_the_run(make, workspace, hifi, data, tmp_path):
    config = make("full-ft", "epochs=2", "learning_rate=0.01", "batch_size=4")
    results = runs.run(config, workspace)
    run = RunDirectory.of(config, workspace.results_dir).path
    assert hifi(f"export {run} --to {tmp_path}/plain --data-dir {data}").code == 0
    assert hifi(f"export {run} --to {tmp_path}/plain --data-dir {data}").code == 2  # it exists
    card = ModelCard.load(tmp_path / "plain" / "README.md")
    front = card.data
    assert (front.library_name, front.pipeline_tag) == ("transformers", "text-classification")
    assert (front.language, front.license, front.datasets) == ("en", "unknown", ["nyu-mll/glue"])
    (score,) = front.eval_results
    assert (score.dataset_type, score.dataset_config, score.dataset_split) == (
        "nyu-mll/glue",
        "rte",
        "validation",
    )
    assert (score.metric_type, score.metric_value) == ("accuracy", results.metrics["accuracy"])
    for said in (
        f"| accuracy | {100 * results.metrics['accuracy']:.2f} |",
        "Seed 1 of",
        "chosen on this very split",
        f"    {command_line(results.provenance['command'])}\n",
        f"Labels: 0 {task_spec.load('rte').labels[0]}, 1 ",
    ):
        assert said in card.content


def test_the_card_of_a_task_and_a_backbone_of_one_s_own_names_what_they_state(
    hifi, encoders, tmp_path
):
    backbone = shutil.copytree(encoders["bert"], tmp_path / "tiny-bert")
    (backbone / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: de\n---\n")
    rows = [
        f"the {word} {verb},{'good' if verb == 'runs' else 'bad'}"
        for word in "abcdefghij"
        for verb in ("runs", "falls")
    ]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = f"--method linear-probing --backbone={backbone} epochs=1 inputs=text".split()
    assert hifi(f"train --task={tmp_path}/mine.csv", *words).code == 0
    assert hifi("export", run_folder(task="mine", method="linear-probing"), "--to", "out").code == 0
    card = ModelCard.load(Path("out/README.md"))
    data = card.data
    assert (data.language, data.license) == ("de", "apache-2.0")
    assert (data.datasets, data.base_model) == (None, None)
    assert "--task=mine.csv" in card.content
    assert "--backbone=PATH-TO-THE-BASE-MODEL" in card.content
    assert str(tmp_path) not in card.content
    assert data.eval_results[0].dataset_type == "mine"


def test_the_card_s_call_gives_the_run_s_own_predictions(
    make, workspace, hifi, data, tmp_path, monkeypatch
):
    """Also of a run that swaps the texts, and truncates them."""
    config = make(
        "full-ft",
        "epochs=3",
        "learning_rate=0.01",
        "batch_size=4",
        "swap_texts=true",
        "max_length=9",
    )
    runs.run(config, workspace)
    directory = RunDirectory.of(config, workspace.results_dir)
    assert hifi(f"export {directory.path} --to {tmp_path}/plain --data-dir {data}").code == 0
    snippet = re.search(
        r"```python\n(.*?)```", (tmp_path / "plain" / "README.md").read_text(), re.DOTALL
    )[1]
    monkeypatch.chdir(tmp_path)
    *setup, call = snippet.splitlines()
    opened = {}
    exec("\n".join(setup), opened)
    assert '"text": "sentence2", "text_pair": "sentence1"' in call and "truncation=" in call
    for row, stored in zip(
        data_of("rte", workspace).rows("validation"), directory.read_predictions(), strict=True
    ):
        first, second = row.sequences[0]
        said = eval(
            call.replace('"sentence2"', repr(second)).replace('"sentence1"', repr(first)), opened
        )
        assert said["label"] == stored.prediction
        assert said["score"] == pytest.approx(
            float(torch.tensor(stored.logits).softmax(0).max()), abs=1e-4
        )
