"""The papers' tables: their numbers fed in as runs come out as printed, and what does not follow is marked."""

import numpy as np
import pytest
from json_output import table_of
from synthetic_runs import write_paper_runs, write_run

from hifi_cli.config import registry
from hifi_cli.records.study import Study
from hifi_cli.reports import paper_tables, table_spec, tables
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.table_spec import load_published

WITH_SCORES = [
    "hifi-2",
    "hifi-2-fewshot",
    "hifi-3",
    "hifi-6",
    "ehft-1",
    "ehft-2",
    "ehft-3",
    "ehft-4",
    "superglue",
]
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
UNCHECKED = {
    ("hifi/full-shot", "lora"),
    ("ehft/bert-large", "full-ft"),
    ("ehft/bert-large", "eh-ft-bitfit"),
}
ROUNDING = {("ehft/reserve", "eh-ft-bitfit-reserve")}
MISPRINTS = {
    ("hifi/full-shot", "compacter"),
    ("hifi/ablation", "hifi-random"),
    ("ehft/roberta-large", "bitfit"),
    ("ehft/roberta-large", "child-tuning-d"),
    ("ehft/reserve", "eh-ft-lora-reserve"),
}


@pytest.mark.parametrize("name", WITH_SCORES)
def test_a_papers_numbers_come_out_as_it_prints_them_with_no_difference(name, tmp_path):
    spec = table_spec.load(name)
    _, paper = load_published(spec.published)
    write_paper_runs(tmp_path, spec, paper)
    table = tables.build(spec, Study(tmp_path), ReportOptions(show_published=True))
    lines = {row.name: index for index, row in enumerate(table.rows) if row.source == "runs"}
    for row in [row for row in spec.rows if row.method]:
        line, printed = lines[row.method], paper.rows[row.published]
        for column in spec.columns:
            mean, spread = (
                paper.mean(row.published, column.published),
                paper.deviation(row.published, column.published),
            )
            said = table.number(line, column.name)
            deviation = table.spread(line, column.name)
            assert said == ("-" if mean is None else f"{mean:.{paper.decimals}f}"), (
                row.method,
                column,
            )
            if isinstance(mean, float) and isinstance(spread, float):
                assert deviation == f"{spread:.{paper.decimals}f}"
                assert table.spread(line + 1, column.name) == deviation
        if printed.average is not None:
            follows = (spec.published, row.published) not in UNCHECKED | ROUNDING | MISPRINTS
            assert (
                table.number(line, "average") == f"{printed.average:.{paper.decimals}f}"
            ) == follows, row.method
        for key in table.headings:
            is_odd = key == "average" and (spec.published, row.method) in ROUNDING | MISPRINTS
            assert is_odd or table.number(line + 2, key).strip("+0.") in ("", "-"), (
                row.method,
                key,
            )
    for column, marks in MARKS.get(name, {}).items():
        key = (
            "average"
            if column == "Avg."
            else next(each.name for each in spec.columns if each.published == column)
        )
        for method, rank in marks.items():
            assert table.ranks.get((lines[method], key)) == rank, (column, method)
    (note,) = [note for note in table.notes if note.startswith("published:")]
    assert ("GLUE test server" in note and note.endswith("; ours: validation")) is (
        name in ("hifi-2", "superglue")
    )


def test_every_printed_average_is_recomputed():
    tables = [
        f"{name}/{key}"
        for name in registry.names("published")
        for key in registry.load("published", name)["tables"]
    ]
    of_rows = [
        (name, load_published(name)[1], row)
        for name in tables
        for row in load_published(name)[1].rows
    ]
    odd = set()
    for name, table, row in of_rows:
        cells, printed = table.rows[row].means, table.rows[row].average
        if (
            printed is not None
            and cells
            and None not in cells
            and abs(np.mean(cells) - printed) > 10**-table.decimals - 1e-9
        ):
            odd.add((name, row))
            assert (
                f"is {np.mean(cells):.{table.decimals + 1}f}"
                in table.rows[row].cell_notes["average"]
            )
    assert (
        odd
        == MISPRINTS
        == {(name, row) for name, table, row in of_rows if "average" in table.rows[row].cell_notes}
    )


def test_the_footnotes_reach_the_page(hifi):
    text = hifi("table ehft-1 --published --format md").out
    assert "printed 87.24, but the mean of its 9 cells is 86.082" in text
    assert "57.89<sup>" in text
    assert "Full-FT (Liu et al. 2019)" not in hifi("table ehft-1 --format md").out
    assert (
        "86.60" in text
    )  # a row that only the paper has stands there with --published, by its own name
    assert "published: Full-FT (Liu et al. 2019)" in text
    text = hifi("table hifi-2 --published --format md").out
    assert "published<sup>" in text and "illegible" in text


def test_runs_of_ours_that_are_not_compared_leave_the_papers_best_row_marked(hifi):
    for method in ("full-ft", "bitfit", "hifi-layerwise"):
        precision = "bf16" if method == "hifi-layerwise" else "fp32"
        write_run("results", method, "mrpc", 1, 0.8, precision=precision)
    words = ["--tasks", "mrpc", "--methods", "full-ft,bitfit,hifi-layerwise", "--format", "md"]
    assert "**89.7**" in hifi("table hifi-2 --published", *words).out


def test_other_columns_take_the_mean_of_the_cells_shown(hifi):
    words = ["--tasks", "rte,mrpc", "--methods", "hifi-layerwise", "--format", "json"]
    table = table_of(hifi("table hifi-2 --published", *words))
    paper = next(row for row in table["rows"] if row["source"] == "published")
    assert paper["cells"]["average"]["value"] == pytest.approx((89.7 + 71.5) / 2)
    assert table["notes"][0].endswith("; Avg.: of the columns shown")


@pytest.mark.parametrize("name", registry.names("tables"))
def test_every_table_loads_and_fits_its_paper(name):
    spec = table_spec.load(name)
    if spec.published:
        _, paper = load_published(spec.published)
        assert [column.published for column in spec.columns] == (
            [] if spec.kind == "costs" else list(paper.columns)
        )
        assert [row.published for row in spec.rows] == (
            [] if spec.kind == "statistics" else list(paper.rows)
        )
        if spec.kind == "scores":
            assert (spec.decimals, spec.backbone) == (paper.decimals, paper.backbone)
            metrics = {column.published: column.metric for column in spec.columns if column.metric}
            assert all(paper.columns[column] == metric for column, metric in metrics.items())


def test_a_number_stands_only_beside_the_papers_of_the_same_metric(hifi):
    write_run("results", "full-ft", "mrpc", 1, 0.9, primary_metric="accuracy", metrics={"f1": 0.8})
    words = ["--published", "--tasks", "mrpc", "--methods", "full-ft", "--format", "json"]
    ours, paper, _ = table_of(hifi("table hifi-2", *words))["rows"]
    assert (ours["mrpc"], paper["mrpc"]) == (80.0, 88.9)  # both F1
    rows = table_of(hifi("table hifi-2 --metrics accuracy", *words))["rows"]
    assert [row["mrpc.accuracy"] for row in rows] == [90.0, None]


def test_settings_are_those_the_paper_prints_or_say_so(tmp_path, hifi):
    table = paper_tables.settings(table_spec.load("hifi-5"), show_published=False)
    _, paper = load_published("hifi/hyper-parameters")
    same = 0
    for row in [row for row in table.rows if row.source == "runs"]:
        printed = dict(zip(paper.columns, paper.rows[row.name].texts, strict=True))
        same += sum(row.cell(key).value == printed[key] for key in table.headings)
    assert same == 10 * 9  # every cell of the paper's table
    own_table = tmp_path / "mine.yaml"
    own_table.write_text(
        (registry.find("tables", "hifi-5"))
        .read_text()
        .replace("protocol: hifi\n", "protocol: laptop\n")
    )
    text = hifi(f"table {own_table} --methods full-ft --tasks rte --published --format md").out
    assert "| 32/3e-5 |" in text and "| 32/2e-5 |" in text
