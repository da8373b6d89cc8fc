"""`hifi results push` and `pull`: results travel with checksums, and nothing is ever overwritten."""

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_hub import serve
from finished_runs import flip_bit, read_json, seal
from hifi_cli.records.run_checks import checksums_text
from json_output import printed
from project_files import copy_yaml

from hifi_cli.errors import UsageError
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import results_source

RUN = Path("runs/hifi/tiny-bert/rte/full-ft/seed1")


def files_of(folder):
    """Every file below a folder with its content, lock files left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


def states(answer):
    return [line.split()[0] for line in answer.out.splitlines()[:-1]]


def raise_score(run):
    """Falsify a score as somebody would who knows the layout."""
    result = read_json(run / "results.json")
    scores = {name: min(1.0, score + 0.1) for name, score in result["scores"].items()}
    seal(run / "results.json", result | {"scores": scores})


def test_push_pull_and_verify_between_two_directories_with_a_falsified_result(hifi, finish_run, data):
    for method in ("full-ft", "hifi-layerwise"):
        finish_run(method)
    Path("results/tables").mkdir()
    assert hifi("table", "--format", "md", "--out", "results/tables/all.md").code == 0
    before = files_of("results")

    pushed = hifi("results", "push", "shared", "--weights")
    assert pushed.code == 0 and set(states(pushed)) == {"copied"} and pushed.out.endswith("5 copied\n"), pushed
    assert files_of("results") == before
    copied = files_of("shared")
    assert {name: content for name, content in copied.items() if not name.endswith("SHA256SUMS")} == before
    check = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=Path("shared") / RUN, check=False)
    assert check.returncode == 0
    again = hifi("results", "push", "shared", "--weights")
    assert again.code == 0 and set(states(again)) == {"same"} and files_of("shared") == copied

    assert hifi("results", "pull", "shared", "--weights", "--results-dir", "mine").code == 0
    assert files_of("mine") == copied
    verified = hifi("verify", "mine", "--data-dir", data)
    assert verified.code == 0 and verified.out.count("verified ") == 2

    raise_score(Path("shared") / RUN)
    refused = hifi("results", "pull", "shared", "--weights", "--results-dir", "yours")
    assert refused.code == 2 and "results.json is not the file that SHA256SUMS lists" in refused.err, refused
    assert not (Path("yours") / RUN).exists() and (Path("yours/runs/hifi/tiny-bert/rte/hifi-layerwise/seed1")).is_dir()
    (Path("shared") / RUN / "SHA256SUMS").write_text(checksums_text(RunDirectory(Path("shared") / RUN)))
    assert hifi("results", "pull", "shared", "--weights", "--results-dir", "yours").code == 0
    caught = hifi("verify", "yours", "--data-dir", data)
    assert caught.code == 1 and f"differs       {Path('yours') / RUN}" in caught.out and "1 of 2" in caught.err

    conflict = hifi("results", "pull", "shared", "--weights", "--results-dir", "mine")
    assert conflict.code == 4 and files_of("mine") == copied
    for place in ("shared", "mine"):
        assert str(Path(place) / RUN / "results.json") in conflict.err


def test_weights_are_copied_on_request_only_and_added_later(hifi, finish_run, data):
    finish_run()
    assert hifi("results", "push", "shared").code == 0
    delta = Path("shared") / RUN / "delta.safetensors"
    assert not delta.exists()
    assert hifi("table", "--results-dir", "shared").code == 0
    assert hifi("verify", "shared", "--data-dir", data).code == 3
    answer = hifi("results", "pull", "shared", "--weights", "--results-dir", "mine")
    assert answer.code == 2 and "--weights asks for it" in answer.err
    assert hifi("results", "push", "shared", "--weights").code == 0
    assert delta.read_bytes() == (Path("results") / RUN / "delta.safetensors").read_bytes()
    assert hifi("verify", "shared", "--data-dir", data).code == 0
    flip_bit(Path("results") / RUN / "delta.safetensors")
    assert "not the file that the run wrote" in hifi("results", "push", "other", "--weights").err


def test_an_interrupted_push_is_continued(hifi, finish_run, monkeypatch):
    finish_run()
    copy, calls = shutil.copyfile, []

    def copy_three(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return copy(*arguments)

    monkeypatch.setattr(shutil, "copyfile", copy_three)
    assert hifi("results", "push", "shared").code == 130
    target = Path("shared") / RUN
    assert len(files_of(target)) == 3 and not (target / "results.json").exists()
    assert hifi("table", "--results-dir", "shared").code != 0  # an incomplete run counts nowhere
    monkeypatch.setattr(shutil, "copyfile", copy)
    assert hifi("results", "push", "shared").code == 0
    missing = files_of("results").keys() - files_of("shared").keys()
    assert missing == {(RUN / "delta.safetensors").as_posix()}


def test_a_run_that_is_being_written_and_one_that_is_not_finished_are_left_alone(hifi, finish_run):
    from hifi_cli.files import locked

    run = finish_run()
    with locked(Path("shared") / RUN / ".lock", wait=False):
        answer = hifi("results", "push", "shared")
    assert answer.code == 4 and "another process is writing" in answer.err
    (run / "results.json").unlink()
    answer = hifi("results", "push", "shared")
    assert answer.code == 3 and "no finished runs" in answer.err


def test_code_travels_only_with_trust(hifi, finish_run):
    run = finish_run()
    own = run / "own/tasks/rte.yaml"
    own.parent.mkdir(parents=True)
    copy_yaml(hifi, "tasks/rte", own)
    (run / "metric.py").write_text("raise SystemExit")
    assert hifi("results", "push", "shared").code == 0
    assert (Path("shared") / RUN / "own/tasks/rte.yaml").is_file()  # YAML without code
    assert not list(Path("shared").rglob("*.py"))
    own.write_text(own.read_text().replace("primary:", "evaluate: somebody/metric\nprimary:"))
    answer = hifi("results", "push", "other")
    assert answer.code == 2 and "somebody/metric" in answer.err and "--trust" in answer.err and not Path("other").exists()
    assert hifi("results", "push", "other", "--trust").code == 0
    assert "--trust" in hifi("results", "pull", "other", "--results-dir", "mine").err
    assert hifi("results", "pull", "other", "--results-dir", "mine", "--trust").code == 0


def test_damaged_files_links_and_misplaced_runs_are_not_copied(hifi, finish_run, tmp_path):
    run = finish_run("hifi-layerwise")
    (heads,) = Path("results/heads").rglob("*.json")
    flip_bit(heads)
    copy = shutil.copytree(run, run.with_name("seed2"))
    (tmp_path / "secret").write_text("password")
    Path("results/tables").mkdir()
    Path("results/tables/link.md").symlink_to(tmp_path / "secret")
    outputs = hifi("results", "push", "shared", "--format", "json")
    assert outputs.code == 2
    assert not list(Path("shared").rglob("link.md")) and not list(Path("shared").rglob("seed2"))
    assert sorted(states(hifi("results", "push", "other"))) == ["copied", "copied", "refused", "refused", "refused"]
    assert copy.is_dir()
    with pytest.raises(UsageError, match="outside of results"):
        results_source._content(Path("results/runs/a/own/tasks/../../../../../secret"), Path("results"))


def test_only_and_dry_run_choose_what_is_copied(hifi, finish_run):
    for method in ("full-ft", "bitfit"):
        finish_run(method)
    answer = hifi("results", "push", "shared", "--only", "runs/*/bitfit/*", "--dry-run")
    assert answer.code == 0 and states(answer) == ["copied"] and "bitfit" in answer.out and not Path("shared").exists()
    (output,) = printed(hifi("results", "push", "shared", "--only", "runs/*/bitfit/*", "--format", "json"))
    assert output["files"][-1].endswith("bitfit/seed1/results.json")
    assert hifi("results", "push", "shared", "--only", "nothing/*").code == 3
    assert hifi("results", "push", "results").code == 2
    assert hifi("results", "push", "shared", "--create-pr").code == 2
    assert hifi("results", "pull", "nowhere").code == 3


@pytest.fixture
def fake_hub(hifi, monkeypatch, tmp_path):
    from huggingface_hub import constants

    with serve() as (hub, address):
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.delenv("HF_HUB_OFFLINE")
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def test_results_travel_through_a_repository_of_the_hub(hifi, finish_run, data, fake_hub):
    finish_run("hifi-layerwise")
    assert hifi("results", "push", "hub:owner/shared", "--create-pr").code == 0
    assert (len(fake_hub.commits), len(fake_hub.pull_requests)) == (0, 1)
    pushed = hifi("results", "push", "hub:owner/shared", "--weights")
    assert pushed.code == 0 and set(states(pushed)) == {"copied"}, pushed
    again = hifi("results", "push", "hub:owner/shared", "--weights")
    assert set(states(again)) == {"same"} and len(fake_hub.commits) == 1
    assert hifi("results", "pull", "hub:owner/shared", "--results-dir", "light").code == 0
    assert not list(Path("light").rglob("delta.safetensors"))
    assert hifi("results", "pull", "hub:owner/shared", "--weights", "--results-dir", "mine").code == 0
    assert files_of("mine") == fake_hub.files
    assert hifi("verify", "mine", "--data-dir", data).code == 0

    raise_score(Path("results/runs/hifi/tiny-bert/rte/hifi-layerwise/seed1"))
    before = dict(fake_hub.files)
    conflict = hifi("results", "push", "hub:owner/shared")
    assert conflict.code == 4 and "differs from hub:owner/shared/runs/hifi/tiny-bert" in conflict.err
    assert fake_hub.files == before


def test_a_push_never_overwrites_a_commit_that_came_in_between(hifi, finish_run, fake_hub):
    finish_run()
    fake_hub.before_commit = lambda: fake_hub.commits.append(["of somebody else"])
    answer = hifi("results", "push", "hub:owner/shared")
    assert answer.code == 4 and "newer commit" in answer.err and not fake_hub.files
    missing = hifi("results", "push", "hub:owner/unknown")
    assert missing.code == 3 and "hf repos create owner/unknown" in missing.err
