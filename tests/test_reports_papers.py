"""The papers' tables: their numbers fed in as runs come out as printed, and what does not follow is marked."""

import json

import pytest
from synthetic_runs import write_paper_runs

from hifi_cli.config import registry
from hifi_cli.reports import published, table_types
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.table import deviation, number
from hifi_cli.reports.table_request import TableRequest

WITH_SCORES = ["hifi-2", "hifi-2-fewshot", "hifi-3", "hifi-6", "ehft-1", "ehft-2", "ehft-3", "ehft-4", "superglue"]
# bold (1) and underlined (2) as far as our copy of the paper shows them
MARKS = {
    "hifi-2": {
        "qnli": {"hifi-layerwise": 1, "full-ft": 2},
        "sst2": {"hifi-layerwise": 1, "bitfit": 2},
        "mnli-m": {"diff-pruning": 2},
        "mnli-mm": {"diff-pruning": 1},
        "cola": {"diff-pruning": 1, "hifi-layerwise": 2},
        "mrpc": {"diff-pruning": 1, "hifi-layerwise": 1, "adapter": 2},
        "stsb": {"hifi-layerwise": 1, "adapter": 2},
        "rte": {"bitfit": 1, "adapter": 2, "hifi-layerwise": 2},
        "qqp": {"hifi-layerwise": 1, "adapter": 2},
        "Avg.": {"hifi-layerwise": 1, "full-ft": 2, "diff-pruning": 2},
    },
    "hifi-2-fewshot": {
        "sst2": {"lora": 1},
        "mnli-m": {"hifi-layerwise": 1, "hifi-midtop": 2},
        "mnli-mm": {"hifi-layerwise": 1},
        "cola": {"full-ft": 1, "lora": 2},
        "mrpc": {"hifi-layerwise": 1, "lora": 2},
        "rte": {"hifi-midtop": 2},
        "Avg.": {"hifi-layerwise": 1},
    },
}
# printed averages that their cells do not give, by hand; every other average follows from its cells
VERDICTS = {
    ("hifi/full-shot", "lora"): "unchecked",
    ("hifi/full-shot", "compacter"): "mismatch",
    ("hifi/ablation", "hifi-random"): "mismatch",
    ("ehft/roberta-large", "bitfit"): "mismatch",
    ("ehft/roberta-large", "child-tuning-d"): "mismatch",
    ("ehft/bert-large", "full-ft"): "unchecked",
    ("ehft/bert-large", "eh-ft-bitfit"): "unchecked",
    ("ehft/reserve", "eh-ft-bitfit-reserve"): "rounding",
    ("ehft/reserve", "eh-ft-lora-reserve"): "mismatch",
}


def built(name, results_dir, **options):
    spec = table_types.load(name)
    return spec, table_types.build(spec, TableRequest(Results(results_dir), **options))


@pytest.mark.parametrize("name", WITH_SCORES)
def test_a_papers_numbers_come_out_as_it_prints_them(name, tmp_path):
    spec = table_types.load(name)
    _, paper = published.load(spec.published)
    write_paper_runs(tmp_path, spec, paper)
    _, table = built(name, tmp_path)
    lines = {line.method: line for line in table.rows}
    for row in [row for row in spec.rows if row.method]:
        line, printed = lines[row.method], paper.rows[row.published_name]
        for index, column in enumerate(spec.columns):
            mean, spread = (
                paper.mean(row.published_name, column.published_name),
                paper.deviation(row.published_name, column.published_name),
            )
            said = number(table.headings[index], line.cells[index])
            assert said == ("-" if mean == "illegible" else f"{mean:.{paper.decimals}f}"), (row.method, column)
            if isinstance(mean, float) and isinstance(spread, float):
                assert deviation(table.headings[index], line.cells[index]) == f"{spread:.{paper.decimals}f}"
        if printed.average is not None:
            at = len(spec.columns)
            follows = (spec.published, row.published_name) not in VERDICTS
            assert (number(table.headings[at], line.cells[at]) == f"{printed.average:.{paper.decimals}f}") == follows, (
                row.method
            )
    for name_of_column, marks in MARKS.get(name, {}).items():
        names = [column.published_name for column in spec.columns] + ["Avg."]
        index = names.index(name_of_column)
        for method, place in marks.items():
            assert lines[method].cells[index].place == place, (name_of_column, method)


@pytest.mark.parametrize("name", WITH_SCORES)
def test_the_papers_numbers_stand_beside_ours_with_no_difference(name, tmp_path):
    spec = table_types.load(name)
    _, paper = published.load(spec.published)
    write_paper_runs(tmp_path, spec, paper)
    _, table = built(name, tmp_path, published=True)
    differences = [line for line in table.rows if line.source == "difference"]
    assert len(differences) == len([row for row in spec.rows if row.method])
    for line in differences:
        for heading, cell in zip(table.headings, line.cells, strict=True):
            if heading.label == "Avg." and VERDICTS.get((spec.published, line.method)) == "rounding":
                assert abs(cell.mean) == pytest.approx(10**-paper.decimals)
                continue
            assert cell.mean is None or number(heading, cell, signed=True).strip("+0.") == "", (line.method, heading.label)
            assert not [note for note in cell.notes if "no difference" in note]
    assert any("published:" in note for note in table.notes)
    is_of_a_test_server = name in ("hifi-2", "superglue")
    assert any("GLUE test server" in note and "our split is validation" in note for note in table.notes) is is_of_a_test_server
    assert ("GLUE test server scores" in table.title and "ours: validation scores" in table.title) is is_of_a_test_server
    assert "scores, published" not in built(name, tmp_path, published=False)[1].title


def test_every_printed_average_is_recomputed():
    verdicts = {}
    for name in registry.names("published"):
        for key in registry.load("published", name)["tables"]:
            _, table = published.load(f"{name}/{key}")
            for row in table.rows:
                verdict = published.check_average(table, row).verdict
                if table.rows[row].average is not None and verdict != "follows":
                    verdicts[f"{name}/{key}", row] = verdict
                    assert published.average_note(table, row)
                elif verdict == "follows":
                    assert published.average_note(table, row) is None
    assert verdicts == VERDICTS


def test_the_cell_that_was_copied_is_marked_and_no_other():
    _, table = published.load("ehft/roberta-large")
    marked = {
        (row, column): note
        for row in table.rows
        for column in table.columns
        for note in published.cell_notes(table, row, column)
    }
    assert set(marked) == {("bitfit", "cola"), ("lp-ft", "cb")}
    assert "93.50 is not" in marked["lp-ft", "cb"]
    assert "prefix-tuning" in marked["bitfit", "cola"] and "68.31" in marked["bitfit", "cola"]
    _, table = published.load("hifi/full-shot")
    assert published.cell_notes(table, "lora", "cola") == ("cell illegible in our copy of the paper",)
    assert published.cell_notes(table, "lora", "sst2") == ("standard deviation illegible in our copy of the paper",)
    assert published.cell_notes(table, "lora", "rte") == ()


def test_the_footnotes_reach_the_page(hifi):
    text = hifi("table", "ehft-1", "--published", "--format", "md").out
    assert "printed 87.24, but the mean of its 9 cells is 86.082" in text
    assert "57.89<sup>" in text
    assert "Full-FT (Liu et al. 2019)" not in hifi("table", "ehft-1", "--format", "md").out
    assert "86.60" in text  # a row that only the paper has stands there with --published, by its own name
    assert "published: Full-FT (Liu et al. 2019)" in text
    text = hifi("table", "hifi-2", "--published", "--format", "md").out
    assert "?<sup>" in text and "illegible" in text


def test_other_columns_take_the_mean_of_the_cells_shown(hifi):
    rows = json.loads(
        hifi("table", "hifi-2", "--published", "--tasks", "rte,mrpc", "--methods", "hifi-layerwise", "--format", "json").out
    )["rows"]
    paper = next(row for row in rows if row["source"] == "published")
    assert paper["cells"]["average"]["value"] == pytest.approx((89.7 + 71.5) / 2)
    assert "mean of the 2 columns shown; the paper's average has 9 columns" in paper["cells"]["average"]["notes"]


@pytest.mark.parametrize("name", registry.names("tables"))
def test_every_table_loads_and_fits_its_paper(name):
    spec = table_types.load(name)
    if spec.published:
        _, paper = published.load(spec.published)
        assert [column.published_name for column in spec.columns] == list(paper.columns)
        assert [row.published_name for row in spec.rows] == ([] if spec.kind == "statistics" else list(paper.rows))
        if spec.kind == "scores":
            assert (spec.decimals, spec.backbone) == (paper.decimals, paper.backbone)
            metrics = {column.published_name: column.metric for column in spec.columns if column.metric}
            assert all(paper.columns[column] == metric for column, metric in metrics.items())


def test_a_difference_of_other_metrics_is_refused(tmp_path, hifi):
    from synthetic_runs import write_run

    write_run("results", "full-ft", "mrpc", 1, 0.9, primary_metric="accuracy")
    line = next(
        row
        for row in json.loads(
            hifi("table", "hifi-2", "--published", "--tasks", "mrpc", "--methods", "full-ft", "--format", "json").out
        )["rows"]
        if row["source"] == "difference"
    )
    assert line["cells"]["mrpc"]["value"] is None
    assert line["cells"]["mrpc"]["notes"] == ["no difference: our metric is accuracy, the paper's is f1"]


def test_settings_are_those_the_paper_prints_or_say_so(tmp_path, hifi):
    spec, table = built("hifi-5", tmp_path)
    _, paper = published.load(spec.published)
    same = 0
    for line in [line for line in table.rows if line.source == "runs"]:
        for index, cell in enumerate(line.cells):
            if cell.text is not None:
                assert (cell.text == paper.rows[line.method].texts[index]) is (not cell.notes)
                same += not cell.notes
    assert same == 10 * 9  # every cell of the paper's table
    own_table = tmp_path / "mine.yaml"
    own_table.write_text((registry.find("tables", "hifi-5")).read_text().replace("protocol: hifi\n", "protocol: laptop\n"))
    text = hifi("table", own_table, "--methods", "full-ft", "--tasks", "rte", "--format", "md").out
    assert "| 32/1.5e-4<sup>a</sup> |" in text and "| 32/2e-5 |" in text and "differs from the paper" in text
