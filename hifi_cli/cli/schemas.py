"""The JSON Schema of every kind of YAML in `configs/`, and of what commands print as JSON."""

from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.registry import nearest
from hifi_cli.errors import UsageError

OUTPUT = "output/"
KINDS = tuple(sorted([*registry.KINDS, "config"]))


BACKBONE_KEYS = {  # of the YAML alone
    "description": "What the encoder is, in one line.",
    "config": "Configuration keys that the backbone sets.",
}


def schema_of_kind(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of YAML, `config` of a `-c` file, or `output/COMMAND` of what its `--format json` prints.

    Raises:
        UsageError: there is no such kind.
    """
    if kind.startswith(OUTPUT):
        from hifi_cli.cli.outputs import OUTPUTS, schema_of_output

        command = kind.removeprefix(OUTPUT)
        if command not in OUTPUTS:
            raise UsageError(f"no schema '{kind}'{nearest(command, OUTPUTS)} ({OUTPUT}NAME, of {', '.join(OUTPUTS)})")
        return schema_of_output(command)
    from hifi_cli.config import json_schema

    if kind not in KINDS:
        raise UsageError(f"no schema '{kind}'{nearest(kind, KINDS)} (one of {', '.join(KINDS)}, or {OUTPUT}COMMAND)")
    schema = json_schema.schema_of(models_of_kind(kind), f"hifi: {kind}")
    if kind == "backbones":
        keys = schema["definitions"]["BackboneConfig"]["properties"]
        keys |= {
            "description": {"type": "string", "description": BACKBONE_KEYS["description"]},
            "config": {"allOf": [{"$ref": "#/definitions/RunConfig"}], "description": BACKBONE_KEYS["config"]},
        }
    return schema


def models_of_kind(kind: str) -> list[Any]:
    """The models of a kind of YAML; a table's YAML has one of several."""
    from hifi_cli.config import methods, protocols, run_config
    from hifi_cli.grids import grid_spec as grids
    from hifi_cli.grids import parsl_engine
    from hifi_cli.reports import claim_spec, published, table_types
    from hifi_cli.reports.figures import figure_spec as figures
    from hifi_cli.tasks import task_spec

    models: dict[str, list[Any]] = {
        "backbones": [run_config.BackboneConfig],
        "claims": [claim_spec.ClaimsFile],
        "config": [run_config.RunConfig],
        "figures": [figures.FigureSpec],
        "grids": [grids.GridSpec],
        "methods": [methods.MethodSpec],
        "protocols": [protocols.ProtocolSpec],
        "published": [published.PublishedFile],
        "sites": [parsl_engine.SiteSpec],
        "tables": list({table_type.spec: None for table_type in table_types.TABLE_TYPES.values()}),
        "tasks": [task_spec.TaskSpec],
    }
    return models[kind]


def schema_of_all() -> dict[str, Any]:
    """One JSON Schema for any of the YAMLs."""
    parts = {kind: schema_of_kind(kind) for kind in KINDS}
    definitions = {name: definition for part in parts.values() for name, definition in part["definitions"].items()}
    choice = {kind: {"title": part["title"], "anyOf": part["anyOf"]} for kind, part in parts.items()}
    return {"$schema": parts["config"]["$schema"], "title": "hifi", "anyOf": list(choice.values()), "definitions": definitions}
