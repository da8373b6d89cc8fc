"""The base of every configuration model: frozen, closed to unknown keys, with errors of one line."""

import re
from collections.abc import Collection, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from hifi_cli.config import registry
from hifi_cli.errors import UsageError

# Far more than anybody means, and far less than what overflows in a library.
MAX_COUNT = 10**9


def _keep_file(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Return a name that carries a user's own file as it is, and another one checked."""
    if isinstance(value, registry.NameWithFile):
        return value
    return check(value)


# The name of a task, a method, ...; that of a user's own file passes as it is, with its file.
Name = Annotated[str, WrapValidator(_keep_file)]
# A name as a run stores it, which is never a path.
StoredName = Annotated[str, AfterValidator(registry.plain_name)]
# The same in the configuration of a run, where one of a user's own file passes with its file.
RunName = Annotated[StoredName, WrapValidator(_keep_file)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
# numpy takes no larger seeds; torch does.
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonNegativeCount = Annotated[int, Field(ge=0, le=MAX_COUNT)]


def one_of(names: Collection[str]) -> AfterValidator:
    """Return the check of a text that must be one of some names, which a table elsewhere has.

    Args:
        names: the keys of the table, in the order in which a message lists them.
    """

    def check(name: str) -> str:
        if name not in names:
            *others, last = [f"'{known}'" for known in names]
            # pydantic's own words, as it says them of a literal type.
            raise PydanticCustomError(
                "one_of", "Input should be {names}", {"names": f"{', '.join(others)} or {last}"}
            )
        return name

    return AfterValidator(check)


# Names of transformers' Trainer, peft and scripts that have another form here, with what to write instead.
_ADVICE = {
    "warmup_steps": "warmup, a fraction of all steps",
    "adam_beta1": "adam_betas=[BETA1,BETA2]",
    "adam_beta2": "adam_betas=[BETA1,BETA2]",
    "max_steps": "epochs or limit",
    "bf16": "precision=bf16",
    "fp16": "precision=bf16",
    "r": "settings.r",
    "k": "heads.k",
    "lora_r": "settings.r",
    "lora_alpha": "settings.alpha",
    "alpha": "settings.alpha",
    "lora_dropout": "settings.dropout",
}
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][0-9]{1,3}")
# pydantic's words and ours, in the order in which they are replaced.
_WORDS = {
    "Input should be a valid ": "must be a ",
    "Input should be ": "must be ",
    "List should have": "must have",
    "Tuple should have": "must have",
    " after validation": "",
    "a integer": "a whole number",
    "a dictionary": "a mapping of names to values",
}
# A message names no more known keys than these.
_LISTED_KEYS = 12


class ConfigModel(BaseModel):
    """A part of the configuration. The string below a field says what it means, to readers, editors and `hifi ls`.

    Types are strict: a word that YAML reads as true is no number, and a number in quotes is a text.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, strict=True
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, values: Any) -> Any:
        """Take 1e3, which is a text in YAML and a float in Python, for the number that it is."""
        if not isinstance(values, Mapping):
            return values
        numbers = dict(values)
        for name, kinds in _kinds_of_numbers(cls).items():
            if name in numbers:
                numbers[name] = _number(kinds, numbers[name])
        return numbers


@cache
def _kinds_of_numbers(model: type[BaseModel]) -> dict[str, set[Any]]:
    """Return the types of each field of a model that takes numbers."""
    fields = {}
    for name, field in model.model_fields.items():
        kinds = _plain_types(field.annotation)
        if kinds & {int, float}:
            fields[name] = kinds
    return fields


def _number(kinds: set[Any], value: Any) -> Any:
    """Return a value, as the number that it stands for where a field of some types takes numbers."""
    takes_floats = float in kinds
    takes_whole_numbers = int in kinds
    takes_numbers = (takes_floats or takes_whole_numbers) and str not in kinds
    if isinstance(value, str) and takes_numbers and _EXPONENT.fullmatch(value):
        value = float(value)
    is_whole = isinstance(value, float) and value.is_integer()
    if is_whole and takes_whole_numbers and not takes_floats:
        return int(value)
    return value


def _plain_types(annotation: Any) -> set[Any]:
    """Return the types of a union, without their bounds."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain_types(get_args(annotation)[0])
    if origin in (Union, UnionType):
        types: set[Any] = set()
        for part in get_args(annotation):
            types |= _plain_types(part)
        return types
    return {annotation}


class KnownAs:
    """Name of a field in transformers' Trainer and other scripts: `Annotated[float, KnownAs("lr")]`."""

    def __init__(self, *names: str) -> None:
        self.names = names


@cache
def names_elsewhere(model: type[BaseModel]) -> dict[str, str]:
    """Return the names that other programs have for a model's keys, with what is written here instead."""
    keys: dict[str, str] = {}
    for key, field in fields_by_key(model).items():
        for mark in field.metadata:
            if not isinstance(mark, KnownAs):
                continue
            for name in mark.names:
                # The run's own key comes first; that of stage 1 has the same mark.
                keys.setdefault(name, key)
    for name, advice in _ADVICE.items():
        # It is of use only where its own key is: a method's settings have no `settings.r` in them.
        key = re.split(r"\W", advice)[0]
        if key in model.model_fields:
            keys[name] = advice
    return keys


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """Validate `values` as `model`.

    Args:
        model: the class.
        values: nested as in YAML.
        where: the file or the like that the values are in, as errors name it.

    Raises:
        UsageError: names `where` and the key, and suggests the nearest known one.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{where}: {describe_error(error, model)}") from None


def describe_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem in one line: an unknown key if there is one, with the nearest known key."""
    return describe_problem(first_problem(error), model)


def _in_our_words(message: str) -> str:
    """Return what pydantic says of a value, as a sentence about its key: `must be a number`."""
    expected = message.partition(", unable to ")[0]
    expected = expected.partition(" or instance of ")[0]
    for theirs, ours in _WORDS.items():
        expected = expected.replace(theirs, ours)
    return expected


def describe_problem(problem: Any, model: type[BaseModel]) -> str:
    """Return one of pydantic's error entries in one line."""
    key = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "extra_forbidden":
            return _describe_unknown_key(problem["loc"], model)
        case "missing":
            return f"'{key}' is missing"
        case "value_error":
            # Our own validators raise these, some of them about the whole.
            message = problem["msg"].removeprefix("Value error, ")
            return f"{key}: {message}" if key else message
        case "union_tag_invalid":
            return _describe_unknown_choice(key, problem["ctx"])
        case "string_pattern_mismatch":
            # The field's description lists its values.
            return f"{key}: not {problem['input']!r:.60}. {fields_by_key(model)[key].description}"
        case "string_type" if isinstance(problem["input"], bool):
            return (
                f"{key}: YAML reads yes, no, on and off without quotes as true or false;"
                """ quote them: '["yes","no"]'"""
            )
    return _describe_wrong_value(problem, model)


def _describe_unknown_key(location: tuple[Any, ...], model: type[BaseModel]) -> str:
    """Return what an unknown key is called here, which known one is the nearest, or a few known ones.

    Args:
        location: of the key, as pydantic has it.
        model: of the whole.
    """
    *outer, name = location
    path, inner = _model_within(tuple(outer), model)
    key = ".".join([*path, str(name)])
    ours = names_elsewhere(model).get(key)
    if ours is not None:
        return f"unknown key '{key}': here it is {ours}"
    known = [*fields_by_key(model)]
    if inner is not None:
        known = [".".join([*path, field]) for field in inner.model_fields]
    suggestion = registry.did_you_mean(key, known)
    if not suggestion and 0 < len(known) <= _LISTED_KEYS:
        suggestion = f"; known are {', '.join(known)}"
    return f"unknown key '{key}'{suggestion}"


def _describe_unknown_choice(key: str, context: dict[str, Any]) -> str:
    """Return the message about a value that should say which other keys stand beside it.

    Args:
        key: of the mapping that the value is in.
        context: pydantic's: `discriminator`, the name of the value's key, and `expected_tags`, both
            in quotes; `tag`, the value.
    """
    name = context["discriminator"].strip("'")
    tag = context["tag"]
    known = re.findall(r"'([^']+)'", context["expected_tags"])
    suggestion = registry.did_you_mean(tag, known)
    choices = ", ".join(known)
    return f"{key}.{name}: unknown value '{tag}'{suggestion} (one of {choices})"


def _model_within(
    location: tuple[Any, ...], model: type[BaseModel]
) -> tuple[list[str], type[BaseModel] | None]:
    """Return the names of a key, and the model at it if that is in a list, a mapping or a choice of models.

    Sections of the whole have no model of their own here: their keys are among the whole's.

    Args:
        location: of the key, as pydantic has it: it names the chosen model too.
        model: of the whole.
    """
    kind: Any = model
    key: list[str] = []
    is_inside = False
    for part in location:
        kind = _without_null(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field is not None else None
            key.append(str(part))
            continue
        is_inside = True
        if get_origin(kind) in (Union, UnionType):
            kind = _chosen_model(kind, part)
            continue
        key.append(str(part))
        parts = get_args(kind)
        kind = None
        if parts:
            # The last type of a mapping is that of its values.
            kind = parts[-1]
    kind = _without_null(kind)
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    if not (is_inside and is_model):
        return key, None
    return key, kind


def _chosen_model(choice: Any, name: Any) -> type[BaseModel] | None:
    """Return the model of a choice that pydantic names by its class, or by the field that tells them apart."""
    for kind in map(_without_null, get_args(choice)):
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            continue
        tags = {kind.__name__}
        for field in kind.model_fields.values():
            if get_origin(field.annotation) is Literal:
                tags.update(get_args(field.annotation))
        if name in tags:
            return kind
    return None


def _describe_wrong_value(problem: Any, model: type[BaseModel]) -> str:
    """Return what is required in the place of a value, and what the value is."""
    key, within_union = _key_within(problem["loc"], model)
    if within_union is not None:
        return f"{key}: {type_name(within_union)} is required, not {problem['input']!r:.60}"
    expected = _in_our_words(problem["msg"])
    if not expected.startswith("must"):
        key += ":"
    sentence = f"{key} {expected}, not {problem['input']!r:.60}"
    if isinstance(problem["input"], bool):
        return f"{sentence} (YAML reads yes, no, on and off as true or false)"
    return sentence


def _key_within(location: tuple[Any, ...], model: type[BaseModel]) -> tuple[str, Any]:
    """Return the dotted key of a problem, and the type of its field where that has alternatives.

    pydantic's location names the alternative too, which is no part of the key.
    """
    kind: Any = model
    key: list[str] = []
    # The location is followed through the types, until one has alternatives.
    for part in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = None
            if field is not None:
                kind = _without_null(field.annotation)
            key.append(str(part))
            continue
        if get_origin(kind) in (Union, UnionType):
            return ".".join(key), kind
        key.append(str(part))
        parts = get_args(kind)
        kind = parts[0] if parts else None
    return ".".join(key), None


def _without_null(kind: Any) -> Any:
    """Return a type without its bounds, and without null, for which pydantic names no alternative."""
    if get_origin(kind) is Annotated:
        return _without_null(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        others = [part for part in get_args(kind) if part is not NoneType]
        if len(others) == 1:
            return _without_null(others[0])
    return kind


def type_name(kind: Any) -> str:
    """Write a type as people read it: `fp32 | bf16`, `int | null` or `[float, float]`."""
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is Annotated:
        return type_name(parts[0])
    if origin in (Literal, Union, UnionType):
        return " | ".join(map(type_name, parts))
    if origin is list:
        return f"[{type_name(parts[0])}, ...]"
    if origin is tuple:
        return f"[{', '.join(map(type_name, parts))}]"
    names = {NoneType: "null", bool: "true | false", str: "text", dict: "mapping"}
    known = names.get(origin or kind)
    return known or str(getattr(kind, "__name__", kind))


def fields_by_key(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return the fields of a model by dotted key; a section is replaced by its own fields."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None:
            fields[f"{prefix}{name}"] = field
        else:
            fields |= fields_by_key(section, f"{prefix}{name}.")
    return fields


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that holds a section; None: it holds a plain value."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key; an empty section is a value of its own."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if value and isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of `flatten`: `a.b` and a value become a mapping in a mapping."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return values


def first_problem(error: ValidationError) -> Any:
    """Return the first of pydantic's error entries; an unknown key comes first, as it often causes others."""
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            return problem
    return problems[0]
