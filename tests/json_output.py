"""What a command prints with --format json."""

import json


def printed(answer):
    """The JSON that a command printed."""
    assert answer.code == 0, answer.err
    return json.loads(answer.out)
