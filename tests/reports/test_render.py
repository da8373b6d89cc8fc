"""Every format of `hifi table`: as it was, whole in every width, and compilable."""

import contextlib
import csv
import io
import re
from pathlib import Path

import pytest
from json_output import tables_of
from synthetic_runs import write_run

from hifi_cli.records.study import Study
from hifi_cli.reports import table_spec, tables
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.render import as_text
from hifi_cli.reports.table import Cell, Row, Table, value_column

GOLDEN = Path(__file__).parents[1] / "golden/files"


@pytest.mark.parametrize("kind", ["text", "md", "tex", "csv", "json"])
def test_formats_are_as_they_were(kind, users_table, hifi):
    answer = hifi(f"table {users_table} --published --format", kind)
    assert answer.code == 0, answer.err
    assert answer.out == (GOLDEN / f"table.{kind}").read_text()


@pytest.mark.parametrize(
    ("value", "decimals", "said"),
    [
        (55.95, 1, "56.0"),
        (55.85, 1, "55.9"),
        (55.949999999999996, 1, "56.0"),
        (-0.04, 1, "0.0"),
        (87.125, 2, "87.13"),
        (100.0, 2, "100.00"),
        (-87.125, 2, "-87.13"),
        (-0.0, 1, "0.0"),
    ],
)
def test_halves_go_away_from_zero_and_nothing_is_minus_zero(value, decimals, said):
    rows = [Row("a", "a", "runs", {"x": Cell(value)})]
    table = Table("", rows, {"x": "x"}, [value_column("x")], formats={"x": f"z.{decimals}f"})
    assert table.number(0, "x") == said


def built(name):
    return tables.build(
        table_spec.load(name),
        Study(Path("results")),
        ReportOptions(show_published=True),
        grid="hifi grid x",
    )


def drawn_lines(text):
    lines = text.splitlines()[1:]
    return lines[
        : next(
            (at for at, line in enumerate(lines) if re.match("[a-z]+: |published: ", line)), None
        )
    ]


def test_no_number_is_cut_off_on_a_narrow_terminal(users_table):
    table = built(users_table)
    for width in (40, 60, 80, 100):
        narrow = " ".join(as_text(table, width=width).split())
        assert "…" not in narrow and narrow.startswith(" ".join(table.title.split()))
        for printed in ("87.50", "±0.71", "34.00", "±48.08[a]", "-0.22", "82.84"):
            assert f" {printed} " in narrow, (width, printed)
    drawn = drawn_lines(as_text(table, width=80))  # headings take two lines, cells one
    assert max(map(len, drawn)) <= 80 and len(drawn) == 3 + len(table.labels), drawn
    assert "\x1b[1m88.50\x1b[0m" in _on_a_terminal(table)


@pytest.mark.parametrize("name", ["ehft-1", "hifi-2", "hifi-6"])
def test_every_column_of_a_papers_table_fits_a_hundred_columns(name):
    table = built(name)
    drawn = drawn_lines(as_text(table, width=100))
    assert max(map(len, drawn)) <= 100
    assert all(
        word.strip("()") in " ".join(drawn[:4])
        for heading in table.headings.values()
        for word in heading.split()
    )


def _on_a_terminal(table):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    with contextlib.redirect_stdout(Terminal()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        return as_text(table, width=120)


def test_latex_is_a_balanced_document(users_table, hifi):
    fragment = hifi(f"table {users_table} --published --format tex").out
    assert r"\documentclass" not in fragment and fragment.count(r"\begin{table}") == 1
    opened, closed = (
        re.findall(r"\\begin\{(\w+)\}", fragment),
        re.findall(r"\\end\{(\w+)\}", fragment),
    )
    assert sorted(opened) == sorted(closed) == ["table", "tabular"]
    assert r"Bit\_Fit \& more" in fragment
    body = [line for line in fragment.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {6}


def test_rows_of_several_tables_in_a_csv_name_their_table(hifi):
    for protocol, score in (("hifi", 0.8), ("laptop", 0.7)):
        write_run("results", "full-ft", "rte", 1, score, protocol=protocol)
    assert hifi("table --out t.csv").code == 0
    rows = list(csv.DictReader(Path("t.csv").read_text().splitlines()))
    named = {re.search(r"protocol (\w+)", row["table"])[1]: float(row["rte"]) for row in rows}
    assert named == pytest.approx({"hifi": 80.0, "laptop": 70.0})
    assert hifi("table --protocol hifi --format csv").out.startswith(
        "method,label,source,rte,rte_std,rte_seeds,"
    )


def test_a_papers_table_has_no_hints_for_the_shell(hifi):
    """In LaTeX alone: a reader of a terminal needs them."""
    pilot = Path(__file__).parents[2] / "results/laptop-pilot"
    command = ["table", "laptop", "--results-dir", pilot]
    assert "--score last has the last epoch" in hifi(*command).out
    latex = hifi(*command, "--format", "tex").out
    assert "--" not in latex and "hifi table" not in latex
    for fact in ("59 runs of searches and other variants left out;", "scores are too high;"):
        assert fact in latex
    # A label in parentheses is no hint.
    assert "HiFi (layer-wise) on CoLA" in latex


def test_latex_has_the_caption_and_the_label_that_are_asked_for(users_table, hifi):
    command = ["table", users_table, "--format", "tex"]
    answer = hifi(*command, "--label", "tab:mine_1", "--caption", "50 % of C&C_x, $k$ = \\3")
    escaped = r"\caption{50 \% of C\&C\_x, \$k\$ = \textbackslash{}3}"
    assert f"{escaped}\n\\label{{tab:mine_1}}\n" in answer.out
    assert answer.out.index("\\label") < answer.out.index("\\begin{tabular}")
    assert "\\label" not in hifi(*command).out
    hifi("table", users_table, "--out", "mine.tex", "--label", "tab:file")
    assert "\\label{tab:file}" in Path("mine.tex").read_text()


def test_further_tables_of_a_command_have_labels_of_their_own(hifi):
    for method, score in (("full-ft", 0.7), ("bitfit", 0.6)):
        for seed in (1, 2):
            write_run("results", method, "rte", seed, score)
    command = ["compare", "full-ft", "bitfit", "--format", "tex"]
    plain = re.findall(r"\\caption\{(.*)\}", hifi(*command).out)
    latex = hifi(*command, "--label", "tab:ft", "--caption", "Mine").out
    assert re.findall(r"\\label\{(.*)\}", latex) == ["tab:ft", "tab:ft-2"]
    assert re.findall(r"\\caption\{(.*)\}", latex) == ["Mine", plain[1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "tex", "--label", "tab rte"], "--label 'tab rte': letters, digits and"),
        (["--format", "tex", "--label", "tab:50%"], "--label 'tab:50%': letters, digits and"),
        (["--format", "md", "--caption", "Mine"], "are for --format tex: leave them out"),
        (["--label", "tab:rte"], "are for --format tex: leave them out"),
    ],
)
def test_a_caption_or_label_that_nothing_would_show_is_refused(users_table, hifi, words, message):
    answer = hifi("table", users_table, *words)
    assert answer.code == 2 and message in answer.err


def test_a_note_that_all_tables_of_a_command_have_stands_once(hifi):
    for protocol, seeds in (("hifi", (1, 2)), ("laptop", (1, 2, 3))):
        for seed in seeds:
            write_run("results", "full-ft", "rte", seed, 0.5 + seed / 10, protocol=protocol)
    own = [f"mean ± standard deviation over seeds {seeds}" for seeds in ("1, 2", "1, 2, 3")]
    notes = [table["notes"] for table in tables_of(hifi("table --format json"))]
    shared = [text for text in notes[0] if all(text in others for others in notes)]
    assert len(notes) == 2 and shared and own == [texts[0] for texts in notes]
    for form in ("text", "md"):
        printed = " ".join(hifi("table --format", form).out.split())
        for text in shared:
            assert printed.count(text) == 1 and f"all tables: {text}" in printed
        assert all(text in printed for text in own)
        assert not any(f"all tables: {text}" in printed for text in own)
    latex = hifi("table --format tex").out
    assert latex.count("chosen on the same rows") == 2 and "all tables" not in latex


def test_versus_refuses_a_caption_that_it_would_not_show_before_it_trains(hifi):
    answer = hifi("versus lora --study nowhere --format md --caption Mine")
    assert answer.code == 2 and "--caption and --label are for LaTeX" in answer.err
