"""hifi: fine-tune encoders by the methods of the HiFi and EH-FT papers, and trust the numbers."""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hifi_cli.library import ScoredHeads, merge_heads, score_heads, select_heads, tune_heads
    from hifi_cli.results.reload import open_model
    from hifi_cli.results.study import read_results

__version__ = "0.2.0.dev0"
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
# Idle OpenMP threads sleep instead of spinning; read when torch is imported. Two runs at once with two threads each on two
# cores took 178 s without and 22.7 s with it, one run alone 16.5 s either way.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A GPU's batches have many sizes: segments that grow leave no gaps between them. Read when CUDA starts; the second name is
# PyTorch's former one, which the first would hide.
os.environ.setdefault(
    "PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
)

_MODULES = {
    "open_model": "hifi_cli.results.reload",
    "read_results": "hifi_cli.results.study",
}  # of the other names: library


def __getattr__(name: str) -> Any:
    """Public names from the modules that hold them, at first use: `import hifi_cli` loads no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'hifi_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES.get(name, "hifi_cli.library")), name)
