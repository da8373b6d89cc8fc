"""Token classification: entities and their scores, words and their tokens, the loss, and a run from training to prediction."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from prepared_models import data_of
from tiny_inputs import write_lines
from transformers import AutoModelForTokenClassification, AutoTokenizer

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import metrics, own_data, scores, task_spec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.encode import tokenize
from hifi_cli.tasks.examples import UNREAD, EncodedExample, Output
from hifi_cli.tasks.rows import parse_rows
from hifi_cli.tasks.source_rows import SourceRow
from hifi_cli.training.losses import loss_normalizer, task_loss

CONLL = task_spec.load("conll2003")


def entity_scores(labels, predictions):
    """Precision, recall and F1 of entities, by the list of metrics."""
    names = ("ner_precision", "ner_recall", "ner_f1")
    return {name: metrics.METRICS[name].function(labels, predictions) for name in names}


def rows_of(*sentences):
    """Rows of (words, tags), each a text with spaces."""
    records = [
        SourceRow({"tokens": words.split(), "tags": tags}, f"line {at}")
        for at, (words, tags) in enumerate(sentences, start=1)
    ]
    return parse_rows(CONLL, records, CONLL.local, "file", labelled=True)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", ["PER 1-2"]),
        ("B-PER B-PER I-PER", ["PER 0-0", "PER 1-2"]),  # IOB2: adjacent entities of a type
        ("I-PER I-PER O I-PER", ["PER 0-1", "PER 3-3"]),  # IOB1: I begins an entity
        ("I-PER B-PER", ["PER 0-0", "PER 1-1"]),
        ("B-PER I-ORG I-ORG", ["PER 0-0", "ORG 1-2"]),  # another type never continues
        ("B-PER O I-PER", ["PER 0-0", "PER 2-2"]),
        ("S-PER S-PER B-ORG I-ORG E-ORG", ["PER 0-0", "PER 1-1", "ORG 2-4"]),  # IOBES
        ("B-ORG E-ORG I-ORG", ["ORG 0-1", "ORG 2-2"]),
        ("U-PER B-ORG L-ORG L-ORG", ["PER 0-0", "ORG 1-2", "ORG 3-3"]),  # BILOU
        ("B-x-y I-x-y", ["x-y 0-1"]),
        ("O O", []),
    ],
)
def test_entities_by_hand(tags, expected):
    assert [
        f"{kind} {first}-{last}" for kind, first, last in metrics.entities(tags.split())
    ] == expected


def test_scores_of_entities_by_hand():
    labels = [["B-PER", "I-PER", "O", "B-ORG"], ["B-PER", "O"]]
    predictions = [
        ["B-PER", "I-PER", "O", "B-PER"],
        ["O", "B-ORG"],
    ]  # 1 of 3 predicted ones is among the 3 of the labels
    assert [*entity_scores(labels, predictions).values()] == pytest.approx([1 / 3] * 3)
    predictions[1] = ["O", "O"]  # 1 of 2
    assert [*entity_scores(labels, predictions).values()] == pytest.approx([1 / 2, 1 / 3, 2 / 5])
    assert {*entity_scores([["B-PER", "I-PER"]], [["B-PER", "O"]]).values()} == {
        0
    }  # the last word differs
    assert {*entity_scores([["IN", "IN"]], [["IN", "IN"]]).values()} == {0}  # no tags of entities


def test_word_accuracy_and_collapse():
    labels, predictions = [["O", "B-PER"], ["O"]], [["O", "O"], ["O"]]
    assert metrics.word_accuracy(labels, predictions) == pytest.approx(2 / 3)
    logits = np.zeros((2, len(CONLL.labels), 4))
    logits[:, 0] = 1
    examples = [
        EncodedExample(row, (), word_tokens=(1, 2))
        for row in rows_of(("a b", "O O"), ("c d", "B-PER O"))
    ]
    predicted = CONLL.rules.predictions(examples, logits)
    assert CONLL.rules.is_collapsed(predicted)
    # Sentences are of different lengths: their tags are compared, and not the lists of these.
    assert CONLL.rules.is_collapsed([Output(["O", "O"], []), Output(["O"], [])])
    assert not CONLL.rules.is_collapsed([Output(["O", "O"], [])])
    logits[1, 2, 1] = 3
    predicted = CONLL.rules.predictions(examples, logits)
    assert [sentence.prediction for sentence in predicted] == [["O", "O"], ["I-PER", "O"]]
    assert predicted[1].logits == [3, 1] and not CONLL.rules.is_collapsed(predicted)


def test_wrong_rows_are_named():
    with pytest.raises(UsageError, match="line 1: 3 words have 2 tags"):
        rows_of(("the old man", "O O"))
    with pytest.raises(UsageError, match="line 2: unknown label 'B-X'; the labels are O, B-PER"):
        rows_of(("the", "O"), ("man", "B-X"))
    for values, message in (
        ({"tokens": ["a", 1]}, r"tokens is \['a', 1\], not a list of words"),
        ({"tokens": [], "source": "news"}, "tokens is empty"),
        ({"tokens": []}, "the row is empty"),
    ):
        with pytest.raises(UsageError, match=f"line 1: {message}"):
            parse_rows(
                CONLL,
                [SourceRow(values, "line 1")],
                CONLL.local,
                "file",
                labelled=False,
            )


def test_truncated_words_are_counted_and_have_no_tag(encoders, caplog):
    """Two of six tokens are [CLS] and [SEP]; the word cat-bird has three, of which the first counts."""
    rows = rows_of(("the old man sees the dog", "O B-PER I-PER O O O"), ("cat-bird dog", "O B-ORG"))
    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    examples = tokenize(tokenizer, CONLL, rows, RunConfig.model_construct(max_length=6))
    assert [example.word_tokens for example in examples] == [(1, 2, 3, 4, UNREAD, UNREAD), (1, 4)]
    assert "max_length=6 leaves 2 of 8 words without a token" in caplog.text
    logits = np.zeros((2, len(CONLL.labels), 6))
    logits[:, 1, 2] = logits[:, 1, -1] = 5
    predicted = CONLL.rules.predictions(examples, logits)
    assert [sentence.prediction for sentence in predicted] == [
        ["O", "B-PER", "O", "O", "O", "O"],
        ["O", "O"],
    ]
    assert [sentence.logits for sentence in predicted] == [[0, 5, 0, 0, 0, 0], [0, 0]]
    assert (
        scores.compute(CONLL, rows, predicted)["ner_f1"] == 0
    )  # the entity is cut off after its first word


def test_a_word_has_its_first_token_even_if_it_begins_with_a_space(encoders):
    """The tokenizer drops a no-break space, which is part of a word."""
    record = SourceRow({"tokens": ["the", "\xa0dog"], "tags": "O B-PER"}, "line 1")
    rows = parse_rows(CONLL, [record], CONLL.local, "file", labelled=True)
    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    (example,) = tokenize(tokenizer, CONLL, rows, RunConfig.model_construct(max_length=8))
    assert example.word_tokens == (1, 2)


def test_the_loss_is_that_of_transformers_with_ignored_targets():
    rows = rows_of(("a b c", "O B-PER I-PER"), ("d e", "B-ORG O"))
    examples = [
        EncodedExample(rows[0], (), word_tokens=(1, 2, 5)),
        EncodedExample(rows[1], (), word_tokens=(1, UNREAD)),
    ]
    by_token = torch.randn(2, 6, len(CONLL.labels), generator=torch.Generator().manual_seed(0))
    targets = torch.full((2, 6), -100)
    targets[0, [1, 2, 5]] = torch.tensor([0, 1, 2])
    targets[1, 1] = CONLL.labels.index("B-ORG")
    expected = torch.nn.CrossEntropyLoss()(by_token.flatten(0, 1), targets.flatten())
    loss = task_loss(CONLL, by_token.transpose(1, 2), examples) / loss_normalizer(CONLL, examples)
    torch.testing.assert_close(loss, expected)
    assert loss_normalizer(CONLL, examples) == 4
    unread = [EncodedExample(rows[1], (), word_tokens=(UNREAD, UNREAD))]
    assert (
        task_loss(CONLL, by_token[1:].transpose(1, 2), unread) / loss_normalizer(CONLL, unread) == 0
    )


@pytest.fixture
def trained(make, task_kinds_data, tmp_path):
    """A finished run on four types of entities, its directory and workspace."""
    workspace = Workspace(tmp_path / "results", task_kinds_data)
    config = make("full-ft", "epochs=12", "learning_rate=0.003", "max_length=40", task="conll2003")
    return runs.run(config, workspace), RunDirectory.of(config, workspace.results_dir), workspace


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Tokenizer does not support real words"
)  # the tests' own tokenizer
def test_a_run_is_reported_on_both_splits_exports_and_predicts(
    hifi, trained, task_kinds_data, tmp_path
):
    result, directory, workspace = trained
    names = {"ner_f1", "ner_precision", "ner_recall", "word_accuracy"}
    assert set(result.metrics) == names | {f"{name}_test" for name in names}
    assert result.metrics["ner_f1"] > 0.5
    assert not evaluate(directory.path, workspace).differing
    stored = directory.read_predictions()
    computed = entity_scores([row.label for row in stored], [row.prediction for row in stored])
    assert computed["ner_f1"] == pytest.approx(result.metrics["ner_f1"])

    sentences = [" ".join(row.words) for row in data_of("conll2003", workspace).rows("validation")]
    write_lines(
        tmp_path / "new.jsonl", [json.dumps({"tokens": sentence.split()}) for sentence in sentences]
    )
    answer = hifi(f"predict {directory.path} {tmp_path}/new.jsonl")
    assert answer.code == 0, answer.err
    predicted = [json.loads(line) for line in answer.out.splitlines()]
    assert [row["tokens"] for row in predicted] == [sentence.split() for sentence in sentences]
    assert [row["tags"] for row in predicted] == [row.prediction for row in stored]
    write_lines(
        tmp_path / "new.conll", [word for sentence in sentences for word in (*sentence.split(), "")]
    )
    assert hifi(f"predict {directory.path} {tmp_path}/new.conll").out == answer.out
    write_lines(tmp_path / "new.tsv", ["tokens", *sentences])
    assert hifi(f"predict {directory.path} {tmp_path}/new.tsv").out == answer.out

    assert (
        hifi(f"export {directory.path} --to {tmp_path}/model --data-dir {task_kinds_data}").code
        == 0
    )
    model, tokenizer = (
        AutoModelForTokenClassification.from_pretrained(tmp_path / "model"),
        AutoTokenizer.from_pretrained(tmp_path / "model"),
    )
    assert [model.config.id2label[at] for at in range(9)] == CONLL.labels
    row_tokenizer = workspace.tokenizer(directory.read_config(), task_spec.load("conll2003"))
    rows = data_of("conll2003", workspace).rows("validation")
    example = row_tokenizer.tokenize(rows[:1], 40)[0]
    with torch.no_grad():
        logits = model(**tokenizer(sentences[0], return_tensors="pt")).logits[
            0, list(example.word_tokens)
        ]
    torch.testing.assert_close(
        logits.max(1).values, torch.tensor(stored[0].logits), rtol=1e-4, atol=1e-4
    )
    assert [CONLL.labels[at] for at in logits.argmax(1)] == stored[0].prediction
    assert 'aggregation_strategy="first"' in (tmp_path / "model" / "README.md").read_text()


def write_form(path, form):
    """Two sentences, ten times, in a form of tagged data."""
    sentences = [
        (["old", "man", "sees", "the", "dog"], ["B-PER", "I-PER", "O", "O", "B-ORG"]),
        (["the", "cat"], ["O", "B-ORG"]),
    ]
    if form == "conll":
        blocks = [
            "\n".join(f"{word} x {tag}" for word, tag in zip(*sentence, strict=True))
            for sentence in sentences * 10
        ]
        path.write_text("-DOCSTART- -X- O\n\n" + "\n\n\n".join(blocks) + "\n")
    elif form == "tabs":
        blocks = [
            "\n".join(f"{tag}\t{word}" for word, tag in zip(*sentence, strict=True))
            for sentence in sentences * 10
        ]
        path.write_text("\n\n".join(f"# id = {at}\n{block}" for at, block in enumerate(blocks)))
    else:
        path.write_text(
            "".join(
                json.dumps({"tokens": words, "ner_tags": tags}) + "\n"
                for words, tags in sentences * 10
            )
        )
    return str(path)


FORMS = {
    "conll": ("a.conll", []),
    "tabs": ("b.conll", ["inputs=2", "label=1"]),
    "lists": ("c.jsonl", []),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_tagged_data_gives_the_same_rows(form, tmp_path):
    name, options = FORMS[form]
    source = write_form(tmp_path / name, form)
    spec = task_spec.load(own_data.register(source, [*options, "validation=0.5"]))
    assert (spec.kind, spec.labels) == ("token-classification", ["B-ORG", "B-PER", "I-PER", "O"])
    assert spec.metrics == CONLL.metrics
    data = task_sources.load(spec, data_dir=None)
    rows = {
        split: Counter((tuple(row.words), row.label) for row in data.rows(split))
        for split in ("train", "validation")
    }
    first, second = (
        (("old", "man", "sees", "the", "dog"), (1, 2, 3, 3, 0)),
        (("the", "cat"), (3, 0)),
    )
    assert rows == {
        "train": {first: 10},
        "validation": {second: 10},
    }  # equal texts stand on one side of the cut


def test_what_is_not_recognized_is_asked_for(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["a", "b"], "pos": ["X", "Y"], "chunk": ["X", "Z"]}\n' * 9)
    with pytest.raises(UsageError, match="the columns are words, pos, chunk"):
        own_data.from_data(str(path), [])
    spec = task_spec.load(own_data.register(str(path), ["label=pos"]))
    assert (spec.labels, spec.metrics) == (["X", "Y"], ["word_accuracy"])  # no entities
    path = tmp_path / "b.conll"
    path.write_text("the X O\ndog O\n")
    with pytest.raises(
        UsageError, match=r"b.conll, line [12]: [23] columns .*, where most lines have [23]"
    ):
        own_data.from_data(str(path), [])
    path.write_text("\n# x\n\n \n".replace("# x", "-DOCSTART- O"))
    with pytest.raises(UsageError, match="has no rows"):
        own_data.from_data(str(path), [])
