"""The real encoder on real data: HIFI_DATA_DIR=path/to/glue_data make test-real."""

import contextlib
import json
import os
from pathlib import Path

import pytest
import torch
from run_folders import run_folder

pytestmark = pytest.mark.real


@pytest.fixture
def glue():
    """The official download."""
    assert os.environ.get("HIFI_DATA_DIR"), "HIFI_DATA_DIR must name the official GLUE download"
    torch.set_num_threads(max(1, os.cpu_count() or 1))
    yield Path(os.environ["HIFI_DATA_DIR"])
    torch.set_num_threads(1)


def test_mrpc_learns_reloads_and_exports(hifi, glue):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from hifi_cli.tasks import sources as task_sources
    from hifi_cli.tasks import task_spec

    for method, rate in (("full-ft", 5e-5), ("hifi-layerwise", 5e-4)):
        line = f"train --task mrpc --method {method} --protocol laptop learning_rate={rate}"
        answer = hifi(line, "--data-dir", glue)
        assert answer.code == 0, answer.err
        run = run_folder(protocol="laptop", backbone="minilm", task="mrpc", method=method)
        results = json.loads((run / "results.json").read_text())
        assert results["metrics"]["accuracy"] > 0.72  # the majority class has 0.684
        assert not results["collapsed"]
        assert (run / "delta.safetensors").stat().st_size <= 1.02 * 4 * results["params"][
            "stored"
        ] + 20_000
        assert "logits identical" in hifi(f"eval {run} --data-dir {glue}").out
        assert hifi(f"export {run} --to plain-{method} --data-dir {glue}").code == 0
        model = AutoModelForSequenceClassification.from_pretrained(f"plain-{method}")
        tokenizer = AutoTokenizer.from_pretrained(f"plain-{method}")
        rows = task_sources.load(task_spec.load("mrpc"), data_dir=glue).splits["validation"][:20]
        stored = [
            json.loads(line)["logits"]
            for line in (run / "predictions.jsonl").read_text().splitlines()
        ]
        for row, logits in zip(rows, stored, strict=False):
            with torch.no_grad():
                result = model(
                    **tokenizer(
                        *row.sequences[0], return_tensors="pt", truncation=True, max_length=128
                    )
                ).logits[0]
            torch.testing.assert_close(result, torch.tensor(logits), rtol=1e-3, atol=1e-4)


def test_rte_heads_are_chosen_by_the_correlation(hifi, glue):
    """On a real encoder the transposed reading of equation 10 follows the correlation alone."""
    chosen = {}
    for rank in ("pagerank", "correlation"):
        words = ["--task", "rte", "--backbone", "minilm", "--data-dir", glue, f"heads.rank={rank}"]
        answer = hifi("select", *words, "--out", f"{rank}.json")
        assert answer.code == 0, answer.err
        chosen[rank] = json.loads(Path(f"{rank}.json").read_text())
    heads, by_correlation = (chosen[rank]["heads"] for rank in ("pagerank", "correlation"))
    assert [len(layer) for layer in heads] == [3] * 6
    assert max(chosen["pagerank"]["iterations"]) < 15
    shared = [len({*layer} & {*other}) for layer, other in zip(heads, by_correlation, strict=True)]
    assert sum(shared) >= 16


def test_every_task_at_hand_is_read_and_its_tokens_point_at_its_answers(glue):
    """Where a folder is there its rows are read without a complaint; where it is the official one, all of them."""
    import numpy as np
    from transformers import AutoTokenizer

    from hifi_cli.config import registry
    from hifi_cli.config.run_config import RunConfig
    from hifi_cli.config.sources import backbone_config
    from hifi_cli.errors import MissingError
    from hifi_cli.models.encoder_files import resolve_source
    from hifi_cli.tasks import encode, scores, task_spec
    from hifi_cli.tasks import sources as task_sources

    data = {}
    for name in registry.names("tasks"):
        task = task_spec.load(name)
        with contextlib.suppress(MissingError):
            data[name] = task_sources.load(task, data_dir=glue, required=())
    assert {"rte", "mrpc", "cola"} <= set(data)
    assert len(data["rte"].splits["train"]) == 2490
    tokenizer = AutoTokenizer.from_pretrained(resolve_source(backbone_config("minilm"))[0])
    if "squad" in data:
        task, rows = task_spec.load("squad"), data["squad"].splits["validation"]
        examples = encode.tokenize(tokenizer, task, rows, RunConfig.model_construct(max_length=384))
        logits = np.full((len(examples), 2, 384), -9.0)
        for window, example in enumerate(examples):
            logits[window, [0, 1], example.answer] = 9.0
        assert (
            scores.compute(task, rows, task.rules.predictions(examples, logits))["span_em"] > 0.99
        )
    if "wic" in data:
        rows = data["wic"].splits["validation"]
        for example in encode.tokenize(
            tokenizer, task_spec.load("wic"), rows, RunConfig.model_construct(max_length=128)
        ):
            (sentence, _), (start, end) = example.row.sequences[0], example.row.word_spans[0]
            first, last = example.word_spans[0]
            result = tokenizer.decode(example.sequences[0]["input_ids"][first:last]).replace(
                " ", ""
            )
            assert result.startswith(sentence[start:end].lower()[:3])
