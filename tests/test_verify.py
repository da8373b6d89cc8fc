"""`hifi verify`: a stored result holds if its files agree and the rebuilt model gives it again."""

import json
import shutil

import pytest
from finished_runs import flip_bit, read_json, seal
from json_output import printed

from hifi_cli.records.run_checks import checksums_text
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs.verify import verify

pytestmark = pytest.mark.slow


def change_result(run, **changes):
    """Falsify results.json with a right checksum."""
    path = run / "results.json"
    seal(path, read_json(path) | changes)


def add_to_scores(run, name, value=0.01):
    result = read_json(run / "results.json")
    change_result(run, scores=result["scores"] | {name: result["scores"][name] + value})


def change_counts(run):
    result = read_json(run / "results.json")
    change_result(run, params=result["params"] | {"trainable": result["params"]["trainable"] - 1})


def change_predictions(run):
    path = run / "predictions.jsonl"
    first, *rest = path.read_text().splitlines()
    row = json.loads(first)
    row["prediction"] = {"entailment": "not_entailment"}.get(row["prediction"], "entailment")
    path.write_text("\n".join([json.dumps(row), *rest]) + "\n")


def change_metrics(run):
    result = read_json(run / "results.json")
    change_result(run, metrics={name: value + 0.01 for name, value in result["metrics"].items()})


def change_heads(run):
    manifest = read_json(run / "manifest.json")
    heads = [[(head + 1) % 4 for head in layer] for layer in manifest["heads"]]
    seal(run / "manifest.json", manifest | {"heads": [sorted(layer) for layer in heads]})


def change_weights_id(run):
    seal(run / "manifest.json", read_json(run / "manifest.json") | {"backbone_weights_id": "0" * 64})


def change_method(run):
    (run / "results.json").write_text((run / "results.json").read_text().replace("hifi-layerwise", "full-ft"))
    change_result(run)


FALSIFIED = {
    "best": (lambda run: add_to_scores(run, "best"), "accuracy best"),
    "last": (lambda run: add_to_scores(run, "last"), "accuracy last"),
    "max": (lambda run: add_to_scores(run, "max"), "accuracy max"),
    "metrics": (change_metrics, "accuracy"),
    "counts": (change_counts, "params.trainable"),
    "predictions": (change_predictions, "predictions (1 rows)"),
    "heads": (change_heads, "heads"),
    "weights": (change_weights_id, "backbone_weights_id"),
    "method": (change_method, "path: runs/hifi/tiny-bert/rte/full-ft/seed1 in results.json"),
    "checksum": (lambda run: flip_bit(run / "results.json"), "results.json"),
    "delta": (lambda run: flip_bit(run / "delta.safetensors"), "delta.safetensors is not the file that the run wrote"),
    "data": (lambda run: change_result(run, data={"train": "0", "validation": "0"}), "data: other fingerprints"),
    "rows": (lambda run: (run / "predictions.jsonl").write_text(""), "predictions: 0 rows"),
    "epochs": (lambda run: (run / "metrics.jsonl").write_text(""), "epochs: 0 in metrics.jsonl"),
}


@pytest.mark.parametrize("what", FALSIFIED)
def test_a_falsified_result_does_not_hold(hifi, finish_run, data, what):
    run = finish_run("hifi-layerwise")
    falsify, problem = FALSIFIED[what]
    falsify(run)
    answer = hifi("verify", run, "--data-dir", data)
    assert answer.code == 1, answer
    assert answer.out.startswith(f"differs       {run}") and problem in answer.out
    assert f"the stored results of 1 of 1 runs do not hold ({run})" in answer.err


def test_every_run_of_a_results_directory_is_verified(hifi, finish_run, data, tmp_path):
    runs = [finish_run(method) for method in ("full-ft", "bitfit", "hifi-layerwise")]
    assert all(line.startswith("verified") for line in hifi("verify", "--data-dir", data).out.splitlines())
    outputs = printed(hifi("verify", "results", "--data-dir", data, "--format", "json"))
    assert [output["path"] for output in outputs] == sorted(str(run.relative_to(tmp_path)) for run in runs)
    assert all(output["metrics"]["accuracy"]["now"] == output["metrics"]["accuracy"]["stored"] for output in outputs)
    add_to_scores(runs[1], "best")
    (runs[2] / "delta.safetensors").unlink()
    answer = hifi("verify", "--data-dir", data)
    assert answer.code == 1 and "1 of 3" in answer.err
    verdicts = [line[:12].strip() for line in answer.out.splitlines() if line.strip() and not line.startswith(" ")]
    assert verdicts == ["differs", "verified", "not verified"]
    shutil.rmtree(runs[1])
    answer = hifi("verify", "--data-dir", data)
    assert answer.code == 3 and "not verified" in answer.out and "--weights" in answer.out and "1 of 2" in answer.err


def test_what_cannot_be_verified_names_what_it_requires(hifi, finish_run, data, tmp_path):
    run = finish_run()
    answer = hifi("verify", run, "--data-dir", tmp_path)
    assert answer.code == 3 and answer.out.startswith("not verified") and "RTE" in answer.out
    assert hifi("verify", "nowhere").code == 3
    (run / "manifest.json").unlink()
    assert hifi("verify", run, "--data-dir", data).code == 3


def test_a_list_of_checksums_names_the_file_that_changed(hifi, finish_run, data):
    run = finish_run()
    (run / "SHA256SUMS").write_text(checksums_text(RunDirectory(run)))
    assert hifi("verify", run, "--data-dir", data).code == 0
    (run / "delta.safetensors").rename(run / "kept")
    assert hifi("verify", run, "--data-dir", data).code == 3  # weights may stay away
    (run / "kept").rename(run / "delta.safetensors")
    path = run / "config.yaml"
    path.write_text(f"# a remark\n{path.read_text()}")
    answer = hifi("verify", run, "--data-dir", data)
    assert answer.code == 1 and "config.yaml is not the file that SHA256SUMS lists" in answer.out
    (run / "SHA256SUMS").write_text(f"{'0' * 64}  ../../secret\n")
    assert "outside of the run" in hifi("verify", run, "--data-dir", data).out


@pytest.mark.parametrize(
    "method", ["adalora", "compacter", "diff-pruning", "eh-ft-bitfit", "mixout", "prefix-tuning-mlp", "pissa"]
)
def test_a_run_of_another_method_holds(make, resources, method):
    from hifi_cli.runs import run as runs

    config = make(method)
    runs.run(config, resources)
    verification = verify(RunDirectory.of(config, resources.results_dir), resources, data_dir=resources.data_dir)
    assert (verification.verdict, verification.problems) == ("verified", [])


def test_a_run_whose_results_were_deleted_is_trained_anew_and_holds(finish_run, tiny, hifi, data):
    """As after `results.json is damaged ...; delete it and make it again`."""
    run = RunDirectory(finish_run())
    run.checksums.write_text(checksums_text(run))
    old = run.write_predictions(run.read_predictions(), "test")
    run.results.unlink()
    assert tiny("train", "--method", "full-ft").code == 0
    assert not old.exists()  # of the former model
    answer = hifi("verify", run.path, "--data-dir", data)
    assert answer.code == 0, answer
