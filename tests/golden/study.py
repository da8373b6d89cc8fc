"""A small study of finished runs, packed in one file: MiniLM on CB, COPA and MRPC, without texts and weights.

Only this file knows how stored runs look. If their format changes, unpack with the old code, convert, and pack again.
"""

import json
import lzma
import shutil
from pathlib import Path

STORED = Path(__file__).parent / "stored_study"
PACKED = STORED / "study.jsonl.xz"
YAMLS = (
    "laptop.yaml",
    "study-table.yaml",
    "study-k.yaml",
    "study-stage1.yaml",
    "study-claims.yaml",
)  # of the stored runs, as they were then


def unpack(results_dir: Path, packed: Path = PACKED) -> Path:
    """Write the study's files into a results directory."""
    with lzma.open(packed, "rt", encoding="utf-8") as lines:
        for line in lines:
            file = json.loads(line)
            path = results_dir / file["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file["text"], encoding="utf-8")
    for name in YAMLS:
        shutil.copy(STORED / name, results_dir.parent)
    return results_dir


def pack(results_dir: Path, packed: Path = PACKED) -> None:
    """Pack every file of a results directory."""
    paths = sorted(path for path in results_dir.rglob("*") if path.is_file())
    with lzma.open(packed, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as lines:
        for path in paths:
            text = path.read_text(encoding="utf-8")
            lines.write(
                json.dumps({"path": path.relative_to(results_dir).as_posix(), "text": text}) + "\n"
            )
