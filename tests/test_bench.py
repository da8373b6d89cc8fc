"""The benchmark runs on generated data, and its ratios are those of its seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "bench"


@pytest.mark.slow
def test_the_benchmark_on_generated_data(tmp_path):
    words = ["--tasks", "demo-acceptability", "--rows", "40", "--rounds", "1", "--threads", "1", "--parts", "epochs,limits"]
    words += ["--out", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "HIFI_DATA_DIR"}
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "minilm.json").read_text())
    measured = found["epochs"]["demo-acceptability"]
    assert measured["seconds"]["10 b"] == pytest.approx(10 * measured["seconds"]["b"], rel=0.01)
    for one in measured["ratios"]:
        assert one["ratio"] == pytest.approx(measured["seconds"][one["work"]] / measured["seconds"][one["against"]], rel=0.05)
        assert f"{one['ratio']:.3f}" in done.stdout
    assert all(0 < one["reached"] < 1.5 and one["gflop"] > 0 for one in measured["limits"].values())
    assert all(sum(one["step"].values()) == pytest.approx(1, abs=0.01) for one in measured["limits"].values())
    assert found["rates"]["fp32"] > 0 and found["epochs_measured"]["processor"]
