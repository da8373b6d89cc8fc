"""`hifi table --test-scores`: scores that the GLUE server returned stand in a table's cells, marked as test scores."""

import json
import statistics
from pathlib import Path

import pytest
from json_output import table_of
from synthetic_runs import write_run

HEADER = "method,seed,CoLA,SST-2,MRPC,STS-B,QQP,MNLI-m,MNLI-mm,QNLI,RTE,AX\n"
PAGE = (
    HEADER
    + "hifi-layerwise,1,60.0,94.0,89.3/85.4,87.1/85.8,71.2/89.2,86.7,85.9,92.7,70.1,39.6\n"
    + "hifi-layerwise,2,62.0,95.0,88.3/84.4,86.1/84.8,72.2/90.2,85.7,84.9,91.7,69.1,-\n"
    + "full-ft,1,,94.9,,,,,,,,\n"
    + "lp-ft,1,52.0,,,,,,,,,\n"
)


@pytest.fixture
def scores(hifi):
    Path("page.csv").write_text(PAGE)
    return "page.csv"


def test_cells_are_means_of_the_submissions(hifi, scores):
    """The validation scores of finished runs do not enter."""
    for seed in (1, 2, 3):
        write_run("results", "hifi-layerwise", "cola", seed, 0.1)
        write_run("results", "bitfit", "cola", seed, 0.1)
    content = table_of(hifi("table", "hifi-2", "--test-scores", scores, "--published", "--format", "json"))
    rows = {(row["method"], row["source"]): row["cells"] for row in content["rows"]}
    ours = {
        "cola": [60, 62], "sst2": [94, 95], "mrpc": [89.3, 88.3], "stsb": [85.8, 84.8], "qqp": [71.2, 72.2],
        "mnli-m": [86.7, 85.7], "mnli-mm": [85.9, 84.9], "qnli": [92.7, 91.7], "rte": [70.1, 69.1],
    }  # fmt: skip
    cells = rows["hifi-layerwise", "test server"]
    for column, values in ours.items():
        assert cells[column]["value"] == pytest.approx(statistics.fmean(values))
        assert cells[column]["std"] == pytest.approx(statistics.stdev(values))
        assert cells[column]["notes"] == ["2 of 3 seeds"]
    assert cells["average"]["value"] == pytest.approx(statistics.fmean(map(statistics.fmean, ours.values())))
    assert rows["hifi-layerwise", "difference"]["cola"]["value"] == pytest.approx(
        61.0 - rows["hifi-layerwise", "published"]["cola"]["value"]
    )
    assert rows["full-ft", "test server"]["sst2"]["value"] == 94.9 and rows["full-ft", "test server"]["cola"]["value"] is None
    assert rows["bitfit", "test server"]["cola"]["value"] is None
    assert content["missing"] == []


def test_submissions_with_other_seeds_are_left_out_with_a_note(hifi):
    Path("other.csv").write_text("method,seed,RTE\nbitfit,1,70.0\nbitfit,11,90.0\nlora,12,90.0\nlora,11,90.0\n")
    words = ["--tasks", "rte", "--methods", "bitfit,lora", "--format", "json"]
    rows = table_of(hifi("table", "hifi-2", "--test-scores", "other.csv", *words))["rows"]  # of seeds 1, 2, 3
    cells = {row["method"]: row["cells"]["rte"] for row in rows}
    note = "1 submission with other seeds left out (--seeds 1,2,3,11 includes them)"
    assert (cells["bitfit"]["value"], cells["bitfit"]["notes"]) == (70.0, ["1 of 3 seeds", note])
    assert cells["lora"]["value"] is None
    assert cells["lora"]["notes"] == ["2 submissions with other seeds left out (--seeds 1,2,3,11,12 includes them)"]


@pytest.mark.parametrize("format_", ["text", "md", "tex", "csv", "json"])
def test_every_format_marks_them_as_test_scores(hifi, scores, format_):
    text = hifi("table", "hifi-2", "--test-scores", scores, "--published", "--format", format_).out
    if format_ in ("csv", "json"):
        assert "test server" in text
    if format_ != "csv":  # which has no title and no notes
        assert "GLUE test server scores" in text and "best epoch" not in text
        assert "our scores are test scores, which the GLUE server returned (page.csv)" in text
        assert "submissions without a row in this table: lp-ft" in text
        assert "the difference also comes from" not in text


def test_a_json_of_one_submission_is_read_too(hifi):
    Path("one.json").write_text(json.dumps({"method": "bitfit", "seed": 1, "RTE": 70.5, "MRPC": "89.3/85.4", "CoLA": None}))
    words = ["--tasks", "rte,mrpc", "--methods", "bitfit", "--seeds", "1", "--format", "json"]
    answer = hifi("table", "hifi-2", "--test-scores", "one.json", *words)
    [row] = table_of(answer)["rows"]
    assert {name: cell["value"] for name, cell in row["cells"].items()} == {
        "mrpc": 89.3,
        "rte": 70.5,
        "average": pytest.approx((89.3 + 70.5) / 2),
        "trainable_percent": None,
        "trainable_backbone_percent": None,
    }


LINE = "full-ft,1," + "," * 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("method,seed,Cola\nfull-ft,1,50\n", "page.csv, line 2: unknown column 'Cola'; did you mean 'CoLA'?"),
        ("method,seed,RTE\nfulft,1,50\n", "page.csv, line 2: unknown method 'fulft'; did you mean 'full-ft'"),
        ("method,seed,RTE\nfull-ft,1,50\nfull-ft,1,51\n", "page.csv, line 3: a second submission of full-ft with seed 1"),
        ("method,seed,RTE\nfull-ft,one,50\n", "page.csv, line 2: seed 'one' is not a whole number"),
        ("method,RTE\nfull-ft,50\n", "page.csv, line 2: seed is missing"),
        ("method,seed,RTE\n,1,50\n", "page.csv, line 2: method is missing"),
        ("method,seed,RTE\nfull-ft,1,50,60\n", "page.csv, line 2: expected are method, seed and scores"),
        ("method,seed,RTE\nfull-ft,1,nan\n", "page.csv, line 2: RTE is 'nan'; a score in percent is a number from -100 to 100"),
        ("method,seed,RTE\nfull-ft,1,501\n", "a number from -100 to 100"),
        ("method,seed,MRPC\nfull-ft,1,89.3\n", "page.csv, line 2: MRPC is '89.3'; expected is f1/accuracy"),
        ("method,seed,RTE\nfull-ft,1,50/60\n", "RTE is '50/60'; expected is accuracy"),
        ("method,seed,RTE,CoLA\nfull-ft,1,0.705,0.6\n", "page.csv: the highest score is 0.705; write percentages"),
        (HEADER + LINE + "\n", "page.csv: no test scores; expected are the columns method, seed and CoLA, SST-2"),
        ("", "page.csv: no test scores"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(hifi, content, message):
    Path("page.csv").write_text(content)
    answer = hifi("table", "hifi-2", "--test-scores", "page.csv")
    assert (answer.code, answer.out) == (2, "") and message in answer.err and answer.err.count("\n") == 1, answer.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["hifi-2", "--test-scores", "none.csv"], 3, "none.csv does not exist"),
        (["hifi-2", "--test-scores", "page.txt"], 2, "the name must end in .csv or .json"),
        (["hifi-2", "--test-scores", "bad.json"], 2, "bad.json is no JSON"),
        (["hifi-2", "--test-scores", "page.csv", "--score", "last"], 2, "without --score"),
        (["hifi-5", "--test-scores", "page.csv"], 2, "requires the name of a table of scores"),
        (["--test-scores", "page.csv"], 2, "requires the name of a table of scores"),
        (["search", "--test-scores", "page.csv"], 2, "requires the name of a table of scores"),
    ],
)
def test_wrong_words_are_refused_in_one_line(hifi, scores, words, code, message):
    Path("page.txt").write_text(PAGE)
    Path("bad.json").write_text("{")
    answer = hifi("table", *words)
    assert answer.code == code and message in answer.err and answer.err.count("\n") == 1, answer.err
