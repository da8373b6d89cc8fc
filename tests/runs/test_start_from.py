"""A run that starts from another run's weights: what it starts with, what it keeps of the chain, evaluation and export."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from prepared_models import encoder_of, pretrained_of
from run_folders import run_folder

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate, open_model
from hifi_cli.runs.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def chain(make, workspace):
    """Runs on CoLA, on RTE from it, and on STS-B from that one; the directories of the three."""
    paths = []
    for task, method in (("cola", "hifi-layerwise"), ("rte", "lora"), ("stsb", "full-ft")):
        overrides = [f"start_from={paths[-1]}"] if paths else []
        config = make(method, "learning_rate=0.01", "epochs=1", *overrides, task=task)
        runs.run(config, workspace)
        paths.append(RunDirectory.of(config, workspace.results_dir).path)
    return paths


def merged_weights(path, workspace):
    prepared, _ = workspace.open(path)
    prepared.method.merge(prepared.encoder)
    return {name: value.clone() for name, value in prepared.encoder.base.state_dict().items()}


def test_a_run_starts_with_the_merged_weights_of_the_other_and_a_new_classifier(
    chain, make, workspace
):
    expected = merged_weights(chain[0], workspace)
    config = RunDirectory(chain[1]).read_config()
    model = encoder_of(config, workspace)
    pretrained = pretrained_of(config, workspace)
    other = Workspace(workspace.results_dir, workspace.data_dir)
    plain = config.model_copy(update={"start_from": None})
    fresh = encoder_of(plain, other)
    original = pretrained_of(plain, other)
    assert any(
        not torch.equal(value, expected[name]) for name, value in fresh.base.state_dict().items()
    )
    for name, value in model.base.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    assert torch.equal(model.model.classifier.weight, fresh.model.classifier.weight)
    assert pretrained.digest != original.digest


def test_the_record_keeps_the_chain_and_eval_and_export_follow_it(chain, workspace, tmp_path):
    links = RunDirectory(chain[2]).read_result().started_from
    assert [link["run"] for link in links] == [
        str(path.relative_to(workspace.results_dir)) for path in (chain[1], chain[0])
    ]
    for link, path in zip(links, (chain[1], chain[0]), strict=True):
        result = RunDirectory(path).read_result()
        assert (link["delta_sha256"], link["config_hash"]) == (
            result.delta_sha256,
            result.config_hash,
        )
    for path in chain:
        assert not evaluate(path, Workspace(workspace.results_dir, workspace.data_dir)).differing
    prepared, _ = workspace.open(chain[1])
    tokens = torch.arange(4, 12)[None]
    with torch.no_grad():
        logits = prepared.encoder.model.eval()(input_ids=tokens).logits
    with torch.no_grad():
        torch.testing.assert_close(
            open_model(chain[1], results_dir=workspace.results_dir)[0](input_ids=tokens).logits,
            logits,
            rtol=0,
            atol=1e-5,
        )


def test_a_changed_chain_is_refused(chain, make, workspace):
    config = make("hifi-layerwise", "learning_rate=0.001", "epochs=1", task="cola")
    runs.run(config, workspace, force=True)
    with pytest.raises(UsageError, match=r"trained on another encoder .* train .* as it was"):
        evaluate(chain[1], Workspace(workspace.results_dir, workspace.data_dir))


def test_the_hash_names_the_run_and_not_its_place(make):
    plain = make("full-ft")
    first, moved, other = (
        make("full-ft", f"start_from={path}")
        for path in (
            "results/runs/hifi/b/mnli/lora/seed1",
            "/old/runs/x/runs/hifi/b/mnli/lora/seed1",
            "runs/hifi/b/mnli/lora/seed2",
        )
    )
    assert first.config_hash == moved.config_hash
    assert len({plain.config_hash, first.config_hash, other.config_hash}) == 3


def test_what_cannot_be_started_from_is_refused(make, workspace, encoders):
    with pytest.raises(
        MissingError, match=r"start_from=runs/none: no run there, nor in .*train it first"
    ):
        runs.run(make("full-ft", "start_from=runs/none"), workspace)
    config = make("adapter", "epochs=1", task="cola")
    runs.run(config, workspace)
    path = RunDirectory.of(config, workspace.results_dir).path
    with pytest.raises(UsageError, match="method adapter adds modules"):
        runs.run(make("full-ft", f"start_from={path}"), workspace)
    with pytest.raises(
        UsageError,
        match="another encoder than the backbone 'tiny-roberta' that is found now",
    ):
        runs.run(make("full-ft", f"start_from={path}", family="roberta"), workspace)


def test_a_finished_run_whose_start_is_not_here_is_told_by_its_configuration(hifi):
    """A run was copied without the one that it started from: a grid of both trains that one."""
    first = run_folder("", protocol="chain", backbone="demo", task="demo-entailment")
    case = {"tasks": ["demo-acceptability"], "config": {"start_from": str(first)}}
    Path("chain.yaml").write_text(json.dumps({"description": "d", "base": "demo", "cases": [case]}))
    words = "--protocol chain.yaml --method full-ft epochs=1 limit=16"
    for task in ("demo-entailment", "demo-acceptability"):
        assert hifi(f"train --task {task} {words}").code == 0
    shutil.rmtree(Path("results") / first)
    again = hifi(f"train --task demo-acceptability {words}")
    assert again.code == 0 and "finished before" in again.err, again.err
    absent = f"the run of start_from={first} is not on this machine: which of its runs are finished"
    assert again.err.count(absent) == 1
    grid = {"protocol": "chain.yaml", "backbone": "demo", "methods": ["full-ft"]}
    tasks = ["demo-acceptability", "demo-entailment"]
    Path("grid.yaml").write_text(json.dumps({**grid, "tasks": tasks}))
    listed = hifi("grid grid.yaml --print epochs=1 limit=16")
    (command,) = listed.out.splitlines()
    assert "--task demo-entailment" in command and absent in listed.err
    # Another training of the start is another start.
    other = f"train --task demo-entailment {words} learning_rate=0.01"
    assert hifi(other).code == 0
    refused = hifi(f"train --task demo-acceptability {words}")
    assert refused.code == 4 and "another encoder" in refused.err
