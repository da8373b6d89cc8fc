"""From a method's name to its class, and the user's own code."""

import importlib
import inspect
import runpy
from functools import cache
from pathlib import Path
from traceback import extract_tb
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.run_config import RunConfig, TrainingConfig
from hifi_cli.config.specs import code_file, method_spec
from hifi_cli.errors import UsageError
from hifi_cli.files import file_digest
from hifi_cli.methods.base import Method, MethodContext

# --- find and build the method of a configuration


def build_method(training: TrainingConfig, context: MethodContext) -> Method:
    """Build the method of a run (with its first stage) or of a stage from its validated settings.

    Raises:
        UsageError: unknown setting, or a value that does not fit.
    """
    method_class = implementation_of(training.method)
    settings = parse(
        method_class.Settings, training.settings, f"method {training.method}, settings"
    )
    return method_class(settings, context)


def check_settings(config: RunConfig) -> None:
    """Raise UsageError for settings that the method of a run, or of its first stage, lacks."""
    method = build_method(config, MethodContext(stage1_config=config.stage1))
    if config.stage1 and not any(stage.training for stage in method.stages()):
        raise UsageError(f"stage1: {config.method} has one stage; the two-stage method is eh-ft")


def implementation_of(method: str) -> type[Method]:
    """The Method subclass that implements a method: in a file of this folder, or of the user.

    Raises:
        UsageError: there is none, or it is code of a run directory that the user does not trust.
    """
    file = registry.find("methods", method)
    if code := code_file(file):
        return _only_method(user_code(method, file.parent / code))
    name = method_spec(method).implementation
    shipped = [path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "base"]
    if name not in shipped:
        known = "a file in hifi_cli/methods/, or a Python file beside the YAML as ./NAME.py"
        raise UsageError(
            f"unknown implementation '{name}'{registry.did_you_mean(name, shipped)} ({known})"
        )
    return _only_method(vars(importlib.import_module(f"hifi_cli.methods.{name}")))


# Hooks of Method under the names that they had: a method that still has them would not be called.
_FORMER_HOOKS = {"on_phase_start": "on_stage_start", "phases": "stages"}


def user_code(name: str, path: Path) -> dict[str, Any]:
    """The names that a user's Python file defines.

    Args:
        name: of the method or ranking whose code it is.

    Raises:
        UsageError: no such file, an error in it, or a run directory's that the user does not trust.
    """
    registry.check_trusted(name, path.name)
    if not path.is_file():
        raise UsageError(f"no file {path}, which a YAML or heads.rank names as code")
    return _executed(path.resolve(), file_digest(path))


@cache
def _executed(path: Path, content: str) -> dict[str, Any]:
    """The names that a file defines, which is executed again only after it has changed."""
    try:
        marked = {"IS_USER_CODE": True}  # by which the command line finds its lines in a traceback
        return runpy.run_path(str(path), marked, run_name=f"{path.stem}_{content}")
    except Exception as error:
        lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        raise UsageError(
            f"{path}, line {line}: cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _only_method(names: dict[str, Any]) -> type[Method]:
    """The subclass of Method that a module itself defines; _Names are parts of it."""
    own = [
        value
        for name, value in names.items()
        if isinstance(value, type)
        and issubclass(value, Method)
        and value.__module__ == names["__name__"]
        and not name.startswith("_")
    ]
    if len(own) != 1:
        raise UsageError(
            f"{names['__file__']} must define exactly one subclass of Method, not {len(own)}"
        )
    former = [name for name in _FORMER_HOOKS if name in vars(own[0])]
    if former:
        raise UsageError(
            f"{names['__file__']}: {own[0].__name__}.{former[0]} is called {_FORMER_HOOKS[former[0]]} now:"
            " rename it (CHANGELOG.md)"
        )
    _check_arguments_of_before_step(own[0], names["__file__"])
    if own[0].prepare is Method.prepare:
        raise UsageError(
            f"{names['__file__']}: {own[0].__name__} has no prepare(self, encoder), which says what"
            " trains"
        )
    return own[0]


def _check_arguments_of_before_step(method_class: type[Method], file: str) -> None:
    """Refuse a `before_step` that does not take what it is called with.

    Raises:
        UsageError: it takes other arguments, as it did in earlier versions.
    """
    signature = inspect.signature(method_class.before_step)
    try:
        signature.bind("self", "model", "step", "steps")
    except TypeError:
        raise UsageError(
            f"{file}: {method_class.__name__}.before_step is called with (model, step, steps) now:"
            " add the argument (CHANGELOG.md)"
        ) from None
