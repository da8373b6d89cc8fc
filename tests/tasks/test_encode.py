"""From rows to tokens, batches, loss and predictions: choices, target words and windows over long contexts."""

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_inputs import WORDS
from torch.nn import functional

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import scores, task_spec
from hifi_cli.tasks.encode import collate, count_truncated_rows, rows_of, single_sequences, tokenize
from hifi_cli.tasks.examples import OUTSIDE, EncodedExample, Output, Row
from hifi_cli.training.losses import task_loss

PAD = {"input_ids": 0, "token_type_ids": 0}


def configured(max_length, **keys):
    return RunConfig.model_construct(max_length=max_length, **keys)


@pytest.fixture(scope="module")
def tokenizer(encoders):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(encoders["bert"])


def words_of(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(ids)


def test_choices_are_sequences_of_one_example(tokenizer):
    rows = [
        Row("0", (("the dog",), ("the big old cat",)), 1),
        Row("1", (("a man",), ("a boy",)), 0),
    ]
    examples = tokenize(tokenizer, task_spec.load("copa"), rows, configured(32))
    assert [len(example) for example in examples] == [6, 4]
    batch = collate(examples, PAD)
    assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(
        batch, (2, 2, 6)
    )
    assert batch["attention_mask"].sum(-1).tolist() == [[4, 6], [4, 4]]
    assert words_of(tokenizer, batch["input_ids"][0, 1].tolist()) == [
        "[CLS]",
        "the",
        "big",
        "old",
        "cat",
        "[SEP]",
    ]
    padded = collate(examples, PAD | {"input_ids": 9})["input_ids"]
    assert padded[1, 0].tolist()[4:] == [9, 9]
    alone = single_sequences(examples)
    assert [words_of(tokenizer, example.sequences[0]["input_ids"])[1:-1] for example in alone] == [
        ["the", "dog"],
        ["the", "big", "old", "cat"],
        ["a", "man"],
        ["a", "boy"],
    ]
    assert collate(alone, PAD)["input_ids"].shape == (4, 6)
    # The second choice alone is too long.
    short = tokenize(tokenizer, task_spec.load("copa"), rows, configured(5))
    assert [example.is_truncated for example in short] == [True, False]


@pytest.mark.parametrize(
    ("how", "cut"),
    [
        ("longest_first", ["1", "2", "3"]),
        ("only_first", ["1", "2", "3"]),
        ("only_second", ["1", "2", "3"]),
    ],
)
def test_rows_whose_texts_are_cut_are_counted(tokenizer, how, cut, monkeypatch):
    """10 tokens, three of them special: row 0 fits exactly."""
    # Here is what was left out, but not all of it in tokenizers 0.23.1 and 0.23.2.
    monkeypatch.setattr("transformers.BatchEncoding.encodings", None)
    pairs = [
        ("the dog sees", "a big old cat"),
        ("the dog sees a", "big old cat man"),
        ("the", "dog " * 9),
        ("dog " * 9, "the"),
    ]
    rows = [Row(str(index), (pair,), 0) for index, pair in enumerate(pairs)]
    examples = tokenize(tokenizer, task_spec.load("rte"), rows, configured(10, truncation=how))
    assert [example.row.id for example in examples if example.is_truncated] == cut
    assert count_truncated_rows(examples) == 3
    assert max(len(example) for example in examples) == 10


@pytest.mark.parametrize("swap", [False, True])
def test_target_words_are_found_among_the_tokens(tokenizer, swap):
    row = Row("0", (("the dog sees", "a big old cat"),), 1, word_spans=((4, 7), (6, 9)))
    (example,) = tokenize(tokenizer, task_spec.load("wic"), [row], configured(32, swap_texts=swap))
    tokens = words_of(tokenizer, example.sequences[0]["input_ids"])
    assert [tokens[first:last] for first, last in example.word_spans] == (
        [["old"], ["dog"]] if swap else [["dog"], ["old"]]
    )
    # A word may have several tokens.
    long = Row("1", (("the cat-bird sees", "a big old cat"),), 1, word_spans=((4, 12), (6, 9)))
    (of_long,) = tokenize(tokenizer, task_spec.load("wic"), [long], configured(32))
    tokens = words_of(tokenizer, of_long.sequences[0]["input_ids"])
    first, last = of_long.word_spans[0]
    assert tokens[first:last] == ["cat", tokens[first + 1], "bird"]
    batch = collate([example, example], PAD)
    assert batch["word_spans"].shape == (2, 2, 2) and batch["word_spans"].dtype == torch.int64
    assert "word_spans" not in collate(single_sequences([example]), PAD)


def test_a_target_word_that_is_cut_off_is_refused(tokenizer):
    row = Row("7", (("the old dog sees the cat", "a cat"),), 1, word_spans=((21, 24), (2, 5)))
    with pytest.raises(
        UsageError, match="row 7: the target word is truncated; increase max_length"
    ):
        tokenize(tokenizer, task_spec.load("wic"), [row], configured(6))
    with pytest.raises(UsageError, match=r"increase scoring\.max_length$"):
        key = "scoring.max_length"
        tokenize(tokenizer, task_spec.load("wic"), [row], configured(6), length_key=key)


@pytest.mark.parametrize(("how", "expected"), [
    (configured(8), "[CLS] a a a [SEP] the the [SEP]"),
    (configured(8, truncation="only_first"), "[CLS] a a a [SEP] the the [SEP]"),
    (configured(8, truncation="only_second", swap_texts=True), "[CLS] the the [SEP] a a a [SEP]"),
    (configured(8, truncation="only_first", swap_texts=True), "[CLS] the [SEP] a a a a [SEP]"),  # the other alone would not fit
])  # fmt: skip
def test_order_and_truncation_are_settings(tokenizer, how, expected):
    row = Row("0", (("a a a a a a", "the the"),), 0)
    (example,) = tokenize(tokenizer, task_spec.load("qnli"), [row], how)
    assert words_of(tokenizer, example.sequences[0]["input_ids"]) == expected.split()


def test_a_character_of_several_tokens_is_kept_or_left_out_whole():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(dict(zip(letters, range(256), strict=True)), merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, pad_token="a")
    row = Row("0", (("猫猫猫", "狗狗狗"),), 0)  # three bytes each
    how = configured(9, truncation="only_first")  # keeps eight of the second text's nine
    (example,) = tokenize(tokenizer, task_spec.load("qnli"), [row], how)
    assert example.sequences[0]["input_ids"].tolist() == tokenizer("猫狗狗")["input_ids"]


def test_a_row_with_a_truncated_question_counts_once_in_all_of_its_windows(tokenizer):
    row = span_row("dog " * 40, "dog", question="the dog " * 9)
    examples = tokenize(tokenizer, task_spec.load("squad"), [row], configured(20, stride=2))
    assert len(examples) > 1 and count_truncated_rows(examples) == 1
    # A question has a quarter of the window.
    for example in examples:
        tokens = words_of(tokenizer, example.sequences[0]["input_ids"])
        assert tokens.index("[SEP]") == 1 + 5


def span_row(context, answer, question="the dog sees", row_id="q"):
    return Row(row_id, ((question, context),), None, answers=((answer, context.index(answer)),))


@pytest.mark.parametrize("version", ["0.23.1", "0.23.2"])
def test_versions_of_the_tokenizers_that_cut_wrongly_are_refused(tokenizer, monkeypatch, version):
    """They leave out windows, and cut a pair otherwise: huggingface/tokenizers#2091."""
    monkeypatch.setattr(tokenizers, "__version__", version)
    refused = pytest.raises(MissingError, match=f"^tokenizers {version} cuts long texts wrongly: ")
    rte = task_spec.load("rte")
    pair = Row("0", (("the dog sees a", "big old cat man"),), 0)
    with refused:
        tokenize(tokenizer, rte, [pair], configured(10, truncation="longest_first"))
    with refused:
        row = span_row("dog " * 40, "dog")
        tokenize(tokenizer, task_spec.load("squad"), [row], configured(20, stride=2))
    one_is_long = Row("0", (("the dog", "big old cat man sees a dog"),), 0)
    for row, length, how, is_cut in (
        (pair, 11, "longest_first", False),
        (pair, 10, "only_first", True),
        (one_is_long, 10, "longest_first", True),
    ):
        (example,) = tokenize(tokenizer, rte, [row], configured(length, truncation=how))
        assert example.is_truncated == is_cut


CONTEXTS = st.builds(
    lambda size, step: [WORDS[at * step % len(WORDS)] for at in range(size)],
    st.integers(1, 60),
    st.integers(1, 9),
)


@given(CONTEXTS, st.data(), st.integers(14, 40), st.integers(0, 40))
@settings(deadline=None, max_examples=100)
def test_windows_cover_the_context_and_point_at_the_answer(encoders, context, data, length, stride):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    first = data.draw(st.integers(0, len(context) - 1))
    last = min(len(context) - 1, first + data.draw(st.integers(0, 2)))
    text = " ".join(context)
    start = len(" ".join(context[:first])) + (first > 0)
    answer = " ".join(context[first : last + 1])
    row = Row("q", (("the dog " * 9, text),), None, answers=((answer, start),))
    examples = tokenize(
        tokenizer, task_spec.load("squad"), [row], configured(length, stride=stride)
    )
    covered = {span for example in examples for span in example.offsets if span != OUTSIDE}
    assert [text[start:end] for start, end in sorted(covered)] == context
    for example in examples:
        assert len(example) <= length and len(example.offsets) == len(example)
        begin, end = example.answer
        held = [span for span in example.offsets if span != OUTSIDE]
        if held[0][0] <= start and held[-1][1] >= start + len(answer):
            assert text[example.offsets[begin][0] : example.offsets[end][1]] == answer
        else:
            assert example.answer == (0, 0)
    if stride >= 3 and length >= 40:
        assert any(example.answer != (0, 0) for example in examples)


@pytest.mark.parametrize("answer", ["cat", "-", "bird"])
def test_the_tokens_beside_an_answer_are_not_part_of_it(tokenizer, answer):
    """The first one of several accepted answers is trained on."""
    context = "the cat-bird sees"
    answers = ((answer, context.index(answer)), ("sees", 13))
    row = Row("q", (("the dog sees", context),), None, answers=answers)
    (example,) = tokenize(tokenizer, task_spec.load("squad"), [row], configured(40))
    first, last = example.answer
    assert context[example.offsets[first][0] : example.offsets[last][1]] == answer


def logits_for(examples, points):
    """Logits that point at tokens: {(window, 0 or 1, token): value}."""
    logits = np.full((len(examples), 2, max(map(len, examples))), -500.0)
    for place, value in points.items():
        logits[place] = value
    return logits


def test_the_best_possible_answer_over_all_windows_wins(tokenizer):
    squad = task_spec.load("squad")
    context = " ".join(["the", "big", "dog", "sees", "a", "small", "cat"] * 6)
    examples = tokenize(
        tokenizer,
        squad,
        [span_row(context, "small cat"), span_row("a man", "man", row_id="other")],
        configured(20, stride=4),
    )
    windows = [example for example in examples if example.row.id == "q"]
    assert len(windows) > 2 and rows_of(examples) == [windows[0].row, examples[-1].row]
    inside = [at for at, span in enumerate(windows[1].offsets) if span != OUTSIDE]
    points = {
        (0, 0, 0): 90.0, (0, 1, 0): 90.0,  # outside the context: impossible
        (0, 0, inside[4]): 50.0, (0, 1, inside[2]): 50.0,  # ends before it begins
        (1, 0, inside[1]): 7.0, (1, 1, inside[2]): 6.0, (1, 0, 2): 60.0,  # the best possible one; a question's token before it
        (2, 0, inside[0]): 6.0, (2, 1, inside[0]): 6.0,
        (len(windows), 0, 5): 1.0, (len(windows), 1, 6): 1.0,
    }  # fmt: skip
    predicted = squad.rules.predictions(examples, logits_for(examples, points))
    begin, end = windows[1].offsets[inside[1]][0], windows[1].offsets[inside[2]][1]
    assert predicted[0] == (context[begin:end], [7.0, 6.0])
    assert predicted[1] == ("a man", [1.0, 1.0])


def test_an_answer_has_at_most_thirty_tokens_and_may_be_none(tokenizer):
    squad = task_spec.load("squad")
    examples = tokenize(tokenizer, squad, [span_row(" ".join(["cat"] * 33), "cat")], configured(60))
    (example,) = examples
    inside = [at for at, span in enumerate(example.offsets) if span != OUTSIDE]
    logits = np.full((1, 2, len(example)), -1e9)
    logits[0, 0, inside[0]], logits[0, 1, inside[30]], logits[0, 1, inside[29]] = 9.0, 9.0, 1.0
    assert squad.rules.predictions(examples, logits)[0].prediction.count("cat") == 30
    logits = np.zeros((1, 2, 30))
    logits[0, :, :25] = [[1.0]]
    outside = EncodedExample(example.row, ({"input_ids": [1] * 30},), offsets=(OUTSIDE,) * 30)
    assert squad.rules.predictions([outside], logits) == [("", [1.0, 1.0])]


def test_an_answer_is_sought_among_twenty_tokens_of_the_context(tokenizer):
    squad = task_spec.load("squad")
    row = span_row(" ".join(["dog", *["cat"] * 12]), "dog")
    (example,) = tokenize(tokenizer, squad, [row], configured(60))
    inside = [at for at, span in enumerate(example.offsets) if span != OUTSIDE]
    logits = np.full((1, 2, len(example)), -1e9)
    # Ten tokens are more likely to be the first one, and all of them stand behind the last one.
    logits[0, 0, inside[-10:]] = 50.0
    logits[0, 0, inside[0]], logits[0, 1, inside[0]] = 2.0, 3.0
    # The separator behind the context is likely too.
    logits[0, 1, inside[-1] + 1] = 99.0
    assert squad.rules.predictions([example], logits) == [("dog", [2.0, 3.0])]


def labelled(labels, tokens=4):
    return [
        EncodedExample(Row(str(at), (("x",),), label), ({"input_ids": [1] * tokens},))
        for at, label in enumerate(labels)
    ]


def test_losses_are_those_of_torch():
    torch.manual_seed(0)
    logits = torch.randn(3, 2)
    labels = torch.tensor([0, 1, 1])
    expected = functional.cross_entropy(logits, labels, reduction="sum")
    for name in ("rte", "copa"):
        torch.testing.assert_close(
            task_loss(task_spec.load(name), logits, labelled([0, 1, 1])), expected
        )
    numbers = torch.tensor([0.5, 5.0, 2.0])
    torch.testing.assert_close(
        task_loss(task_spec.load("stsb"), logits[:, :1], labelled([0.5, 5.0, 2.0])),
        (logits[:, 0] - numbers).square().sum(),
    )


def test_one_logit_for_two_classes_is_two_logits_of_which_one_is_zero():
    logits = torch.tensor([[0.2], [-0.3], [0.0]])
    two = torch.cat([torch.zeros(3, 1), logits], 1)
    rte = task_spec.load("rte")
    torch.testing.assert_close(
        task_loss(rte, logits, labelled([1, 0, 1])), task_loss(rte, two, labelled([1, 0, 1]))
    )
    assert rte.rules.predictions(labelled([1, 0, 1]), logits.numpy()).tolist() == [1, 0, 0]
    assert rte.rules.predictions(labelled([1, 0, 1]), two.numpy()).tolist() == [1, 0, 0]


def test_the_span_loss_is_the_mean_of_both_ends_and_blind_to_padding():
    torch.manual_seed(0)
    squad = task_spec.load("squad")
    row = span_row("a cat", "cat")
    short, long = (
        EncodedExample(row, ({"input_ids": [1] * tokens},), answer=answer)
        for tokens, answer in ((4, (1, 2)), (6, (0, 0)))
    )
    logits = torch.randn(2, 2, 6)
    alone = [task_loss(squad, logits[:1, :, :4], [short]), task_loss(squad, logits[1:], [long])]
    torch.testing.assert_close(task_loss(squad, logits, [short, long]), sum(alone))
    expected = functional.cross_entropy(
        logits[0, :, :4], torch.tensor([1, 2])
    )  # the mean over start and end
    torch.testing.assert_close(alone[0], expected)


def test_squad_scores_by_hand():
    rows = [
        Row("0", (("q", "c"),), None, answers=(("Normans", 3), ("The Norman people", 0))),
        Row("1", (("q", "c"),), None, answers=(("in 1999!", 0),)),
        Row("2", (("q", "c"),), None, answers=(("Paris", 0),)),
    ]
    answers = [Output(text, []) for text in ("a norman  people.", "1999", "")]
    assert scores.compute(task_spec.load("squad"), rows, answers) == {
        "span_f1": pytest.approx((1 + 2 * 1 * 0.5 / 1.5 + 0) / 3),
        "span_em": pytest.approx(1 / 3),
    }
    assert not task_spec.load("squad").rules.is_collapsed(answers)
    assert task_spec.load("squad").rules.is_collapsed([Output("", [float(at)]) for at in range(3)])


def test_multirc_scores_by_hand():
    rows = [
        Row(f"0-{q}-{a}", (("p", "q"),), label, group=f"0-{q}")
        for q, a, label in ((0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 1))
    ]
    predictions = np.array([1.0, 0, 1, 0])
    assert scores.compute(task_spec.load("multirc"), rows, predictions) == {
        "f1a": pytest.approx(2 * 2 / (2 * 2 + 0 + 1)),
        "question_em": 0.5,
    }


METRIC = """
import datasets
import evaluate


class Halves(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=datasets.Features(
            {"predictions": datasets.Value("int32"), "references": datasets.Value("int32")}))

    def _compute(self, predictions, references):
        halves = sum(p == r for p, r in zip(predictions, references)) / 2 / len(references)
        return {"halves": halves, "undefined": float("nan"), "by_type": {"x": 1}}
"""


@pytest.mark.filterwarnings("ignore")
def test_a_task_may_name_a_metric_of_evaluate(tmp_path, monkeypatch):
    import socket

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was tried"))
    path = tmp_path / "halves" / "halves.py"
    path.parent.mkdir()
    path.write_text(METRIC)
    task = task_spec.load("rte").model_copy(update={"evaluate": str(path), "primary": "halves"})
    rows = [example.row for example in labelled([0, 1, 1, 0])]
    computed = scores.compute(task, rows, np.array([0.0, 1, 0, 0]))
    assert computed == {"accuracy": 0.75, "halves": 0.375, "undefined": 0.0}
    # Numbers stay numbers: 2.0 is not 2.5.
    of_numbers = tmp_path / "numbers" / "numbers.py"
    of_numbers.parent.mkdir()
    of_numbers.write_text(METRIC.replace("int32", "float32"))
    stsb = task_spec.load("stsb").model_copy(update={"evaluate": str(of_numbers)})
    numbers = [example.row for example in labelled([1.5, 2.5])]
    assert scores.compute(stsb, numbers, np.array([1.5, 2.0]))["halves"] == 0.25
    with pytest.raises(
        UsageError, match="primary 'thirds' is not among its scores, accuracy, halves, undefined"
    ):
        scores.compute(task.model_copy(update={"primary": "thirds"}), rows, np.zeros(4))
    with pytest.raises(MissingError, match="the metric 'nowhere' of evaluate cannot be loaded"):
        scores.compute(task.model_copy(update={"evaluate": "nowhere"}), rows, np.zeros(4))
