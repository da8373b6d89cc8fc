"""Finds the YAML files that come with the project or that a user names, and suggests the nearest name."""

import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hifi_cli.errors import MissingError, UsageError, printable

KINDS = ("tasks", "methods", "backbones", "protocols", "tables", "figures", "published", "claims", "grids", "sites")

_user_files: dict[tuple[str, str], tuple[Path, bool]] = {}  # by kind and name: file, and whether its code may be executed
_files_of_runs: dict[tuple[str, str], Path] = {}  # of methods and tasks that only finished runs know, by kind and name


class YamlLoader(yaml.SafeLoader):
    """Reads 1e-4 as a number, as YAML 1.2 does; PyYAML follows YAML 1.1, where it is a text.

    Not libyaml's loader, which is faster and overflows the stack on deeply nested files.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Read a name or text without control characters, which YAML writes as escapes."""
        return printable(super().construct_scalar(node))

    def construct_document(self, node: yaml.Node) -> Any:
        """Refuse a list or mapping that contains itself (`&a [*a]`), which PyYAML does if it makes the inner ones first."""
        self.deep_construct = True
        return super().construct_document(node)


YamlLoader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.?[eE][-+]\d+$"), list("-+0123456789"))


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
    """A phrase that suggests the nearest known name, or nothing."""
    matches = difflib.get_close_matches(name, list(among), n=1, cutoff=0.5)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def unknown(kind: str, name: str, others: Iterable[str] = ()) -> UsageError:
    """Return the error for an unknown name, which suggests the nearest: of names that it begins, the base of the others.

    Args:
        others: names that have no YAML and are known nevertheless.
    """
    begun = [known for known in names(kind) if known.startswith(f"{name}-")]
    bases = [load(kind, known).get("base") for known in begun]
    suggestion = nearest(max(begun, key=bases.count) if begun else name, [*names(kind), *others])
    return UsageError(f"unknown {kind.removesuffix('s')} '{name}'{suggestion} (hifi ls {kind} lists all)")


def is_file(name: str) -> bool:
    """Whether a name given by the user is a YAML file of their own rather than a shipped one."""
    return name.endswith((".yaml", ".yml"))


def name_of(argument: str) -> str:
    """The name that an argument stands for: of a user's own YAML the file's name without its suffix, else the argument."""
    return Path(argument).stem if is_file(argument) else argument


def register_user_file(kind: str, path: Path, *, trust: bool = True) -> None:
    """Use a user's file for its name in this process.

    Args:
        trust: whether the code that it names may be executed.
    """
    _user_files[kind, path.stem] = path, trust


def check_trusted(path: Path, code: str) -> None:
    """Refuse code that a file of a run directory names, unless the user trusts it.

    Raises:
        UsageError: it does.
    """
    if (path, False) in _user_files.values():
        raise UsageError(
            f"{path} names code, '{code}', and that file is part of a run: give --trust if you know the code and trust it"
        )


def user_file(kind: str, name: str) -> Path | None:
    """The user's file that is used for a name in this process."""
    return _user_files.get((kind, name), (None,))[0]


@contextmanager
def only_user_files(files: Mapping[tuple[str, str], Path], *, trust: bool = False) -> Iterator[None]:
    """Within the context, only these user files, by kind and name, are used.

    Args:
        trust: whether the code that they name may be executed.
    """
    global _user_files
    before, _user_files = _user_files, {key: (path, trust) for key, path in files.items()}
    try:
        yield
    finally:
        _user_files = before


def find(kind: str, name: str) -> Path:
    """The YAML file of that kind and name; `name` may also be the path of a user's own file.

    Raises:
        UsageError: no such name; the nearest is suggested.
        MissingError: no such file.
    """
    if is_file(name):
        if not Path(name).is_file():
            raise MissingError(f"no file {name}")
        register_user_file(kind, Path(name))
        return Path(name)
    if path := user_file(kind, name):
        return path
    if name not in names(kind):
        raise unknown(kind, name)
    return configs_directory() / kind / f"{name}.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. A file is parsed again only after it has changed; the caller may change what is returned.

    Raises:
        MissingError: no such file.
        UsageError: not readable, not YAML, or not a mapping.
    """
    try:
        stat = path.stat()
        return copy.deepcopy(_read_yaml(path, stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError:
        raise MissingError(f"no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path}: not readable: {error}") from None


@cache
def _read_yaml(path: Path, mtime_ns: int, size: int) -> dict[str, Any]:  # noqa: ARG001
    return parse_yaml(path.read_bytes(), path)


def parse_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """Parse the content of a YAML file, which must be a mapping.

    Raises:
        UsageError: not YAML, or not a mapping.
    """
    try:
        value = yaml.load(content.decode("utf-8-sig"), Loader=YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())[:120]
        raise UsageError(f"{path}{where}: not valid YAML: {problem}") from None
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{path}: a mapping of names to values is expected")
    return value


def load(kind: str, name: str) -> dict[str, Any]:
    """The content of the YAML of that kind and name."""
    return read_yaml(find(kind, name))


def use_files_of_runs(files: Mapping[tuple[str, str], Path]) -> None:
    """Remember the copies of users' own YAMLs that finished runs keep, by kind and name: what is printed says what they say."""
    global _files_of_runs
    _files_of_runs = dict(files)


def label_of(kind: str, name: str) -> str:
    """The label of a method or task: from its shipped YAML, or the user's own, used here or kept by a run; else its name."""
    own = user_file(kind, name) or _files_of_runs.get((kind, name))
    file = configs_directory() / kind / f"{name}.yaml" if name in names(kind) else own
    return str(read_yaml(file).get("label", name)) if file else name


def task_argument(name: str) -> str:
    """What `--task` takes for a task: the user's own YAML, or the copy that a run keeps, if it names no code, else its name."""
    kept = None if name in names("tasks") else _files_of_runs.get(("tasks", name))
    file = user_file("tasks", name) or (kept if kept and not read_yaml(kept).get("evaluate") else None)
    return str(file or name)


def argument_of(kind: str, name: str) -> str:
    """What the command line takes for a name: the path of the user's own YAML that is used for it, else the name."""
    return str(user_file(kind, name) or name)


def train_rows(task: str) -> int:
    """Return the number of a task's training rows, 1,000 where its YAML does not say it."""
    rows = load("tasks", task).get("rows") or {}
    return int(rows.get("train") or 1000)
