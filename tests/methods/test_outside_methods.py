"""Methods from elsewhere: the page's own example as a file, trained and rebuilt; what is wrong is an error."""

import json
import re
import shutil
from pathlib import Path

import pytest
from run_folders import run_folder

from hifi_cli.digests import file_digest

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()


@pytest.fixture
def own_method(tmp_path):
    """The example of docs/architecture.md as a file beside its YAML, which leaves a mark where it is executed."""
    code = re.search(r"```python\n([^`]*class NormTuning.*?)```", PAGE, re.DOTALL)[1]
    content = re.search(r"```yaml\n([^`]*implementation: norm_tuning\n[^`]*)```", PAGE)[1]
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "norm_tuning.py").write_text(
        f"{code}\nwith open({str(tmp_path / 'executed')!r}, 'a') as mark:\n    print(__file__, file=mark)\n"
    )
    (folder / "norm-tuning.yaml").write_text(content.replace(": norm_tuning", ": ./norm_tuning.py"))
    return folder


def test_a_method_in_a_file_trains_and_its_copy_in_a_run_is_executed_only_with_trust(
    tiny, hifi, data, encoders, own_method, tmp_path
):
    run = run_folder(method="norm-tuning")
    executed = tmp_path / "executed"
    answer = tiny("train --method", own_method / "norm-tuning.yaml")
    assert answer.code == 0, answer.err
    assert (
        json.loads((run / "results.json").read_text())["params"]["trainable_backbone"] == 5 * 2 * 32
    )
    assert executed.read_text() == f"{own_method / 'norm_tuning.py'}\n"
    assert json.loads((run / "results.json").read_text())["method_code"] == file_digest(
        own_method / "norm_tuning.py"
    )
    assert "| NormTuning |" in hifi("table --format md").out  # the label of the user's YAML

    with (own_method / "norm_tuning.py").open("a") as file:
        file.write("# changed\n")
    answer = tiny("train --method", own_method / "norm-tuning.yaml")
    assert answer.code == 4 and "another method norm_tuning.py" in answer.err

    shutil.rmtree(own_method)
    executed.unlink()
    (tmp_path / "new.tsv").write_text("sentence1\tsentence2\nthe dog sees\tthe cat\n")
    commands = [
        ["eval", run, "--data-dir", data],
        ["predict", run, "new.tsv"],
        ["export", run, "--to", "model", "--data-dir", data],
        ["train", "-c", run / "config.yaml", "--seeds", "2", "--data-dir", data],
    ]
    for words in commands:
        answer = hifi(*words)
        assert (
            answer.code == 2
            and "own/methods/norm-tuning.yaml names code, 'norm_tuning.py'" in answer.err
        ), words
        assert "--trust" in answer.err
    answer = tiny(f"train --method full-ft start_from={run}")
    assert answer.code == 2 and "--trust" in answer.err
    assert not executed.exists()
    for words in commands:
        answer = hifi(*words, "--trust")
        assert answer.code == 0, answer.err
    copied = (run / "own/methods/norm_tuning.py").resolve()
    assert [Path(line).resolve() for line in executed.read_text().splitlines()] == [copied]
    assert (
        json.loads((run.with_name("seed2") / "results.json").read_text())["params"][
            "trainable_backbone"
        ]
        == 5 * 2 * 32
    )


def test_code_in_a_run_that_was_edited_since_is_found_and_not_executed(
    tiny, hifi, data, own_method, tmp_path
):
    """The copy has the bytes of the user's file, with the ends of its lines too."""
    code = own_method / "norm_tuning.py"
    code.write_bytes(code.read_bytes().replace(b"\n", b"\r\n"))
    assert tiny("train --method", own_method / "norm-tuning.yaml").code == 0
    run = run_folder(method="norm-tuning")
    copy = run / "own/methods/norm_tuning.py"
    found = "the code in own/ is not that of the run (method_code)"
    assert found not in hifi("results check").out
    assert hifi(f"eval {run} --trust --data-dir {data}").code == 0
    with copy.open("a") as file:
        file.write("# edited\n")
    (tmp_path / "executed").unlink()
    assert f"{run.relative_to('results')}: {found}" in hifi("results check").out
    answer = hifi(f"eval {run} --trust --data-dir {data}")
    assert answer.code == 2 and f"the code in {run / 'own'} is not that of the run" in answer.err
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("implementation", "code", "message"),
    [
        ("./none.py", "", "no file mine/none.py, which a YAML or heads.rank names as code"),
        ("norm_tunin", "", "unknown implementation 'norm_tunin'"),
        ("base", "", "unknown implementation 'base'"),
        ("../norm_tuning.py", "", "../norm_tuning.py is outside the YAML's folder"),
        (
            "./norm_tuning.py",
            "import nothing_of_that_name",
            "norm_tuning.py, line 1: cannot be imported: ModuleNotFoundError",
        ),
        ("./norm_tuning.py", "def", "norm_tuning.py, line 1: cannot be imported: SyntaxError"),
        ("./norm_tuning.py", "", "must define exactly one subclass of Method, not 0"),
    ],
)
def test_a_wrong_file_of_a_method_is_one_clear_error(
    tiny, own_method, implementation, code, message
):
    path = own_method / "norm-tuning.yaml"
    path.write_text(path.read_text().replace("./norm_tuning.py", implementation))
    (own_method / "norm_tuning.py").write_text(code)
    answer = tiny("train --method mine/norm-tuning.yaml")
    assert answer.code == 2 and message in answer.err, answer.err
    assert "report it" not in answer.err and len(answer.err.splitlines()) == 1


def test_a_plan_has_the_settings_that_a_method_requires(tiny, own_method):
    code = (own_method / "norm_tuning.py").read_text()
    begin = "class NormTuning(Method):\n"
    required = f"{begin}    class Settings(Method.Settings):\n        k: int\n\n"
    (own_method / "norm_tuning.py").write_text(code.replace(begin, required))
    words = ("train", "--method", own_method / "norm-tuning.yaml", "--dry-run")
    assert "  k: 3" in tiny(*words, "settings.k=3").out
    answer = tiny(*words)
    assert answer.code == 2 and "settings: 'k' is missing" in answer.err


def test_an_error_in_a_method_names_its_file_and_line(tiny, own_method):
    file = own_method / "norm_tuning.py"
    file.write_text(file.read_text().replace("        norms = ", "        1 / 0\n        norms = "))
    line = file.read_text().splitlines().index("        1 / 0") + 1
    answer = tiny("train --method", own_method / "norm-tuning.yaml")
    assert answer.code == 1 and f"norm_tuning.py, line {line}: ZeroDivisionError" in answer.err


RANKING = "from hifi_cli.heads.ranking import Ranked\n\ndef rank(richness, correlation, d, epsilon):\n    return Ranked(-richness)\n"
MEASURE = (
    "import torch\n\ndef measure(runner, examples):\n    return torch.arange(8.0).view(2, 4)\n"
)


def test_a_ranking_in_a_file_selects_heads_and_its_copy_is_executed_only_with_trust(
    tiny, hifi, data, tmp_path
):
    words = ("train", "--method", "hifi-layerwise", "heads.k=2", "epochs=1", "scoring.samples=12")
    for name, code in (("rank", RANKING), ("measure", MEASURE)):
        (tmp_path / f"{name}.py").write_text(code)
        for rank, variant in ((f"./{name}.py", name), ("richness-inverse", "inverse")):
            answer = tiny(*words, f"heads.rank={rank}", f"variant={variant}")
            assert answer.code == 0, answer.err
    folder = run_folder(method="hifi-layerwise").parent
    results = {
        name: json.loads((folder / name / "seed1/results.json").read_text())
        for name in ("rank", "measure", "inverse")
    }
    assert results["rank"]["heads"] == results["inverse"]["heads"]
    assert results["measure"]["heads"] == [[2, 3], [2, 3]]
    assert results["rank"]["method_code"] == file_digest(tmp_path / "rank.py")
    assert results["inverse"]["method_code"] is None

    (tmp_path / "rank.py").write_text("# changed\n")
    answer = tiny(*words, "heads.rank=./rank.py", "variant=rank")
    assert answer.code == 4 and "another ranking rank.py" in answer.err
    answer = tiny(*words, "heads.rank=./rank.py")
    assert answer.code == 2 and "rank.py must define a function rank or measure" in answer.err
    (tmp_path / "rank.py").unlink()
    run = folder / "rank/seed1"
    assert hifi(f"eval {run} --data-dir {data}").code == 0
    again = ["train", "-c", run / "config.yaml", "--seeds", "2", "--data-dir", data]
    answer = hifi(*again)
    assert answer.code == 2 and "own/rankings/rank.py names code, 'rank.py'" in answer.err
    assert hifi(*again, "--trust").code == 0
