"""JSON Schemas of the YAML files, for editors."""

from typing import Any

from pydantic import BaseModel

from hifi_cli.config.run_config import RunConfig

DIALECT = "http://json-schema.org/draft-07/schema#"  # the latest that the YAML editors' language server supports fully
_RUN_CONFIG = "#/definitions/RunConfig"
_SET_BY_OPTIONS = ("task", "method", "backbone", "protocol", "seed")  # set on the command line, never in a file
_WITH_RUN_KEYS = {"config": False, "tasks": True, "methods": True, "backbones": True}  # True: one `config` for each name
_SHORT = ("#/definitions/RowSpec", "#/definitions/ColumnSpec")  # a YAML may have a bare name instead


def schema_of(models: list[type[BaseModel]], title: str) -> dict[str, Any]:
    """The JSON Schema of a YAML that is any one of some models.

    Keys that hold configuration keys of a run get the schema of `RunConfig`, in which no key is required.
    """
    definitions: dict[str, Any] = {}
    all_models: list[type[BaseModel]] = [*models, RunConfig]
    for model in all_models:
        schema = model.model_json_schema(ref_template="#/definitions/{model}")
        definitions |= {**schema.pop("$defs", {}), model.__name__: schema}
    for name, definition in definitions.items():
        _link_run_keys(definition)
        if name.endswith("Config"):
            definition.pop("required", None)
    for key in _SET_BY_OPTIONS:
        definitions["RunConfig"]["properties"].pop(key)
    _allow_bare_names(definitions)
    choices = [{"$ref": f"#/definitions/{model.__name__}"} for model in models]
    return {"$schema": DIALECT, "title": title, "anyOf": choices, "definitions": definitions}


def _link_run_keys(definition: dict[str, Any]) -> None:
    """Replace the schema of mappings of configuration keys by that of `RunConfig`."""
    properties = definition.get("properties", {})
    for key, by_name in _WITH_RUN_KEYS.items():
        if properties.get(key, {}).get("type") == "object":
            link = {"$ref": _RUN_CONFIG}
            schema = {"type": "object", "additionalProperties": link} if by_name else {"allOf": [link]}
            properties[key] = {**schema, "description": properties[key].get("description", "")}


def _allow_bare_names(definitions: dict[str, Any]) -> None:
    for definition in definitions.values():
        for schema in definition.get("properties", {}).values():
            link = schema.get("items", {}).get("$ref")
            if link in _SHORT:
                schema["items"] = {"anyOf": [{"type": "string"}, {"$ref": link}]}
