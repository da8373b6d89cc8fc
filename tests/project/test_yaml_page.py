"""The page on YAML files names every key of grids, tables and figures as the code defines it, with an example that it takes."""

import re
from pkgutil import resolve_name

import pytest
import yaml
from project_files import PAGES

from hifi_cli.cli.options import yaml_value
from hifi_cli.config import figure_spec
from hifi_cli.config.base import parse, type_name
from hifi_cli.config.figure_spec import FigureSpec
from hifi_cli.figures.figure import KINDS
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_spec
from hifi_cli.grids.grid_spec import GridSpec
from hifi_cli.reports import table_spec
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec

PAGE = "yaml-files.md"
# The heading of a model's keys, the model, and keys without which it is none.
MODELS = {
    "Grid": (GridSpec, {}),
    "Table": (TableSpec, {"protocol": "hifi", "backbone": "bert-large"}),
    "Row": (RowSpec, {"method": "full-ft"}),
    "Column": (ColumnSpec, {"task": "rte"}),
    "Figure": (
        FigureSpec,
        {"description": "d", "kind": "sweep", "tasks": [], "backbone": "bert-large"},
    ),
}
# The settings of a kind that are required, with a value.
OF_KINDS = {"sweep": {"key": "heads.k", "values": [1, 2]}}


def section(heading):
    """The part of the page below a heading, up to the next one."""
    _, found, rest = PAGES[PAGE].partition(f"\n{heading}\n")
    assert found, f"the page has no heading '{heading}'"
    return re.split(r"\n#+ ", rest, maxsplit=1)[0]


def rows_of(text):
    """The cells of the rows of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def escaped(text):
    """A text as a cell of Markdown has it, in one line."""
    return " ".join(text.split()).replace("|", r"\|")


def defined(model):
    """Key, type, default and meaning of every field, as the page says them."""
    rows = []
    for key, field in model.model_fields.items():
        default = "required"
        if field.default_factory is not None:
            default = "see meaning"
        elif not field.is_required():
            default = f"`{escaped(yaml_value(field.default))}`"
        kind = f"`{escaped(type_name(field.annotation))}`"
        rows.append([f"`{key}`", kind, default, escaped(field.description or "")])
    return rows


def check_example(model, needed, key, example):
    """The model takes the example of a key beside the keys that it needs, and another value than the default."""
    content = yaml.safe_load(example.strip("`").replace(r"\|", "|"))
    assert [*content] == [key]
    parsed = parse(model, {**needed, **content}, "example")
    field = model.model_fields[key]
    is_named_for_users_code = key in needed
    assert is_named_for_users_code or getattr(parsed, key) != field.default, key


@pytest.mark.parametrize("heading", MODELS)
def test_the_page_has_every_key_as_the_code_defines_it(heading):
    model, needed = MODELS[heading]
    written = rows_of(section(f"### {heading}"))
    assert [row[:4] for row in written] == defined(model)
    for key, *_, example in written:
        check_example(model, needed, key.strip("`"), example)


def test_the_page_has_the_settings_of_every_kind_of_figure():
    written = rows_of(section("### Settings of a kind"))
    expected = []
    for name, place in KINDS.items():
        kind = resolve_name(f"hifi_cli.figures.{place}")
        expected += [[f"`{name}`", *row] for row in defined(kind)]
    assert [row[:5] for row in written] == expected
    for name, key, *_, example in written:
        kind = resolve_name(f"hifi_cli.figures.{KINDS[name.strip('`')]}")
        check_example(kind, OF_KINDS.get(name.strip("`"), {}), key.strip("`"), example)


def test_the_examples_of_the_page_are_loaded(tmp_path):
    names = []
    for content in re.findall(r"^```yaml\n(.*?)^```", PAGES[PAGE], re.DOTALL | re.MULTILINE):
        name = re.match(r"# ([\w-]+\.yaml)\n", content)[1]
        (tmp_path / name).write_text(content)
        names.append(name)
    assert names == ["my-grid.yaml", "my-table.yaml", "my-figure.yaml"]
    grid = grid_spec.load(str(tmp_path / "my-grid.yaml"), {})
    assert grid_cells.cells(grid, "my-grid")
    assert table_spec.load(str(tmp_path / "my-table.yaml")).methods
    assert figure_spec.load(str(tmp_path / "my-figure.yaml")).kind in KINDS
