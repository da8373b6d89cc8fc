"""What each kind of YAML may say, as JSON Schema for editors, and what each key means, from the models' own docstrings."""

import inspect
import re
from typing import Any

from pydantic import BaseModel

from hifi_cli.config.run_config import RunConfig

DIALECT = "http://json-schema.org/draft-07/schema#"  # the latest that the YAML editors' language server reads whole
_SETTINGS = "RunConfig"  # whose keys stand in a `config:` block
_BY_OPTION = ("task", "method", "backbone", "protocol", "seed")  # chosen on the command line, never in a file
_WITH_SETTINGS = {"config": False, "tasks": True, "methods": True, "backbones": True}  # True: by name
_SHORT = ("RowSpec", "ColumnSpec")  # a bare name may stand for these


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """What each key of a model means: the `Attributes:` of its docstring and of the models it is made from.

    A docstring of one line may say it as "`key`: meaning; `key`: meaning".
    """
    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        found |= _attributes(inspect.getdoc(part) or "" if "__doc__" in vars(part) else "")
    return {name: text for name, text in found.items() if name in model.model_fields}


def of(models: dict[str, Any], title: str) -> dict[str, Any]:
    """The JSON Schema of a YAML that is any one of some models.

    Keys that hold settings of a run get the run configuration's own schema, with nothing in it required.

    Args:
        models: by the name of their definition.
    """
    definitions: dict[str, Any] = {}
    for name, model in {**models, _SETTINGS: RunConfig}.items():
        whole = model.model_json_schema(ref_template="#/definitions/{model}")
        definitions |= whole.pop("$defs", {})
        definitions[name] = whole
    known = {**{one.__name__: one for one in _within([*models.values(), RunConfig])}, **models}
    for name, definition in definitions.items():
        _describe(definition, known[name])
        _link_settings(definition)
        if name.endswith("Config"):
            definition.pop("required", None)
    for key in _BY_OPTION:
        definitions[_SETTINGS]["properties"].pop(key)
    _link_short(definitions)
    choice = [{"$ref": f"#/definitions/{name}"} for name in models]
    return {"$schema": DIALECT, "title": title, "anyOf": choice, "definitions": definitions}


def _attributes(text: str) -> dict[str, str]:
    """The entries of a docstring's `Attributes:` section; one entry may name several keys."""
    section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
    found: dict[str, str] = {}
    for entry in re.findall(r"^ {4}(\S.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE):
        names, colon, meaning = " ".join(entry.split()).partition(": ")
        if colon:
            found |= {name.strip(): meaning.rstrip(".") for name in names.split(",")}
    if text.startswith("`"):
        found |= {name: meaning.rstrip(".") for name, meaning in re.findall(r"`(\w+)`: (.*?)(?:; (?=`)|$)", text)}
    return found


def _within(models: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """The models and all that their keys hold."""
    found: list[type[BaseModel]] = []
    waiting = list(models)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.append(one)
            waiting += [inner for field in one.model_fields.values() for inner in _models_in(field.annotation)]
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for part in getattr(annotation, "__args__", ()) for inner in _models_in(part)]


def _describe(definition: dict[str, Any], model: type[BaseModel]) -> None:
    definition["description"] = (inspect.getdoc(model) or "").partition("\n")[0]
    for name, meaning in meanings(model).items():
        definition["properties"][name]["description"] = meaning


def _link_settings(definition: dict[str, Any]) -> None:
    for key, by_name in _WITH_SETTINGS.items():
        if definition.get("properties", {}).get(key, {}).get("type") == "object":
            link = {"$ref": f"#/definitions/{_SETTINGS}"}
            said = definition["properties"][key].get("description", "")
            how = {"type": "object", "additionalProperties": link} if by_name else {"allOf": [link]}
            definition["properties"][key] = {**how, "description": said}


def _link_short(definitions: dict[str, Any]) -> None:
    for definition in definitions.values():
        for key in definition.get("properties", {}).values():
            link = key.get("items", {}).get("$ref", "")
            if link.rpartition("/")[2] in _SHORT:
                key["items"] = {"anyOf": [{"type": "string"}, {"$ref": link}]}
