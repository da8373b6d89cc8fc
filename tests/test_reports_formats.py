"""Every format of `hifi table`: as it was, whole in every width, and compilable."""

import contextlib
import csv
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic_runs import method_search, write_run, write_search

from hifi_cli.reports import table_types
from hifi_cli.reports.formats import text
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.table import rounded
from hifi_cli.reports.table_request import TableRequest

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("kind", ["text", "md", "tex", "csv", "json"])
def test_formats_are_as_they_were(kind, users_table, hifi):
    answer = hifi("table", users_table, "--published", "--format", kind)
    assert answer.code == 0, answer.err
    golden = GOLDEN / f"table.{kind}"
    if os.environ.get("HIFI_WRITE_GOLDEN"):
        golden.write_text(answer.out)
    assert answer.out == golden.read_text()


@pytest.mark.parametrize(
    ("value", "decimals", "said"),
    [
        (55.95, 1, "56.0"),
        (55.85, 1, "55.9"),
        (55.949999999999996, 1, "56.0"),
        (-0.04, 1, "0.0"),
        (87.125, 2, "87.13"),
        (100.0, 2, "100.00"),
    ],
)
def test_halves_go_up_and_nothing_is_minus_zero(value, decimals, said):
    assert str(rounded(value, decimals)) == said


def test_no_number_is_cut_off_on_a_narrow_terminal(users_table):
    spec = table_types.load(users_table)
    table = table_types.build(spec, TableRequest(Results(Path("results")), published=True))
    wide = text.render([table])
    for width in (40, 60, 80, 100):
        narrow = text.render([table], width=width)
        drawn = [line for line in narrow.splitlines() if line[:1] in "┏┃┡│└"]
        assert max(map(len, drawn)) <= width and "…" not in narrow
        assert narrow.splitlines()[0] == table.title
        for printed in ("87.50 ±0.71", "34.00 ±48.08 [b]", "-0.22", "82.84 [a]"):
            assert printed in wide and printed in narrow
    assert "\x1b[1m88.50\x1b[0m ±0.71" in _on_a_terminal([table])


@pytest.mark.parametrize("name", ["ehft-1", "hifi-2", "hifi-6"])
def test_every_column_of_a_papers_table_is_there_in_every_width(name):
    table = table_types.build(table_types.load(name), TableRequest(Results(Path("results")), published=True))
    for width in (70, 80, 100, 140, 300):
        drawn = [line for line in text.render([table], width=width).splitlines() if line[:1] in "┏┃┡│└"]
        assert max(map(len, drawn)) <= width
        assert all(line[-1] in "┓┃┩│┘" for line in drawn)  # nothing is cropped at the right
        headings = " ".join(line for line in drawn if line.startswith("┃"))
        assert all(word in headings for heading in table.headings for word in heading.label.split())


def _on_a_terminal(tables):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    with contextlib.redirect_stdout(Terminal()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        return text.render(tables, width=120)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX here")
def test_latex_compiles_as_it_is(users_table, hifi):
    assert (
        hifi(
            "table", users_table, "--published", "--compare-scores", "--format", "tex", "--standalone", "--out", "table.tex"
        ).code
        == 0
    )
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "table.tex"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert Path("table.pdf").stat().st_size > 1000


def test_latex_is_a_balanced_document(users_table, hifi):
    fragment = hifi("table", users_table, "--published", "--format", "tex").out
    assert r"\documentclass" not in fragment and fragment.count(r"\begin{table}") == 1
    latex = hifi("table", users_table, "--published", "--format", "tex", "--standalone").out
    assert fragment in latex
    assert hifi("table", users_table, "--standalone").code == 2
    opened, closed = re.findall(r"\\begin\{(\w+)\}", latex), re.findall(r"\\end\{(\w+)\}", latex)
    assert sorted(opened) == sorted(closed) == ["document", "table", "tabular"]
    assert r"Bit\_Fit \& more" in latex and r"\usepackage{booktabs}" in latex
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {6}


def test_rows_of_several_tables_in_a_csv_name_their_table(hifi):
    write_run("results", "full-ft", "rte", 1, 0.8, last=0.7, top=0.9)
    assert hifi("table", "--compare-scores", "--out", "t.csv").code == 0
    blocks = [list(csv.DictReader(block.splitlines())) for block in Path("t.csv").read_text().split("\n\n")]
    named = {row["table"].rpartition(", ")[2].rstrip(")"): row["RTE (Acc.) mean"] for rows in blocks for row in rows}
    expected = {"best epoch": 80.0, "last epoch": 70.0, "maximum over epochs": 90.0}
    assert {name: float(value) for name, value in named.items()} == expected
    assert hifi("table", "--format", "csv").out.startswith("method,source,")


def test_a_csv_says_no_number_of_seeds_where_none_is_known(hifi):
    search = method_search("rte", "full-ft", [0.6, None])
    tried = [setting.model_copy(update={"deviation": setting.score and 0.1, "seeds": 2}) for setting in search.tried]
    write_search("results", search.model_copy(update={"tried": tried}))
    rows = list(csv.DictReader(hifi("table", "search", "tuning", "--format", "csv").out.splitlines()))
    assert [(row["RTE seeds"], row["Seeds"]) for row in rows] == [("", "2"), ("", "2")]
