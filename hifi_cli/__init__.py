"""hifi: fine-tune encoders by the methods of the HiFi and EH-FT papers, and trust the numbers."""

import importlib
from typing import TYPE_CHECKING, Any

from hifi_cli._version import __version__

if TYPE_CHECKING:
    from hifi_cli.api import ScoredHeads, merge_heads, score_heads, select_heads, tune_heads
    from hifi_cli.records.listing import read_results
    from hifi_cli.runs.inference import open_model

__all__ = [
    "ScoredHeads",
    "__version__",
    "merge_heads",
    "open_model",
    "read_results",
    "score_heads",
    "select_heads",
    "tune_heads",
]
# Modules of the public names that are not in api.py.
_MODULES = {
    "open_model": "hifi_cli.runs.inference",
    "read_results": "hifi_cli.records.listing",
}


def __getattr__(name: str) -> Any:
    """Return a public name from its module at first use, so that `import hifi_cli` loads no torch.

    Raises:
        AttributeError: there is no such public name.
    """
    if name not in __all__:
        raise AttributeError(f"module 'hifi_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES.get(name, "hifi_cli.api")), name)
