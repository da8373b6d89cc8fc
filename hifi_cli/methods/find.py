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
from hifi_cli.digests import file_digest
from hifi_cli.errors import UsageError
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


def check_method_settings(config: RunConfig) -> None:
    """Refuse settings of a method that the method of a run, or of its first stage, does not have.

    Raises:
        UsageError: there is one.
    """
    method = build_method(config, MethodContext(stage1_config=config.stage1))
    if config.stage1 and not any(stage.training for stage in method.stages()):
        raise UsageError(
            f"stage1: {config.method} has no stage with settings of its own; the two-stage method is"
            " eh-ft"
        )


def implementation_of(method: str) -> type[Method]:
    """Find the subclass of Method that implements a method, in a file of this folder or a user's.

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


def values_of(config: RunConfig) -> dict[str, Any]:
    """Return the values of a configuration as JSON holds them, with those settings of its methods that no layer sets.

    Raises:
        UsageError: unknown setting, or a value that does not fit.
    """
    values = config.model_dump(mode="json")
    values["settings"] = _method_settings_of(config)
    if config.stage1:
        values["stage1"]["settings"] = _method_settings_of(config.stage1)
    return values


def _method_settings_of(stage: TrainingConfig) -> dict[str, Any]:
    """Return the settings of a method, with the defaults of those that no layer sets."""
    settings_class = implementation_of(stage.method).Settings
    settings = parse(settings_class, stage.settings, f"method {stage.method}, settings")
    return settings.model_dump(mode="json")


# Hooks of Method under the names that they had: a method that still has them would not be called.
_FORMER_HOOKS = {"on_phase_start": "on_stage_start", "phases": "stages"}


def user_code(name: str, path: Path) -> dict[str, Any]:
    """Return the names that a user's Python file defines.

    Args:
        name: of the method or ranking whose code it is.
        path: of the file.

    Raises:
        UsageError: no such file, an error in it, or a run directory's that the user does not trust.
    """
    registry.check_trusted(name, path.name)
    if not path.is_file():
        raise UsageError(f"no file {path}, which a YAML or heads.rank names as code")
    return _executed(path.resolve(), file_digest(path))


@cache
def _executed(path: Path, content: str) -> dict[str, Any]:
    """Return the names that a file defines, which is executed again only after it has changed."""
    # The command line finds the file's lines in a traceback by this mark.
    marked = {"IS_USER_CODE": True}
    try:
        return runpy.run_path(str(path), marked, run_name=f"{path.stem}_{content}")
    except Exception as error:
        lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == str(path)]
        # An error of syntax is in no line that was executed.
        line = lines[-1] if lines else getattr(error, "lineno", None)
        raise UsageError(
            f"{path}, line {line}: cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _only_method(names: dict[str, Any]) -> type[Method]:
    """Return the subclass of Method that a module itself defines.

    Args:
        names: those that the module defines.

    Raises:
        UsageError: it defines none or several, or one that cannot be called.
    """
    file = names["__file__"]
    own = []
    for name, value in names.items():
        is_method = isinstance(value, type) and issubclass(value, Method)
        # A class whose name begins with an underscore is a part of the method.
        if is_method and value.__module__ == names["__name__"] and not name.startswith("_"):
            own.append(value)
    if len(own) != 1:
        raise UsageError(f"{file} must define exactly one subclass of Method, not {len(own)}")
    (method_class,) = own
    for former, present in _FORMER_HOOKS.items():
        if former in vars(method_class):
            raise UsageError(
                f"{file}: {method_class.__name__}.{former} is called {present} now: rename it"
                " (CHANGELOG.md)"
            )
    _check_arguments_of_before_step(method_class, file)
    if inspect.isabstract(method_class):
        raise UsageError(
            f"{file}: {method_class.__name__} has no prepare(self, encoder), which says what trains"
        )
    return method_class


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
