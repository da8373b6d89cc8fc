"""What a command prints with --format json."""

import json

import pytest


def printed(hifi, answer, command):
    """The JSON that a command printed, after a check against its schema."""
    jsonschema = pytest.importorskip("jsonschema")
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    jsonschema.Draft202012Validator(json.loads(hifi("ls", "schema", f"output/{command}").out)).validate(content)
    return content
