"""What a printed table or a card is opened with must not run what a name or a path holds: LaTeX, spreadsheets, browsers, shells."""

import re
import subprocess

import pytest
from markdown_it import MarkdownIt
from project_files import copy_yaml
from tiny_inputs import QUICK_WORDS

from hifi_cli.reports.render import render
from hifi_cli.reports.table import Cell, Row, Table, std_column, value_column
from hifi_cli.text import command_line

HTML = "<img src=x onerror=alert(1)>"
BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028"]


def table(text="", command=""):
    """A table with a text wherever a text may stand."""
    label = f"label {text}"
    number = {"number": Cell(51.25, std=1.5), "setting": Cell(f"value {text}")}
    rows = [Row("a", label, "runs", number), Row("a", label, "published", {"number": Cell(50.0)})]
    return Table(
        f"title {text}",
        rows,
        {"number": f"column {text}", "setting": "setting"},
        [value_column("number"), std_column("number"), value_column("setting")],
        names_column="",
        index_title=f"corner {text}",
        footnotes={(0, "number"): [f"footnote {text}"]},
        notes=[f"note {text}"],
        missing=[command],
    )


@pytest.mark.parametrize("newline", BREAKS)
def test_no_line_break_gets_out_of_a_comment_or_into_a_caption(newline):
    command = f"hifi train --results-dir 'a{newline}\\input{{/etc/passwd}}{newline}{newline}b'"
    lines = re.split(
        "[\n\r\x0b\x0c\x85\u2028]", render("tex", [table(f"x{newline}{newline}y", command)])
    )
    at = lines.index(r"\begin{table}")
    assert all(line.startswith("%") for line in lines[:at])
    assert not any("/etc/passwd" in line for line in lines[at:])
    (caption,) = [line for line in lines if line.startswith(r"\caption{")]
    assert caption.endswith("y}")


def test_markdown_holds_no_html_of_a_name():
    text = render("md", [table(f"{HTML} | & \n\n<script>", f"hifi train --results-dir '`{HTML}`'")])
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<img" not in html
    assert "<script" not in html
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        for row in re.findall("<tr>(.*?)</tr>", html, re.DOTALL)
    ]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert "column &lt;img src=x onerror=alert(1)&gt; | &amp;" in rows[0][1]


@pytest.mark.parametrize(
    "word", ["a b", "it's", "é ü", "", "$HOME `ls`", "a\nb", "\x1b[2J", "é\u2028ü", "\udcff\n"]
)
def test_a_command_is_one_line_from_which_bash_reads_the_same_printable_words(word):
    line = command_line(["printf", "%s", word])
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert said.decode() == "".join(letter if letter.isprintable() else "\ufffd" for letter in word)


def test_no_control_character_of_a_name_reaches_a_terminal_a_table_or_a_card(
    hifi, encoders, tmp_path
):
    """A label of the data, the label of a task, a column, a run's name and a result of somebody else, each with an escape."""
    red, shown = "\x1b[31m\x9bred", "\ufffd[31m\ufffdred"
    rows = [f"the dog {at},{red if at % 2 else 'blue'}\n" for at in range(40)]
    (tmp_path / "colors.csv").write_text("".join(["text,label\n", *rows]))
    words = ["--backbone", encoders["bert"], *QUICK_WORDS]
    copy_yaml(hifi, "colors.csv", "colors.yaml", "inputs=text")
    answers = [hifi("ls colors.csv inputs=text")]
    content = (tmp_path / "colors.yaml").read_text()
    assert shown in content
    (tmp_path / "mine.yaml").write_text(re.sub("(?m)^label: .*$", r'label: "\\e[31mMine"', content))
    answers.append(
        hifi(
            "train --task mine.yaml --method bitfit",
            *words,
            r'variant="\e[31mx"',
            "kernels=torch",
        )
    )
    answers.append(hifi("train --task mine.yaml --method bitfit", *words))
    assert [answer.code for answer in answers] == [0] * 3
    (run,) = (path for path in tmp_path.rglob("bitfit/seed1") if path.is_dir())
    assert any(
        "Mine" in answer.out
        for answer in [
            hifi("table --format", form) for form in ("text", "md", "tex", "csv", "json")
        ]
    )
    answers += [hifi("table --format", form) for form in ("text", "md", "tex", "csv", "json")]
    answers += [
        hifi("ls runs"),
        hifi("predict", run, "colors.csv"),
        hifi("export", run, "--to", "out"),
    ]
    answers += [
        hifi("train", "--task", f"{red}.csv", "--method", "bitfit", *words),
        hifi("table", red),
    ]
    assert shown in answers[-2].err and shown in answers[-1].err
    card = (tmp_path / "out" / "README.md").read_text()
    for text in [card, *(text for answer in answers for text in (answer.out, answer.err))]:
        assert "\x1b" not in text and "\x9b" not in text, text
