"""SuperGLUE from its official files to the zip that its server accepts, on synthetic rows; its metrics against hand-made examples."""

import copy
import json
import math
import zipfile

import numpy as np
import pytest
from official_rows import JSONL
from prepared_models import splits_of
from tiny_inputs import QUICK_WORDS, WORDS, write_lines

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.plan import Planner
from hifi_cli.runs.splits import split_train
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import metrics, scores, submission, task_spec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.task_spec import EncodedExample, Row

pytestmark = pytest.mark.slow

TEST_ROWS = 4
OFFICIAL_TEST_ROWS = {  # tensorflow/datasets, docs/community_catalog/huggingface/super_glue.md
    "AX-b.jsonl": 1104, "AX-g.jsonl": 356, "BoolQ.jsonl": 3245, "CB.jsonl": 250, "COPA.jsonl": 500, "MultiRC.jsonl": 9693,
    "RTE.jsonl": 3000, "ReCoRD.jsonl": 10000, "WSC.jsonl": 146, "WiC.jsonl": 1400,
}  # fmt: skip


FOLDERS = {
    "boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD", "superglue-rte": "RTE", "wic": "WiC", "wsc": "WSC",
}  # fmt: skip


def official_row(name, at, split):
    """The official row of a task as row `at` of a split, as JSON. RTE's class follows from the word dog."""
    row = copy.deepcopy(JSONL[name]) | {"idx": at}
    if name == "superglue-rte":
        word, row["label"] = ("dog", "not_entailment") if at % 2 else ("cat", "entailment")
        row |= {
            "premise": f"{word} {WORDS[6 + at % 18]}",
            "hypothesis": f"{word} {WORDS[23 - at % 18]}",
        }
    if name == "multirc":
        (question,) = row["passage"]["questions"]
        question["idx"] = at
        question["answers"] = [
            answer | {"idx": 2 * at + place} for place, answer in enumerate(question["answers"])
        ]
    if name == "record":
        row["qas"][0]["idx"] = at
        row["passage"]["entities"] = row["passage"]["entities"][:2]
    hidden = () if split != "test" else ("answers",) if name == "record" else ("label",)
    return json.loads(
        json.dumps(row),
        object_hook=lambda part: {key: value for key, value in part.items() if key not in hidden},
    )


def write_superglue(root, train_rows=24):
    """All of SuperGLUE's files."""
    for split, number in (("train", train_rows), ("val", train_rows // 2), ("test", TEST_ROWS)):
        for name, folder in FOLDERS.items():
            rows = (
                number // 2 if (name, split) == ("multirc", "test") else number
            )  # of which each has two answers
            lines = [json.dumps(official_row(name, at, split)) for at in range(rows)]
            write_lines(root / folder / f"{split}.jsonl", lines)
    broad = [
        {
            "sentence1": f"{w} now",
            "sentence2": f"{w} here",
            "idx": at,
            "label": truth,
            "logic": "Negation",
        }
        for at, (w, truth) in enumerate(
            [
                ("cat", "entailment"),
                ("dog", "not_entailment"),
                ("cat", "entailment"),
                ("dog", "entailment"),
            ]
        )
    ]
    gender = [
        {
            "premise": f"{w} {who}",
            "hypothesis": f"{w} big {at // 2}",
            "idx": at,
            "pair_id": at + 7,
            "label": "entailment",
        }
        for at, (w, who) in enumerate(
            [("cat", "man"), ("cat", "woman"), ("dog", "man"), ("dog", "woman")]
        )
    ]
    write_lines(root / "AX-b" / "AX-b.jsonl", [json.dumps(record) for record in broad])
    write_lines(root / "AX-g" / "AX-g.jsonl", [json.dumps(record) for record in gender])
    return root


@pytest.fixture(scope="module")
def superglue(tmp_path_factory):
    return write_superglue(tmp_path_factory.mktemp("data") / "superglue")


@pytest.fixture
def small(monkeypatch):
    """Every task's test splits have four rows, as the synthetic files."""
    load = task_spec.load
    splits = ("test", "validation_axb", "validation_axg")

    def shrunk(name):
        task = load(name)
        return task.model_copy(
            update={"rows": {split: TEST_ROWS for split in task.rows if split in splits}}
        )

    monkeypatch.setattr(task_spec, "load", shrunk)


def test_the_test_splits_have_the_official_row_counts():
    counts = {
        file: task.rows[split]
        for file, (_, task, split) in submission.tasks_by_file("superglue").items()
    }
    assert counts == OFFICIAL_TEST_ROWS


def test_every_task_from_its_official_files_to_a_complete_zip(
    hifi, encoders, superglue, small, tmp_path
):
    """Train each of the eight tasks, and predict the test splits."""
    out = tmp_path / "out"
    for index, task in enumerate(FOLDERS):
        words = ["--task", task, "--method", "full-ft", "--backbone", encoders["bert"]]
        trained = hifi(
            "train", *words, "--data-dir", superglue, *QUICK_WORDS, "epochs=1", "max_length=36"
        )
        assert trained.code == 0, trained.err
        (path,) = (tmp_path / "results" / "runs").glob(f"*/*/{task}/*/seed1")
        answer = hifi(f"eval {path} --data-dir {superglue} --split test --submission", out)
        assert (answer.code, task) == (0 if index == len(FOLDERS) - 1 else 3, task), answer.err
    assert "lacks" not in answer.err and answer.out.split()[-1] == str(out / "superglue.zip")
    with zipfile.ZipFile(out / "superglue.zip") as archive:
        assert sorted(archive.namelist()) == sorted(OFFICIAL_TEST_ROWS)
        for name in OFFICIAL_TEST_ROWS:
            lines = [json.loads(line) for line in archive.read(name).decode().splitlines()]
            assert [line["idx"] for line in lines] == [
                *range(2 if name == "MultiRC.jsonl" else TEST_ROWS)
            ]
    (path,) = (tmp_path / "results" / "runs").glob("*/*/cb/*/seed1")
    predicted = [
        json.loads(line)["prediction"]
        for line in (path / "predictions-test.jsonl").read_text().splitlines()
    ]
    assert [
        json.loads(line)["label"] for line in (out / "CB.jsonl").read_text().splitlines()
    ] == predicted


def test_rte_runs_measure_both_diagnostics(make, superglue, tmp_path):
    workspace = Workspace(tmp_path / "results", superglue.parent)
    config = make(
        "full-ft", "epochs=12", "learning_rate=0.004", "dropout=0.0", task="superglue-rte"
    )
    result = runs.run(config, workspace)
    assert set(result.metrics) == {"accuracy", "matthews_axb", "accuracy_axg", "gender_parity_axg"}
    assert result.scores.best > 0.9
    # the model knows the rule by then: AX-b has one row against it, each of AX-g's pairs has one word, half of them the label's
    assert result.metrics["matthews_axb"] == pytest.approx(
        (2 * 1 - 1 * 0) / math.sqrt(3 * 2 * 2 * 1)
    )
    assert (result.metrics["accuracy_axg"], result.metrics["gender_parity_axg"]) == (0.5, 1.0)
    assert (
        set(result.extra_validation) == {"axb", "axg"}
        and result.extra_validation["axb"].best == result.metrics["matthews_axb"]
    )
    directory = RunDirectory.of(config, workspace.results_dir)
    evaluated = evaluate(directory.path, workspace)
    assert evaluated.differing == []


def test_glues_and_superglues_rte_share_a_folder_name(superglue, data, tmp_path):
    both = tmp_path / "both"
    for name, source in (("glue", data), ("superglue", superglue)):
        (both / name).mkdir(parents=True)
        (both / name / "RTE").symlink_to(source / "RTE")
    (both / "superglue" / "AX-b").symlink_to(superglue / "AX-b")
    rows = {
        name: task_sources.load(task_spec.load(name), data_dir=both)
        for name in ("rte", "superglue-rte")
    }
    assert rows["rte"].origin["train"] == str(both / "glue" / "RTE" / "train.tsv")
    assert rows["superglue-rte"].origin["train"] == str(both / "superglue" / "RTE" / "train.jsonl")
    assert {len(row.sequences[0]) for row in rows["superglue-rte"].splits["validation_axb"]} == {2}
    with pytest.raises(MissingError, match=r"no folder RTE with train.jsonl, val.jsonl"):
        task_sources.load(task_spec.load("superglue-rte"), data_dir=both / "glue")


def test_gender_parity_is_about_pairs_of_rows():
    rows = [Row(str(at), ((f"p{at}", f"h{at // 2}"),), 0) for at in range(6)]
    assert metrics.gender_parity(rows, np.array([0.0, 0, 1, 0, 1, 1])) == pytest.approx(2 / 3)
    assert (
        metrics.gender_parity(rows[:5], np.array([0.0, 1, 1, 1, 0])) == 0.5
    )  # a limit may cut off half of a pair
    assert metrics.gender_parity(rows[:1], np.zeros(1)) == 0


def test_records_scores_are_the_best_over_the_answers():
    """By hand, with the official normalization: lower case, no punctuation, no articles."""
    queries = {  # query: candidates, chosen, answers, F1, EM
        "0": (["The U.S.", "Rome"], "The U.S.", ["US", "America"], 1.0, 1),
        "1": (
            ["Barack Obama", "Rome"],
            "Barack Obama",
            ["Obama", "President Barack Obama"],
            0.8,
            0,
        ),
        "2": (["Rome", "Paris"], "Paris", ["Rome"], 0.0, 0),
    }
    rows = [
        Row(
            f"{query}-{entity}",
            (("p", "q"),),
            int(entity in answers),
            (),
            tuple((text, -1) for text in answers),
            query,
            entity,
        )
        for query, (candidates, _, answers, _, _) in queries.items()
        for entity in candidates
    ]
    predictions = np.array([float(row.candidate == queries[row.group][1]) for row in rows])
    computed = scores.compute(task_spec.load("record"), rows, predictions)
    assert computed == pytest.approx({"entity_f1": (1 + 0.8 + 0) / 3, "entity_em": 1 / 3})


@pytest.mark.parametrize("one_logit", [False, True])
def test_the_most_probable_candidate_of_each_query_is_chosen(one_logit):
    examples = [
        EncodedExample(Row(f"{query}-{at}", (("p", "q"),), None, group=query, candidate="x"), ())
        for query, at in ("a0", "b0", "a1", "a2", "b1")
    ]
    margins = np.array([-3.0, 1.0, -1.0, -2.0, 1.0])  # a: the second candidate; b: a tie, the first
    logits = margins[:, None] if one_logit else np.stack([5 - margins, np.full(5, 5.0)], 1)
    assert task_spec.load("record").rules.predictions(examples, logits).tolist() == [
        0,
        1,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize("task", ["multirc", "record"])
def test_a_holdout_never_splits_a_question(make, superglue, task):
    spec, config = (
        task_spec.load(task),
        make("full-ft", "selection=holdout", "holdout=0.25", task=task),
    )
    rows = task_sources.load(spec, data_dir=superglue).splits["train"]
    with pytest.raises(UsageError, match="takes at least two rows to train on, or groups of rows"):
        split_train(config, spec, [row for row in rows if row.group == rows[0].group])
    all_but_one = config.model_copy(update={"holdout": 0.99})
    assert len({row.group for row in split_train(all_but_one, spec, rows)[0]}) == 1
    train, holdout = split_train(config, spec, rows)
    groups = [{row.group for row in part} for part in (train, holdout)]
    assert (
        not groups[0] & groups[1]
        and len(groups[1]) == 6
        and len(train) + len(holdout) == len(rows) == 48
    )


@pytest.mark.parametrize("task", ["multirc", "record"])
def test_a_cut_never_splits_a_question(superglue, task):
    spec = task_spec.load(task).model_copy(update={"cut": task_spec.Cut(validation=0.25)})
    data = task_sources.load(spec, data_dir=superglue)
    train, validation = (
        [row.group for row in data.rows(split)] for split in ("train", "validation")
    )
    assert len(train) + len(validation) == 48
    assert set(train).isdisjoint(validation) and len(set(validation)) == 6


@pytest.mark.parametrize(
    "words", [["selection=holdout", "holdout=0.3"], ["limit=25"], ["limit=25", "selection=holdout"]]
)
def test_a_plan_counts_the_rows_that_the_run_trains_on(make, workspace, superglue, words):
    cache = Workspace(workspace.results_dir, superglue)
    config = make("full-ft", *words, task="multirc")
    examples = {example.row.id for example in splits_of(config, cache).train}
    steps = dict(Planner(cache).plan(config).lines)["steps"]
    assert f"of {len(examples)} examples" in steps and len(examples) < 48
