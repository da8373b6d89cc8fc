"""Methods of other packages: the page's own example as an entry point, trained and rebuilt; what is unknown is an error."""

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "extend.md").read_text()


@pytest.fixture
def norm_tuning(tmp_path, monkeypatch):
    """The example of docs/extend.md as pasted, in a package that is installed; gives the YAML's name."""
    code = re.search(r"```python\n([^`]*class NormTuning.*?)```", PAGE, re.DOTALL)[1]
    content = re.search(r"```yaml\n([^`]*implementation: norm_tuning\n)```", PAGE)[1]
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "norm_tuning_package.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    entry = importlib.metadata.EntryPoint("norm_tuning", "norm_tuning_package:NormTuning", "hifi.methods")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry] if group == "hifi.methods" else [])
    (tmp_path / "norm-tuning.yaml").write_text(content)
    return "norm-tuning.yaml"


def test_a_method_of_an_installed_package_trains_and_is_rebuilt(tiny, hifi, data, norm_tuning):
    answer = tiny("train", "--method", norm_tuning)
    assert answer.code == 0, answer.err
    run = "results/runs/hifi/tiny-bert/rte/norm-tuning/seed1"
    counts = json.loads(Path(run, "results.json").read_text())["params"]
    assert counts["trainable_backbone"] == 5 * 2 * 32  # a LayerNorm of the embeddings and two of each of two layers
    answer = hifi("eval", run, "--data-dir", data)
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("implementation", ["norm_tunin", "../norm_tuning", "./norm_tuning.py", "os", "base"])
def test_an_unknown_implementation_is_an_error_with_the_remedy(tiny, norm_tuning, implementation):
    path = Path(norm_tuning)
    path.write_text(path.read_text().replace("implementation: norm_tuning", f"implementation: {implementation}"))
    answer = tiny("train", "--method", norm_tuning)
    assert answer.code == 2 and f"unknown implementation '{implementation}'" in answer.err, answer.err
    assert "report it" not in answer.err and "hifi.methods" in answer.err
