"""Footnotes on cells whose runs have a setting that a search chose: what was searched, and with how many trials."""

from collections.abc import Sequence

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.sources import override_value
from hifi_cli.records.search_result import SearchResult
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import TableRow

_START = "setting chosen by search "


def cell_notes(record: RunRecord, searches: Sequence[SearchResult]) -> tuple[str, ...]:
    """Return a footnote for each search that chose the setting of a run."""
    result = record.result
    candidates = [
        (search, of_method)
        for search in searches
        if (search.protocol, search.backbone) == (result.protocol, result.backbone)
        for of_method in search.searches
        if (of_method.task, of_method.method) == (result.task, result.method) and of_method.chosen and of_method.chosen.setting
    ]
    config = flatten(read_yaml(record.directory.config_file)) if candidates else {}
    return tuple(
        f"{_START}{search.grid}: {search.budget(of_method)}"
        for search, of_method in candidates
        if of_method.chosen
        and all(key in config and override_value(config[key]) == value for key, value in of_method.chosen.setting.items())
    )


def table_notes(rows: Sequence[TableRow]) -> list[str]:
    """Return a note if only some cells of our own runs have a searched setting: the comparison is unequal then."""
    cells = [cell for row in rows if row.source == "runs" for cell in row.cells if cell.seed_scores]
    searched = [any(note.startswith(_START) for note in cell.notes) for cell in cells]
    is_unequal = any(searched) and not all(searched)
    return ["cells without a note on a search have the settings of the protocol: tuning is unequal"] if is_unequal else []
