"""hifi: fine-tune encoders by the methods of the HiFi and EH-FT papers, and trust the numbers."""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hifi_cli.api import ScoredHeads, merge_heads, score_heads, select_heads, tune_heads
    from hifi_cli.records.study import read_results
    from hifi_cli.runs.inference import open_model

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
# Idle OpenMP threads spin for a few microseconds, then sleep; read when torch is imported. Threads that sleep at once take
# 1.5 times as long (194 instead of 124 ms a step of CoLA on two cores), those that never sleep 8 times as long where two
# runs share the cores; so these two take 260 ms, twice one's time, and whole runs 2.5 times (docs/performance.md).
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "4000"}
# A GPU's batches have many sizes: segments that grow leave no gaps between them. Read when CUDA starts; the second name is
# PyTorch's former one, which the first would hide.
os.environ.setdefault(
    "PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
)

_MODULES = {
    "open_model": "hifi_cli.runs.inference",
    "read_results": "hifi_cli.records.study",
}  # of the other names: api


def __getattr__(name: str) -> Any:
    """Public names from the modules that hold them, at first use: `import hifi_cli` loads no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'hifi_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES.get(name, "hifi_cli.api")), name)
