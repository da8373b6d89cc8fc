"""The features' distances between the stages of EH-FT and LP-FT, against transformers alone."""

import copy

import matplotlib
import pandas as pd
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hifi_cli.errors import UsageError
from hifi_cli.figures import figure
from hifi_cli.methods import two_stage
from hifi_cli.results.reload import reload

pytestmark = pytest.mark.slow

HALF = ("settings.stage1_fraction=0.5", "stage1.learning_rate=0.01")


@pytest.fixture
def models_after_stage_1(monkeypatch):
    """The backbone's weights at the end of each stage 1 that trains."""
    states = []
    begin = two_stage.TwoStage.begin_stage_2

    def recording(self, encoder):
        states.append(copy.deepcopy(encoder.base.state_dict()))
        begin(self, encoder)

    monkeypatch.setattr(two_stage.TwoStage, "begin_stage_2", recording)
    return states


def first_tokens(directory, texts, state=None):
    """The last hidden state of every example's first token, by transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory)
    model.load_state_dict(state or model.state_dict(), strict=True)
    model.eval()
    with torch.inference_mode():
        return torch.stack(
            [model(**tokenizer(*row.sequences[0], return_tensors="pt")).last_hidden_state[0, 0] for row in texts]
        )


def test_distances_are_those_of_the_runs_own_models(ask, resources, encoders, models_after_stage_1, tmp_path):
    request = ask("stage-features", {"published": {"lp-ft": 36.7}}, ("lp-ft", "eh-ft-bitfit"), (2,), *HALF, train=True)
    figure.compute(request, tmp_path / "stages.csv")
    probed, tuned = models_after_stage_1[:2]  # of the runs; the figure trains each stage 1 again and ends before stage 2
    states_of_runs = dict(zip(("lp-ft", "eh-ft-bitfit"), (probed, tuned), strict=True))
    rows = {(row["method"], row["pair"]): row for row in pd.read_csv(tmp_path / "stages.csv").to_dict("records")}
    texts = resources.rows("rte").rows("train")
    before = first_tokens(encoders["bert"], texts)
    for cell in request.cells():
        method = cell.config.method
        between = first_tokens(encoders["bert"], texts, states_of_runs[method])
        with reload(resources.results_dir / cell.run_path, resources) as (prepared, _):
            after = first_tokens(encoders["bert"], texts, prepared.encoder.base.state_dict())
        expected = {
            "pretrained-stage1": between - before,
            "stage1-stage2": after - between,
            "pretrained-stage2": after - before,
        }
        for pair, difference in expected.items():
            distances = difference.double().norm(dim=1)
            assert rows[method, pair]["mean"] == pytest.approx(float(distances.mean()), rel=1e-4)
            assert rows[method, pair]["std"] == pytest.approx(float(distances.std(correction=0)), rel=1e-3)
    assert rows["lp-ft", "pretrained-stage1"]["mean"] == 0
    assert rows["eh-ft-bitfit", "pretrained-stage1"]["mean"] > 0.01
    assert rows["lp-ft", "stage1-stage2"]["mean"] == rows["lp-ft", "pretrained-stage2"]["mean"] > 0
    assert [row["published"] for row in rows.values() if not pd.isna(row["published"])] == [36.7]
    assert rows["lp-ft", "stage1-stage2"]["published"] == 36.7
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.draw(tmp_path / "stages.csv", tmp_path / "stages.svg")
    picture = (tmp_path / "stages.svg").read_text()
    assert "(paper: 36.7)" in picture and picture.count("paper: ") == 1
    assert f"{rows['eh-ft-bitfit', 'stage1-stage2']['mean']:.2f}" in picture


def test_a_method_with_one_stage_is_refused(ask):
    request = ask("stage-features", None, ("eh-ft-bitfit", "full-ft"))
    with pytest.raises(UsageError, match="method full-ft has one stage; this figure is for EH-FT and LP-FT"):
        request.cells()
