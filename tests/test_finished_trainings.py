"""A figure that trains keeps the numbers of each training: an interruption repeats none, and changes no number."""

import pytest

from hifi_cli.errors import ConflictError
from hifi_cli.figures import figure, landscape, training_curves, tsne

CASES = {
    "training-curves": (training_curves, {}, ("full-ft", "bitfit")),
    "landscape": (
        landscape,
        {"points": 2, "examples": 4, "snapshots": 2, "shots": [None]},
        ("full-ft", "bitfit"),
    ),
    "tsne": (tsne, {"perplexity": 5}, ("lp-ft", "eh-ft-bitfit")),
}


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("kind", CASES)
def test_an_interrupted_figure_goes_on_with_the_next_training(ask, tmp_path, monkeypatch, kind):
    module, settings, methods = CASES[kind]
    words = ("task_head.kind=mlp",)
    uninterrupted, path = tmp_path / "uninterrupted.csv", tmp_path / "f.csv"
    figure.compute(ask(kind, settings, methods, (1,), *words), uninterrupted)

    trained, train = [], module.train

    def train_until(limit):
        def training(config, *rest, **keys):
            if len(trained) == limit:
                raise Interrupted
            trained.append(config.method)
            return train(config, *rest, **keys)

        monkeypatch.setattr(module, "train", training)

    train_until(1)
    with pytest.raises(Interrupted):
        figure.compute(ask(kind, settings, methods, (1,), *words), path)
    assert not path.exists()
    train_until(2)
    figure.compute(ask(kind, settings, methods, (1,), *words), path)
    assert trained == list(methods)
    assert path.read_bytes() == uninterrupted.read_bytes()
    assert {file.name for file in tmp_path.glob("*f.*")} == {"f.csv", "f.json", ".f.lock"}, "nothing is left"


def test_more_seeds_compute_a_figure_again_and_fewer_are_refused(ask, tmp_path, monkeypatch):
    path, trained, train = tmp_path / "f.csv", [], training_curves.train
    monkeypatch.setattr(training_curves, "train", lambda config, *rest: trained.append(config.seed) or train(config, *rest))
    for seeds in ((1,), (1,), (1, 2)):
        figure.compute(ask("training-curves", None, ("full-ft",), seeds), path)
    assert trained == [1, 1, 2]
    with pytest.raises(ConflictError, match="has numbers of seeds 1, which would be lost: name them in --seeds too"):
        figure.compute(ask("training-curves", None, ("full-ft",), (2,)), path)
    figure.compute(ask("training-curves", None, ("full-ft",), (2,)), path, force=True)
    assert trained == [1, 1, 2, 2]


def test_rows_of_other_settings_are_trained_again(ask, tmp_path, monkeypatch):
    trained, train = [], training_curves.train

    def training(config, *rest):
        if len(trained) == 1:
            raise Interrupted
        trained.append(config.method)
        return train(config, *rest)

    monkeypatch.setattr(training_curves, "train", training)
    for settings, force in (({"every": 1}, False), ({"every": 2}, False), ({"every": 2}, True)):
        trained.clear()
        with pytest.raises(Interrupted):
            request = ask("training-curves", settings, ("full-ft", "bitfit"))
            figure.compute(request, tmp_path / "f.csv", force=force)
        assert trained == ["full-ft"], "every=2 is another figure, and --force starts from nothing"
