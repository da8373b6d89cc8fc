"""How a HiFi delta is applied: a function that model cards carry as it stands here, for people without this project."""

import json
import re
from typing import Any

from safetensors import safe_open


def apply_delta(model: Any, path: str) -> None:
    """Write a HiFi delta into the pretrained model: the chosen heads' rows of W_Q, W_K and W_V, and the task head."""
    with safe_open(path, framework="pt") as file:
        heads = json.loads(file.metadata()["hifi"])["heads"]  # the chosen heads of every layer
        for name in file.keys():  # noqa: SIM118
            module, _, part = name.rpartition(".")
            values = model.get_parameter(f"{module}.{ {'rows': 'weight', 'row_bias': 'bias'}.get(part, part) }").data
            size = len(values) // model.config.num_attention_heads
            chosen = heads[int(re.findall(r"\d+", name)[0])] if part in ("rows", "row_bias") else []
            rows = [head * size + row for head in chosen for row in range(size)] or slice(None)
            values[rows] = file.get_tensor(name)
