"""Finds the YAML files that come with the project or that a user names, and suggests the nearest name."""

import copy
import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import read_file
from hifi_cli.text import printable

KINDS = (
    "tasks",
    "methods",
    "backbones",
    "protocols",
    "tables",
    "figures",
    "published",
    "claims",
    "grids",
    "sites",
)


# A YAML is read character by character, so that a larger one takes minutes.
_MAX_BYTES = 1 << 20
# Aliases in a small YAML may stand for parts of any size.
_MAX_PARTS = 1_000_000
# peft writes the configuration of its adapters into a file of this name.
ADAPTER_CONFIG = "adapter_config.json"


class NameWithFile(str):
    """The name of a user's own YAML, or of their Python file with a ranking, with that file.

    Attributes:
        path: the file.
        is_trusted: whether the code that it names may be executed.
    """

    path: Path | None
    is_trusted: bool

    def __new__(cls, name: str, path: Path | None = None, *, is_trusted: bool = True) -> Self:
        """Make a name with its file; only `copy` makes one without it, and then sets all attributes."""
        self = super().__new__(cls, name)
        self.path = path
        self.is_trusted = is_trusted
        return self


class YamlLoader(yaml.SafeLoader):
    """Reads numbers as YAML 1.2 does: 1e-4 is one, and 1:30 (in base 60) and 010 (in base 8) are texts.

    So is 1e5, which may be an id; where a number is required, the configuration takes it for one.
    A key that is there twice is refused: the first value would be ignored silently. Dates are
    texts. Not libyaml's loader, which is faster and overflows the stack on deeply nested files.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Read a name or text without control characters, which YAML writes as escapes."""
        return printable(super().construct_scalar(node))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping, in which each key stands once."""
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' is there twice", key.start_mark
                )
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


class YamlDumper(yaml.SafeDumper):
    """Quotes texts that `YamlLoader` or YAML 1.1 would take for numbers or dates."""


def _replace_resolvers() -> None:
    """Let the loader take for numbers what YAML 1.2 takes, and 1_000 as Python does."""
    replaced = [f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp")]
    # PyYAML looks for a type by the first character of a text.
    kept = {}
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept[first] = [resolver for resolver in resolvers if resolver[0] not in replaced]
    YamlLoader.yaml_implicit_resolvers = kept
    numbers = {
        "int": r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$",
        "float": r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+][0-9]+"
        r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$",
    }
    for kind, pattern in numbers.items():
        tag = f"tag:yaml.org,2002:{kind}"
        for reader_or_writer in (YamlLoader, YamlDumper):
            reader_or_writer.add_implicit_resolver(tag, re.compile(pattern), list("-+0123456789."))


_replace_resolvers()


@cache
def configs_directory() -> Path:
    """Return where the shipped YAML files are: in the installed package, or at the top of a checkout."""
    inside = Path(__file__).parent.parent / "configs"
    if inside.is_dir():
        return inside
    return Path(__file__).parents[2] / "configs"


@cache
def names(kind: str) -> list[str]:
    """Return the names of all shipped YAMLs of a kind, sorted."""
    return sorted(path.stem for path in (configs_directory() / kind).glob("*.yaml"))


def did_you_mean(name: str, among: Iterable[str]) -> str:
    """Return a phrase that suggests the nearest known name, whatever its case, or nothing."""
    by_lower_case = {known.lower(): known for known in among}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    if not matches:
        return ""
    return f"; did you mean '{by_lower_case[matches[0]]}'?"


def unknown_name_error(
    kind: str, name: str, others: Iterable[str] = (), hint: str = ""
) -> UsageError:
    """Return the error for an unknown name, which suggests the nearest known one.

    Of the names that begin with it, as `hifi-layerwise` with `hifi`, the one that most of them are
    based on is suggested.

    Args:
        kind: of the names: `tasks`, `methods`, ...
        name: the unknown one.
        others: names that have no YAML and are known nevertheless.
        hint: what else may stand in the place of the name.
    """
    begun = [known for known in names(kind) if known.startswith(f"{name}-")]
    nearest = name
    if begun:
        bases = [load(kind, known).get("base") for known in begun]
        # The name that stands most often among the bases.
        nearest = max(begun, key=bases.count)
    suggestion = did_you_mean(nearest, [*names(kind), *others])
    return UsageError(
        f"unknown {kind.removesuffix('s')} '{name}'{suggestion} (hifi ls {kind} lists all{hint})"
    )


def is_yaml_path(argument: str) -> bool:
    """Return whether an argument is the path of a user's own YAML, or of an adapter_config.json of peft.

    Its suffix says so: a name has none, and whether there is such a file is another question.
    """
    return argument.endswith((".yaml", ".yml", ADAPTER_CONFIG))


def plain_name(name: str) -> str:
    """Return a name as runs and their configurations hold it, where a file's path never stands.

    A run of others is read without trust in it. If a path stood for a name there, that file would
    be read as if the user had named it, and the code that it names would be executed.

    Raises:
        ValueError: it is a path.
    """
    if "/" in name or is_yaml_path(name):
        raise ValueError(
            f"{name!r:.200} is a path, and only a name may stand here: give a file of your own on the"
            " command line"
        )
    return name


def name_of(argument: str) -> str:
    """Return the name that an argument stands for: of a user's own YAML the file's, without its suffix.

    Raises:
        MissingError: no such file.
        UsageError: the name would be that of a file again.
    """
    if isinstance(argument, NameWithFile) or not is_yaml_path(argument):
        return argument
    file = Path(argument)
    if not file.is_file():
        raise MissingError(f"no file {argument}")
    if is_yaml_path(file.stem):
        raise UsageError(f"{argument}: rename the file: without its suffix it is '{file.stem}'")
    return NameWithFile(file.stem, file)


def name_of_code(argument: str) -> str:
    """Return the name that an argument stands for: of a user's own Python file the file's, with its path.

    Raises:
        MissingError: no such file.
    """
    if isinstance(argument, NameWithFile) or not argument.endswith(".py"):
        return argument
    file = Path(argument)
    if not file.is_file():
        raise MissingError(f"no file {argument}")
    return NameWithFile(file.name, file)


def own_file(name: str) -> Path | None:
    """Return the file of a user's own YAML; None: the name is not that of one."""
    if isinstance(name, NameWithFile):
        return name.path
    return None


def argument_of(name: str) -> str:
    """Return what the command line takes for a name: the path of the user's own YAML, else the name.

    It is never the path of a copy in a run of others: on a command line that would be the user's own
    file.
    """
    if isinstance(name, NameWithFile) and name.is_trusted:
        return str(name.path or name)
    return str(name)


def check_trusted(name: str, code: str) -> None:
    """Refuse code that a file of a run directory names, unless the user trusts it.

    Raises:
        UsageError: it does.
    """
    if isinstance(name, NameWithFile) and not name.is_trusted:
        raise UsageError(
            f"{name.path} names code, '{code}', and that file is part of a run: give --trust if you know the code and trust it"
        )


def find(kind: str, name: str) -> Path:
    """Return the YAML file of that kind and name; `name` may also be the path of a user's own file.

    Raises:
        UsageError: no such name; the nearest is suggested.
        MissingError: no such file.
    """
    name = name_of(name)
    if path := own_file(name):
        return path
    if name not in names(kind):
        raise unknown_name_error(kind, name)
    return configs_directory() / kind / f"{name}.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, which the caller may change.

    Raises:
        MissingError: no such file.
        UsageError: not YAML, or not a mapping, or not a regular file of a usual size.
    """
    return copy.deepcopy(parse_yaml(read_content(path), path))


def read_content(path: Path) -> bytes:
    """Read what `parse_yaml` parses.

    Raises:
        MissingError: no such file.
        UsageError: not a regular file of a usual size.
    """
    return read_file(path, _MAX_BYTES)


@cache
def parse_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """Parse the content of a YAML file, which must be a mapping, once; nobody changes the result.

    Raises:
        UsageError: not YAML, or not a mapping.
    """
    try:
        value = yaml.load(content.decode("utf-8-sig"), Loader=YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise UsageError(f"{path}: not valid YAML: {problem:.200}") from None
    if value is None:
        return {}
    if _has_too_many_parts(value):
        raise UsageError(f"{path}: a part contains itself, or there are more than {_MAX_PARTS:,}")
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{path}: a mapping of names to values is expected")
    return value


def yaml_text(value: Any, **how: Any) -> str:
    """Write a value as YAML, keys in their order, so that `read_yaml` gives the same value.

    Args:
        how: options of `yaml.dump`.
    """
    return str(yaml.dump(value, Dumper=YamlDumper, sort_keys=False, **how))


def _has_too_many_parts(value: Any) -> bool:
    """Return whether lists and mappings have more parts than a YAML may; one that contains itself has no end."""
    left = [value]
    seen = 0
    while left and seen <= _MAX_PARTS:
        part = left.pop()
        seen += 1
        if isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
    return seen > _MAX_PARTS


def load(kind: str, name: str) -> dict[str, Any]:
    """Return the content of the YAML of that kind and name."""
    return read_yaml(find(kind, name))


def label_of(kind: str, name: str) -> str:
    """Return the label of a method or task: from its shipped YAML, or the user's own, else its name."""
    file = own_file(name)
    if name in names(kind):
        file = configs_directory() / kind / f"{name}.yaml"
    if file is None:
        return name
    return str(read_yaml(file).get("label", name))
