"""Mutated configurations and grids: one line and a documented exit code."""

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hifi_cli.config import registry

pytestmark = pytest.mark.slow

FUZZED = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def mutations(text):
    """A file with some bytes replaced, deleted, inserted or repeated, or cut off."""
    content = text.encode()
    positions = st.integers(0, len(content))
    pieces = st.one_of(
        st.binary(max_size=6),
        st.sampled_from([b"\t", b"\n", b"\r\n", b": ", b"- ", b"\x00", b"\xff", b"\xef\xbb\xbf", "é\u2028".encode()]),
    )
    edit = st.tuples(positions, st.integers(0, 30), pieces)

    def apply(edits, cut):
        changed = content
        for at, length, piece in edits:
            changed = changed[:at] + piece + changed[at + length :]
        return changed[:cut]

    return st.builds(apply, st.lists(edit, min_size=1, max_size=4), st.one_of(st.just(len(content) + 100), positions))


def at_most_one_line(answer):
    """A refusal is one line and a documented exit code."""
    assert answer.code in (0, 2, 3), (answer.code, answer.err)
    assert "Traceback" not in answer.err
    assert "hifi: unexpected" not in answer.err
    if answer.code:
        said = [line for line in answer.err.splitlines() if line.startswith("hifi: ")]
        assert len(said) == 1, answer.err
        assert not answer.out or answer.out.startswith("---\n")  # --dry-run prints the configuration before it reads the task


def test_shipped_files(hifi, tmp_path):
    """Task, method, protocol, backbone and grid YAMLs of a user's own."""
    kinds = {
        "task": "tasks/rte",
        "method": "methods/hifi-layerwise",
        "protocol": "protocols/laptop",
        "backbone": "backbones/minilm",
        "grid": "grids/demo-search",
    }
    texts = {kind: (registry.configs_directory() / f"{name}.yaml").read_text() for kind, name in kinds.items()}
    cases = st.one_of([st.tuples(st.just(kind), mutations(text)) for kind, text in texts.items()])
    path = tmp_path / "mutated.yaml"

    @FUZZED
    @given(cases)
    def check(case):
        kind, content = case
        path.write_bytes(content)
        if kind == "grid":
            return at_most_one_line(hifi("grid", path, "--print"))
        named = {"task": "rte", "method": "full-ft", "protocol": "hifi", "backbone": "minilm"} | {kind: path}
        answer = hifi("train", *(word for name, value in named.items() for word in (f"--{name}", value)), "--dry-run")
        at_most_one_line(answer)
        if answer.code == 0:
            result = yaml.safe_load(answer.out)
            result["backbone"] = result["backbone"]["name"]
            assert {name: result[name] for name in named} == {**named, kind: "mutated"}

    check()
