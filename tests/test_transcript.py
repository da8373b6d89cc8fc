"""docs/transcript.md: what `scripts/make_transcript.py` writes, with commands that exist and errors that are still printed."""

import shlex

import pytest
from project_files import PAGES, load_script
from typer.main import get_command

from hifi_cli.cli.app import app

TRANSCRIPT = load_script("make_transcript")
TEXT = PAGES["transcript.md"]
SHOWN = dict(zip(TRANSCRIPT.commands(), TRANSCRIPT.outputs_of(TEXT), strict=True))
# What wrong input prints, of the commands that need neither a run nor an earlier command.
ERRORS = [line for line, output in SHOWN.items() if "[exit code" in output and "results" not in line]


def test_the_page_is_what_the_script_writes():
    assert TRANSCRIPT.page(list(SHOWN.values())) == TEXT


def test_the_page_names_no_path_of_the_machine():
    assert not [line for line in TEXT.splitlines() if "/tmp" in line or "/home/" in line or "/work" in line or "/root" in line]


@pytest.mark.parametrize("line", [line for line in SHOWN if line.startswith("hifi ")])
def test_every_command_of_the_page_parses(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, name, *words = shlex.split(line)
    get_command(app).commands[name].make_context(name, words)


@pytest.mark.parametrize("line", ERRORS)
def test_wrong_input_prints_what_the_page_shows(line, hifi):
    answer = hifi(*shlex.split(line)[1:])
    assert TRANSCRIPT.shortened(answer.out + answer.err) + f"[exit code {answer.code}]\n" == SHOWN[line]


def test_long_outputs_lose_their_middle():
    short, long = (TRANSCRIPT.shortened("".join(f"{number} \n" for number in range(count))) for count in (21, 30))
    assert short.split() == [str(number) for number in range(21)]
    assert long.splitlines() == [*map(str, range(12)), "[10 more lines]", *map(str, range(22, 30))]
