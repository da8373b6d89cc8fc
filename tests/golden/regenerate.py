"""Write the golden files again.

`PYTHONPATH=tests/support python tests/golden/regenerate.py [NAME...]` writes the named files, such as `compare-two-runs.json`.
Without a name it writes all, which is needed on another machine or torch, because `machine.json` says where the bits are from.

With HIFI_DATA_DIR=path/to/glue_data it also writes `rows.json`. A golden file changes only on purpose: say why in the commit.
"""

import os
import sys
import tempfile
from pathlib import Path

import frozen
import rows
import study
import torch
from commands import machine


def main(names: list[str]) -> None:
    computed = frozen.NUMBERS | frozen.COMPUTED | frozen.SLOWLY_COMPUTED | frozen.FORMATS
    known = {*computed, "training.json"}
    data_dir = os.environ.get("HIFI_DATA_DIR")
    if data_dir:
        known.add("rows.json")
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(
            f"writes no {', '.join(unknown)}; with HIFI_DATA_DIR it writes rows.json, and without a name"
            " machine.json"
        )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        study.unpack(cwd / "study")
        for name, compute in computed.items():
            if not names or name in names:
                frozen.write(name, compute(cwd))
        if not names or "training.json" in names:
            frozen.write(
                "training.json",
                {training.name: training.compute(cwd) for training in frozen.TRAININGS},
            )
        if not names:
            frozen.write("machine.json", machine())
    if data_dir and (not names or "rows.json" in names):
        frozen.write("rows.json", rows.digests(Path(data_dir)))


if __name__ == "__main__":
    main(sys.argv[1:])
