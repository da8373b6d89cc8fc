"""How a data file or hub dataset is read, as `key=value` words of the command line."""

import re
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, names_elsewhere, parse
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import parse_override
from hifi_cli.errors import UsageError
from hifi_cli.tasks.labels import as_number
from hifi_cli.tasks.task_spec import Name, Names


class DataOptions(ConfigModel):
    """How a data file is read, as `key=value` on the command line."""

    inputs: Names = []
    """One or two text columns, or the column of words; a CoNLL file's columns are numbers from 1."""
    label: Names = []
    """Column of the label, of the labels or of the tags; multi-label: or a column of 0 and 1 for each label."""
    separator: str | None = Field(None, min_length=1)
    """The character between the labels of a row (multi-label)."""
    id: Name | None = None
    """Column of the row's unique id."""
    kind: Literal["classification", "multi-label", "regression", "token-classification"] | None = (
        None
    )
    """Kind of prediction."""
    labels: Names = []
    """Class names, in label order; default: sorted. They name the integers of a file in their order."""
    missing: Names = []
    """Labels that stand for no label: rows that have one are left out."""
    validation: str | float | None = None
    """File (hub: split) of the validation rows, or the fraction of the rows that is cut off."""
    test: str | None = None
    """File (hub: split) of rows to predict."""
    held_out: str | None = None
    """File (hub: split) of labelled rows that are scored beside validation; nothing is chosen on them."""
    split_seed: Seed = 0
    """Seed of the cut."""
    skip_incomplete: bool = False
    """Skip rows without any text or without a label instead of refusing the file."""
    quotes: bool | None = None
    """TSV: whether cells may stand in quotes; default: as the file shows."""

    @property
    def separator_or_default(self) -> str:
        return self.separator or "|"


# The split of `held_out`. Its metrics end in `_held_out`, as those of every extra validation split
# end in the split's name.
HELD_OUT = "validation_held_out"
# Keys whose value is a text as it is typed: YAML's rules for #, @, yes, 01 or null are not for names.
_TEXTS = ("id", "kind", "validation", "test", "held_out")
# Keys whose value is a list of such texts.
_LISTS = ("inputs", "label", "labels", "missing")


def split_options(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the `key=value` words about data from those of the run's configuration.

    Raises:
        UsageError: a key is neither's, and is nearest to one about data.
    """
    about_data = []
    others = []
    for text in overrides:
        key = _key_of(text)
        if key in DataOptions.model_fields:
            about_data.append(text)
            continue
        others.append(text)
        suggestion = _nearest_about_data(key)
        if suggestion:
            raise UsageError(f"command line: unknown key '{key}'{suggestion}")
    return about_data, others


def check_has_data(overrides: Sequence[str]) -> None:
    """Refuse words about data where the task is no data file or hub dataset.

    Raises:
        UsageError: there is such a word.
    """
    for text in overrides:
        key = _key_of(text)
        subject = ""
        if key in DataOptions.model_fields:
            subject = f"'{text:.60}'"
        else:
            suggestion = _nearest_about_data(key)
            if suggestion:
                subject = f"unknown key '{key}'{suggestion} It"
        if subject:
            raise UsageError(
                f"command line: {subject} says how a data file or hub dataset is read, and no --task"
                " names one; a shipped task is changed in a copy: hifi ls tasks/NAME > my-task.yaml"
            )


def _key_of(text: str) -> str:
    """Return the key of a `key=value`."""
    return text.partition("=")[0].strip()


def _nearest_about_data(key: str) -> str:
    """Return a phrase that suggests the nearest key, if that is one about data; else an empty text."""
    # A key of the configuration may have points (`heads.k`), or be called otherwise by others (`lr`).
    is_known = key.partition(".")[0] in RunConfig.model_fields or key in names_elsewhere(RunConfig)
    if is_known:
        return ""
    suggestion = registry.did_you_mean(key, DataOptions.model_fields)
    of_all = registry.did_you_mean(key, [*RunConfig.model_fields, *DataOptions.model_fields])
    if suggestion == of_all:
        return suggestion
    return ""


def parse_options(overrides: Sequence[str]) -> DataOptions:
    """Return the options that `key=value` words give.

    Raises:
        UsageError: an unknown key, or a value that does not fit.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        values |= _value_in(override)
    validation = values.get("validation")
    # A number is a fraction, unless a file has it as its name.
    if validation and not isnan(as_number(validation)) and not Path(validation).exists():
        values["validation"] = as_number(validation)
    return parse(DataOptions, values, "command line")


def _value_in(override: str) -> dict[str, Any]:
    """Return the key of a `key=value` about data with its value, as text, list or YAML.

    Raises:
        UsageError: there is no value.
    """
    key, equals, text = override.partition("=")
    key = key.strip()
    is_quoted = text[:1] in ("'", '"')
    # A separator is taken as it is, unless it is in quotes: it may be a space or |.
    if key == "separator" and text and not is_quoted:
        return {key: text}
    # All others are YAML, as the keys of a configuration are.
    if not equals or key not in (*_TEXTS, *_LISTS):
        return parse_override(override)
    if not text.strip():
        raise UsageError(f"'{override}': a value is expected after {key}=")
    if key in _LISTS:
        return {key: names_in(text)}
    return {key: _unquoted(text)}


def names_in(text: str) -> list[str]:
    """Return the names that are typed: one, or several as `[a, b]`; quotes keep commas and brackets."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return [_unquoted(text)]
    parts = re.findall(r"""\s*("[^"]*"|'[^']*'|[^,]*?)\s*(?:,|$)""", text[1:-1])
    # The pattern also finds the nothing after the last name.
    return [_unquoted(part) for part in parts if part]


def _unquoted(text: str) -> str:
    """Return a text without the spaces and the pair of quotes around it."""
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if is_quoted:
        return text[1:-1]
    return text
