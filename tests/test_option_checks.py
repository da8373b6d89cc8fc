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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--limit", "32", "limit=16"), "'limit=16': --limit 32 sets 'limit' too"),
        (("train", "--shots", "32", " shots = 16"), "' shots = 16': --shots 32 sets 'shots' too"),
        (("select", "--k", "2", "heads={k: 3}"), "'heads={k: 3}': --k 2 sets 'heads.k' too"),
        (("score", "--warm-steps", "2", "scoring.warm_steps=3"), "--warm-steps 2 sets 'scoring.warm_steps' too"),
    ],
)
def test_an_option_and_its_key_are_refused_together(hifi, words, message):
    method = ["--method", "hifi-layerwise"] if words[0] == "train" else []
    answer = hifi(*words, "--task", "rte", *method, "--backbone", "minilm", "--dry-run")
    assert answer.code == 2 and message in answer.err and not answer.out


def test_an_option_and_its_key_are_refused_where_a_run_is_repeated(hifi, finish_run):
    answer = hifi("train", "--from", finish_run(), "--limit", "32", "limit=16", "--dry-run")
    assert answer.code == 2 and "'limit=16': --limit 32 sets 'limit' too" in answer.err
