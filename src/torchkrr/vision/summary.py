"""Records of several seeds as one cell for each readout, budget and depth; cells as tables and as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..runs import Record, Table


class Cell(NamedTuple):
    """One readout at one budget, and at one depth of a probing run, over its seeds."""

    readout: str
    title: str
    budget: int
    num_seeds: int
    accuracy: float  # mean
    lowest: float
    highest: float
    standard_error: float | None  # of the mean; None for a single seed
    log_loss: float | None  # mean
    fit: float  # mean seconds
    predict: float  # mean seconds
    num_features: int
    discarded: int = 0  # top stages
    layer: str | None = None  # the last one that is left
    indicator: float | None = None  # mean local error indicator at the test examples, of readouts that have one
    indicator_lowest: float | None = None  # of the seeds
    indicator_highest: float | None = None

    @property
    def seconds(self) -> float:
        return self.fit + self.predict

    @property
    def cell(self) -> Cell:
        """The cell itself, so that `cell.cell.accuracy` is `cell.accuracy`."""
        return self


class Grid(NamedTuple):
    """Cells in rows and columns."""

    columns: list[Cell]  # any cell of each column, for what they share
    rows: dict[str, list[Cell | None]]  # by the title of the readout

    @property
    def size(self) -> int:
        """The budget of a grid over depths."""
        return self.columns[0].budget

    @property
    def num_seeds(self) -> int:
        return max(cell.num_seeds for row in self.rows.values() for cell in row if cell is not None)

    def indicators(self) -> dict[str, list[Cell | None]]:
        """The rows of readouts that have an error indicator."""
        return {title: row for title, row in self.rows.items() if any(cell and cell.indicator is not None for cell in row)}

    def best(self, title: str) -> Cell:
        """The most accurate cell of a row; among equal ones the one with the fewest stages discarded."""
        row = [cell for cell in self.rows[title] if cell is not None]
        return max(row, key=lambda cell: (cell.accuracy, -cell.discarded))


def summarize(records: Sequence[Record]) -> list[Cell]:
    """One cell for each depth, ascending, readout, in the order they come, and budget, ascending."""
    readouts = list(dict.fromkeys(record["readout"] for record in records))
    groups: dict[tuple[int, int, int], list[Record]] = {}
    for record in records:
        key = (record.get("discarded", 0), readouts.index(record["readout"]), record["budget"])
        groups.setdefault(key, []).append(record)
    return [_cell(groups[key]) for key in sorted(groups)]


def _cell(records: list[Record]) -> Cell:
    first, count = records[0], len(records)
    accuracies = [record["accuracy"] for record in records]
    mean = math.fsum(accuracies) / count
    spread = math.fsum((accuracy - mean) ** 2 for accuracy in accuracies)
    losses = [record["log_loss"] for record in records if record["log_loss"] is not None]
    indicators = [record["indicator"] for record in records if record.get("indicator") is not None]
    has_indicator = len(indicators) == count
    return Cell(
        readout=first["readout"],
        title=first["title"],
        budget=first["budget"],
        num_seeds=count,
        accuracy=mean,
        lowest=min(accuracies),
        highest=max(accuracies),
        standard_error=math.sqrt(spread / (count - 1) / count) if count > 1 else None,
        log_loss=math.fsum(losses) / count if len(losses) == count else None,
        fit=math.fsum(record["seconds"]["fit"] for record in records) / count,
        predict=math.fsum(record["seconds"]["predict"] for record in records) / count,
        num_features=first["num_features"],
        discarded=first.get("discarded", 0),
        layer=first.get("layer"),
        indicator=math.fsum(indicators) / count if has_indicator else None,
        indicator_lowest=min(indicators) if has_indicator else None,
        indicator_highest=max(indicators) if has_indicator else None,
    )


def grid_of(cells: Sequence[Cell], column: Literal["budget", "discarded"]) -> Grid:
    """A row for each readout; a column for each budget, or for each depth of cells of one budget."""
    by_column = {getattr(cell, column): cell for cell in reversed(cells)}
    places = sorted(by_column)
    by_place = {(cell.title, getattr(cell, column)): cell for cell in cells}
    titles = dict.fromkeys(cell.title for cell in cells)
    rows = {title: [by_place.get((title, place)) for place in places] for title in titles}
    return Grid([by_column[place] for place in places], rows)


def grids(cells: Sequence[Cell]) -> list[Grid]:
    """The cells of a probing run, a grid over depths for each size, ascending."""
    sizes = sorted({cell.budget for cell in cells})
    return [grid_of([cell for cell in cells if cell.budget == size], "discarded") for size in sizes]


def percent(cell: Cell | None) -> str:
    """The mean accuracy, with its standard error over seeds where there are several."""
    if cell is None:
        return ""
    error = "" if cell.standard_error is None else f" ± {100 * cell.standard_error:.1f}"
    return f"{100 * cell.accuracy:.1f}{error}"


def accuracy_table(cells: Sequence[Cell], *, log_loss: bool = False, seconds: bool = False) -> Table:
    """A transfer run: accuracies in percent, a column for each budget, whose best is marked.

    Log-loss and seconds are those of the largest budget.
    """
    grid = grid_of(cells, "budget")
    most = [max(cell.accuracy for cell in cells if cell.budget == column.budget) for column in grid.columns]
    rows = [["accuracy in %", *(f"{column.budget:,} labels" for column in grid.columns)]]
    rows[0] += ["log-loss"] * log_loss + ["fit", "predict"] * seconds
    best = set()
    for title, row in grid.rows.items():
        best |= {(len(rows), place) for place, cell in enumerate(row, 1) if cell and cell.accuracy == most[place - 1]}
        last = [cell for cell in row if cell is not None][-1]
        loss = "" if last.log_loss is None else f"{last.log_loss:.3f}"
        times = [f"{last.fit:.2f} s", f"{last.predict:.2f} s"]
        rows.append([title, *map(percent, row), *[loss] * log_loss, *times * seconds])
    return Table(rows, best)


def seconds_table(cells: Sequence[Cell]) -> Table:
    """A transfer run: seconds to fit and to predict, a column for each budget."""
    grid = grid_of(cells, "budget")
    rows = [
        [title, *("" if cell is None else f"{cell.fit:.2f} + {cell.predict:.2f}" for cell in row)]
        for title, row in grid.rows.items()
    ]
    return Table([["seconds, fit + predict", *(f"{column.budget:,} labels" for column in grid.columns)], *rows])


def text_table(cells: Sequence[Cell]) -> str:
    """A transfer run for the terminal."""
    return accuracy_table(cells, seconds=True).text()


def depth_tables(cells: Sequence[Cell]) -> list[tuple[str, Table]]:
    """A probing run: for each size a title and a table of accuracies and error indicators by depth.

    The best depth of each readout is marked.
    """
    tables = []
    for grid in grids(cells):
        rows = [
            ["stages discarded", *(str(column.discarded) for column in grid.columns)],
            ["last layer", *(str(column.layer) for column in grid.columns)],
            ["features", *(str(column.num_features) for column in grid.columns)],
        ]
        best = set()
        for title, row in grid.rows.items():
            most = grid.best(title).accuracy
            best |= {(len(rows), place) for place, cell in enumerate(row, 1) if cell and cell.accuracy == most}
            rows.append([title, *map(percent, row)])
        for title, row in grid.indicators().items():
            texts = ("" if cell is None or cell.indicator is None else f"{cell.indicator:.3f}" for cell in row)
            rows.append([f"indicator of {title}", *texts])
        seeds = f", means of {grid.num_seeds} subsamples" if grid.num_seeds > 1 else ""
        tables.append((f"accuracy in % with {grid.size:,} training examples{seeds}", Table(rows, best)))
    return tables


def text_tables(cells: Sequence[Cell]) -> str:
    """A probing run for the terminal."""
    return "\n\n".join(f"{title}\n{table.text()}" for title, table in depth_tables(cells))


def findings(cells: Sequence[Cell]) -> list[str]:
    """The best depth in words, a sentence for each size and readout of a probing run."""
    sentences = []
    for grid in grids(cells):
        for title, row in grid.rows.items():
            best, whole = grid.best(title), row[0]
            stages = {0: "no stage", 1: "1 stage"}.get(best.discarded, f"{best.discarded} stages")
            words = f"With {grid.size:,} training examples {title} is best with {stages} discarded"
            if best.discarded and whole is not None:
                words += f" (up to {best.layer}): {percent(best)} %, against {percent(whole)} % with none discarded."
            else:
                words += f": {percent(best)} %."
            sentences.append(words)
    return sentences
