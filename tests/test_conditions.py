"""Runs on other weights of the encoder, or by other code of a method, are neither averaged nor compared, and the table says so."""

import json
import shutil
from pathlib import Path

import pytest
from json_output import table_of
from tiny_inputs import QUICK

from hifi_cli.files import file_digest


def stored(backbone, method, seed):
    """What results.json of a run on RTE says."""
    return json.loads(Path(f"results/runs/hifi/{backbone}/rte/{method}/seed{seed}/results.json").read_text())


def cell_of(answer, task="rte"):
    """The only cell of a table of one method, and its scores."""
    (row,) = [row for row in table_of(answer)["rows"] if row["source"] == "runs"]
    return row["cells"][task], row["scores"][task]


@pytest.fixture
def own_encoder(encoders, tmp_path):
    """A copy of the tiny BERT in a directory of its own."""
    return shutil.copytree(encoders["bert"], tmp_path / "x/enc")


def change_weights(directory):
    """Add a hundredth to every weight of a local encoder."""
    from safetensors.torch import load_file, save_file

    path = directory / "model.safetensors"
    save_file({name: tensor + 0.01 for name, tensor in load_file(path).items()}, path, {"format": "pt"})


@pytest.fixture
def train(hifi, data):
    """`hifi train` on RTE."""

    def run(backbone, *words):
        answer = hifi("train", "--task", "rte", "--backbone", backbone, "--data-dir", data, *words, *QUICK)
        assert answer.code == 0, answer.err

    return run


def test_seeds_on_replaced_weights_are_not_averaged(hifi, train, own_encoder):
    train(own_encoder, "--method", "bitfit", "--seeds", "1,2")
    before = file_digest(own_encoder / "model.safetensors")
    change_weights(own_encoder)
    train(own_encoder, "--method", "bitfit", "--seeds", "3")
    weights = [stored("enc", "bitfit", seed)["backbone_weights"] for seed in (1, 2, 3)]
    assert weights == [before, before, file_digest(own_encoder / "model.safetensors")]
    cell, scores = cell_of(hifi("table", "--format", "json"))
    assert len(scores) == 2
    assert "1 run with different encoder weights left out (--include unequal includes them)" in cell["notes"]


def test_two_directories_of_one_name_are_two_encoders(hifi, train, own_encoder, tmp_path):
    other = shutil.copytree(own_encoder, tmp_path / "y/enc")
    change_weights(other)
    train(own_encoder, "--method", "bitfit", "--seeds", "1,2")
    train(other, "--method", "full-ft", "--seeds", "1,2")
    answer = hifi("compare", "bitfit", "full-ft")
    assert answer.code == 3 and "RTE: left out: BitFit and Full-FT differ in encoder weights" in answer.err
    assert hifi("compare", "bitfit", "full-ft", "--include", "unequal").code == 0


METHOD = "description: d\nlabel: Mine\nsource: s\nimplementation: ./mine.py\n"
CODE = """
from hifi_cli.methods.base import Method, freeze_except, task_head_names


class Mine(Method):
    def prepare(self, encoder):
        freeze_except(encoder, task_head_names(encoder))
"""


def test_seeds_of_changed_method_code_are_not_averaged(hifi, train, encoders, tmp_path):
    code = tmp_path / "mine.py"
    (tmp_path / "mine.yaml").write_text(METHOD)
    code.write_text(CODE)
    digests = [file_digest(code)]
    train(encoders["bert"], "--method", "mine.yaml", "--seeds", "1,2")
    code.write_text(f"{CODE}# changed\n")
    digests.append(file_digest(code))
    train(encoders["bert"], "--method", "mine.yaml", "--seeds", "3")
    train(encoders["bert"], "--method", "bitfit", "--seeds", "1,2")
    codes = [stored("tiny-bert", "mine", seed)["method_code"] for seed in (1, 2, 3)]
    assert codes == [digests[0], digests[0], digests[1]]
    assert stored("tiny-bert", "bitfit", 1)["method_code"] is None
    cell, scores = cell_of(hifi("table", "--methods", "mine", "--format", "json"))
    assert len(scores) == 2
    assert "1 run with different method code left out (--include unequal includes them)" in cell["notes"]
    assert hifi("compare", "mine", "bitfit").code == 0  # methods differ in their code
