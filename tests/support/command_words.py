"""Commands as a person types them: a line of words."""

import shlex


def words_of(line: object = "", *words: object) -> list[str]:
    """The words of a command.

    Args:
        line: One word or several, split as a shell splits them.
        words: Further words, each as it is: a path may hold spaces.
    """
    return [*shlex.split(str(line)), *map(str, words)]
