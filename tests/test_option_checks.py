"""Options that a command would silently ignore."""

import pytest
import typer

from hifi_cli.cli.app import app
from hifi_cli.cli.option_checks import LISTS


def test_every_option_that_takes_a_list_is_known():
    commands = typer.main.get_command(app).commands.values()
    options = [parameter for command in commands for parameter in command.params if parameter.param_type_name == "option"]
    with_commas = {option.name for option in options if "with commas" in option.help or str(option.metavar).endswith(",...")}
    assert with_commas <= LISTS <= {option.name for option in options}


@pytest.mark.parametrize(
    "words", [("ls", "runs", "--status", "done", "--status", "failed"), ("table", "--seeds", "1", "--seed", "2")]
)
def test_a_list_that_is_given_twice_is_refused(hifi, words):
    answer = hifi(*words)
    assert answer.code == 2 and "is given twice: give it once, with commas" in answer.err
