"""Finds the YAML files that come with the project or that a user names, and suggests the nearest name."""

import copy
import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from hifi_cli.errors import MissingError, UsageError, printable

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


ADAPTER_CONFIG = "adapter_config.json"  # what peft calls the configuration of its adapters


class NameWithFile(str):
    """The name of a user's own YAML, or of their Python file with a ranking, with that file.

    Attributes:
        path: the file.
        is_trusted: whether the code that it names may be executed.
    """

    path: Path | None
    is_trusted: bool

    def __new__(cls, name: str, path: Path | None = None, *, is_trusted: bool = True) -> Self:
        """A name with its file; only `copy` makes one without it, and then sets all attributes."""
        self = super().__new__(cls, name)
        self.path, self.is_trusted = path, is_trusted
        return self


class YamlLoader(yaml.SafeLoader):
    """Reads 1e-4 as a number, as YAML 1.2 does; PyYAML follows YAML 1.1, where it is a text.

    Not libyaml's loader, which is faster and overflows the stack on deeply nested files.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Read a name or text without control characters, which YAML writes as escapes."""
        return printable(super().construct_scalar(node))


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.?[eE][-+]\d+$"), list("-+0123456789")
)


@cache
def configs_directory() -> Path:
    """Where the shipped YAML files are: inside the installed package, or at the top of a checkout."""
    inside = Path(__file__).parent.parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"


@cache
def names(kind: str) -> list[str]:
    """The names of all shipped YAMLs of a kind, sorted."""
    return sorted(path.stem for path in (configs_directory() / kind).glob("*.yaml"))


def nearest(name: str, among: Iterable[str]) -> str:
    """A phrase that suggests the nearest known name, whatever its case, or nothing."""
    by_lower_case = {known.lower(): known for known in among}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    return f"; did you mean '{by_lower_case[matches[0]]}'?" if matches else ""


def unknown(kind: str, name: str, others: Iterable[str] = ()) -> UsageError:
    """Return the error for an unknown name, which suggests the nearest: of names that it begins, the base of the others.

    Args:
        others: names that have no YAML and are known nevertheless.
    """
    begun = [known for known in names(kind) if known.startswith(f"{name}-")]
    bases = [load(kind, known).get("base") for known in begun]
    suggestion = nearest(max(begun, key=bases.count) if begun else name, [*names(kind), *others])
    files = (
        "; data files are .csv, .tsv, .jsonl, .json, .parquet, .conll or .conllu"
        if kind == "tasks"
        else ""
    )
    return UsageError(
        f"unknown {kind.removesuffix('s')} '{name}'{suggestion} (hifi ls {kind} lists all{files})"
    )


def is_yaml_path(argument: str) -> bool:
    """Whether an argument is the path of a user's own YAML, or of an adapter_config.json of peft.

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
    """The name that an argument stands for: of a user's own YAML the file's, without its suffix.

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
    """The name that an argument stands for: of a user's own Python file the file's, with its path."""
    if isinstance(argument, NameWithFile) or not argument.endswith(".py"):
        return argument
    return NameWithFile(Path(argument).name, Path(argument))


def own_file(name: str) -> Path | None:
    """The file of a user's own YAML, if a name is that of one."""
    return name.path if isinstance(name, NameWithFile) else None


def argument_of(name: str) -> str:
    """What the command line takes for a name: the path of the user's own YAML, else the name.

    Never the path of a copy in a run of others: on a command line it would be the user's own file.
    """
    is_the_users = isinstance(name, NameWithFile) and name.is_trusted
    return str(own_file(name) or name) if is_the_users else str(name)


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
    """The YAML file of that kind and name; `name` may also be the path of a user's own file.

    Raises:
        UsageError: no such name; the nearest is suggested.
        MissingError: no such file.
    """
    name = name_of(name)
    if path := own_file(name):
        return path
    if name not in names(kind):
        raise unknown(kind, name)
    return configs_directory() / kind / f"{name}.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, which the caller may change.

    Raises:
        MissingError: no such file.
        UsageError: not YAML, or not a mapping.
    """
    try:
        return copy.deepcopy(parse_yaml(path.read_bytes(), path))
    except FileNotFoundError:
        raise MissingError(f"no file {path}") from None


@cache
def parse_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """Parse the content of a YAML file, which must be a mapping, once.

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
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{path}: a mapping of names to values is expected")
    return value


def load(kind: str, name: str) -> dict[str, Any]:
    """The content of the YAML of that kind and name."""
    return read_yaml(find(kind, name))


def label_of(kind: str, name: str) -> str:
    """The label of a method or task: from its shipped YAML, or the user's own, else its name."""
    file = configs_directory() / kind / f"{name}.yaml" if name in names(kind) else own_file(name)
    return str(read_yaml(file).get("label", name)) if file else name
