"""`report.html` and `report.md` of a transfer run and of a probing run, with a close look at the head."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._extras import import_extra
from ..runs import Record, Table, markdown_report
from .features import Inputs
from .figures import TEMPLATES, draw_budgets, draw_depths, draw_indicator, figure_tag, render_page
from .images import Images
from .readouts import HEAD, Fitted, readout_named
from .sampling import budget_rows
from .summary import Cell, accuracy_table, depth_tables, findings, seconds_table, summarize

NUM_GROUPS = 10  # of test examples by error indicator
NUM_SHOWN = 12  # mistakes on a page
NUM_EXPLAINED = 6  # training examples of each
NUM_CONFUSIONS = 12  # where there are too many classes for a matrix
THUMBNAIL = 128  # pixels of the longer side
FEW_PIXELS = 64  # up to here an image is kept as it is, and shown with its pixels


class Contribution(NamedTuple):
    """A training example in a prediction."""

    row: int  # of the examples that the head was fitted to
    weight: float


class Example(NamedTuple):
    """A test example and what the head says of it."""

    row: int  # of the test part
    truth: str
    label: str
    probability: float
    indicator: float  # local error indicator: 0 at a training example, 1 far from all
    because: tuple[Contribution, ...]  # largest weights first


class Group(NamedTuple):
    """Test examples of similar error indicator."""

    indicator: float  # mean
    accuracy: float
    size: int


class Examination(NamedTuple):
    """A head on the test part."""

    accuracy: float
    confusion: Tensor  # (C, C) counts: row the truth, column the prediction
    mistakes: list[Example]  # most confident first
    doubtful: list[Example]  # right, least confident first
    groups: list[Group]  # of equal size, ascending indicator

    @property
    def indicator(self) -> str:
        """A sentence on the error indicator."""
        first, last = self.groups[0], self.groups[-1]
        return (
            f"{100 * first.accuracy:.1f} % are right in the group of the smallest indicator, "
            f"{100 * last.accuracy:.1f} % in that of the largest."
        )


def examine(head: Fitted, classes: Sequence[str], features: Tensor, labels: Tensor) -> Examination:
    """All test examples counted, and some of them shown: right ones only where there are few mistakes.

    Args:
        head: by `fitted_head`.

    Shape:
        - features: `(Q, D)`; labels: `(Q,)`
    """
    assert head.indicator is not None
    confidence, predicted = head.scores(features).max(1)
    indicators, right = head.indicator(features), predicted == labels

    def shown(among: Tensor, count: int, *, surest: bool) -> list[Example]:
        rows = among.nonzero().squeeze(1)
        rows = rows[confidence[rows].argsort(descending=surest, stable=True)][:count]
        if not len(rows):
            return []
        behind = zip(*head.estimator.explain(features[rows].numpy(), NUM_EXPLAINED), strict=True)
        return [
            Example(
                row,
                classes[int(labels[row])],
                classes[int(predicted[row])],
                float(confidence[row].exp()),
                float(indicators[row]),
                tuple(Contribution(*pair) for pair in zip(indices.tolist(), weights.tolist(), strict=True) if pair[1]),
            )
            for row, (indices, weights) in zip(rows.tolist(), behind, strict=True)
        ]

    mistakes = shown(~right, NUM_SHOWN, surest=True)
    confusion = torch.bincount(labels * len(classes) + predicted, minlength=len(classes) ** 2).view(len(classes), -1)
    groups = [
        Group(float(indicators[rows].mean()), float(right[rows].double().mean()), len(rows))
        for rows in indicators.argsort(stable=True).tensor_split(NUM_GROUPS)
        if len(rows)
    ]
    doubtful = shown(right, NUM_SHOWN - len(mistakes), surest=False)
    return Examination(float(right.double().mean()), confusion, mistakes, doubtful, groups)


def transfer_page(inputs: Inputs, records: Sequence[Record], examination: Examination, note: str = "") -> str:
    """`report.html` of a transfer run."""
    cells = summarize(records)
    budget = max(cell.budget for cell in cells)
    largest = [cell for cell in cells if cell.budget == budget]
    most = max(cell.accuracy for cell in largest)
    best = [cell.title for cell in largest if cell.accuracy == most]
    who = f"the best readout of this run is {best[0]}" if len(best) == 1 else f"{len(best)} readouts share the first place"
    indicators, accuracies, _ = zip(*examination.groups, strict=True)
    return render_page(
        TEMPLATES / "report.html",
        title=_title(inputs),
        data=inputs.text,
        result=f"{_head_text(examination, inputs)} With {budget:,} labels {who} with {100 * most:.1f} %.",
        table=accuracy_table(cells, log_loss=True, seconds=True).html(),
        note=_note(cells, note),
        readouts=_readouts(cells),
        budgets_figure=figure_tag("Accuracy and time against the budget", lambda look: draw_budgets(cells, look)),
        classes=inputs.classes,
        confusion=examination.confusion.tolist(),
        confusions=_confusions(examination.confusion, inputs.classes).html(),
        indicator_figure=figure_tag(
            "Accuracy against the error indicator", lambda look: draw_indicator(indicators, accuracies, look)
        ),
        indicator_note=examination.indicator,
        mistakes=examination.mistakes,
        doubtful=examination.doubtful,
        test_source=inputs.test.source,
        train_source=inputs.train.source,
        train_rows=budget_rows(inputs.train.labels, budget, 0).tolist(),
        train_labels=[inputs.classes[label] for label in inputs.train.labels.tolist()],
        thumbnail=lambda source, row: thumbnail(source.read([row])[0]) if isinstance(source, Images) else None,
        settings=_settings(records),
    )


def transfer_markdown(inputs: Inputs, records: Sequence[Record], examination: Examination, note: str, command: str) -> str:
    """`report.md` of a transfer run: the tables of the page, for people who read text."""
    cells = summarize(records)
    parts = [
        inputs.text + ".",
        accuracy_table(cells).markdown(),
        _note(cells, note),
        "\n".join(f"- {title}: {text}" for title, text in _readouts(cells)),
        f"{_head_text(examination, inputs)} By its error indicator, in ten groups of test examples: {examination.indicator}",
        seconds_table(cells).markdown(),
    ]
    return markdown_report(_title(inputs), command, records[-1]["versions"], parts)


def depths_html(cells: Sequence[Cell]) -> str:
    """The tables of a probing run, one for each size."""
    tables = ((html.escape(title.capitalize()), table.html()) for title, table in depth_tables(cells))
    return "".join(f'<p>{title}</p><div class="scroll">{table}</div>' for title, table in tables)


def probe_page(title: str, data: str, pooling: str, records: Sequence[Record], note: str) -> str:
    """`report.html` of a probing run; `data` is a sentence on what was probed."""
    cells = summarize(records)
    return render_page(
        TEMPLATES / "probe.html",
        title=title,
        data=data,
        pooling=pooling,
        figure=figure_tag("Accuracy and indicator against stages discarded", lambda look: draw_depths(cells, look)),
        tables=depths_html(cells),
        note=_note(cells, note),
        findings=findings(cells),
        cost=_cost(records),
        settings=_settings(records),
    )


def probe_markdown(title: str, data: str, pooling: str, records: Sequence[Record], note: str, command: str) -> str:
    """`report.md` of a probing run: the tables of the page, for people who read text."""
    cells = summarize(records)
    parts = [data + ".", f"Maps and tokens become vectors by pooling: {pooling}."]
    for heading, table in depth_tables(cells):
        parts += [f"## {heading.capitalize()}", table.markdown()]
    parts += [" ".join(filter(None, (*findings(cells), note))), _cost(records)]
    return markdown_report(title, command, records[-1]["versions"], parts)


def _title(inputs: Inputs) -> str:
    return f"{inputs.name}: heads on frozen features"


def _head_text(examination: Examination, inputs: Inputs) -> str:
    return (
        f"The head in head.safetensors is {readout_named(HEAD).text}. It is right on "
        f"{100 * examination.accuracy:.1f} % of {len(inputs.test.labels):,} test examples."
    )


def _note(cells: Sequence[Cell], note: str) -> str:
    seeds = max(cell.num_seeds for cell in cells)
    means = f"Means over {seeds} subsamples with their standard errors. " if seeds > 1 else ""
    return f"{means}Subsamples are stratified and the same for all. {note}".rstrip()


def _readouts(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """What each readout is, so that nobody has to look up a name."""
    names = list(dict.fromkeys(cell.readout for cell in cells))
    if any(cell.title.startswith("SK, ") for cell in cells):
        names = ["sk", *(name for name in names if name != "sk")]  # the others refer to it
    return [(readout_named(name).title, readout_named(name).text) for name in names]


def _confusions(confusion: Tensor, classes: Sequence[str]) -> Table:
    """The most frequent ones."""
    counts, places = confusion.clone().fill_diagonal_(0).flatten().sort(descending=True, stable=True)
    rows = [["truth", "taken for", "times", "of"]]
    for count, place in zip(counts[:NUM_CONFUSIONS].tolist(), places[:NUM_CONFUSIONS].tolist(), strict=True):
        if count:
            truth, predicted = divmod(place, len(classes))
            rows.append([classes[truth], classes[predicted], str(count), str(int(confusion[truth].sum()))])
    return Table(rows)


def thumbnail(pixels: Any) -> dict[str, Any]:
    """An image `(H, W, 3)` as the address of a small one inside a page, and whether its pixels should show."""
    image = import_extra("PIL.Image", "Pictures in a report", extra="demo").fromarray(pixels)
    small = max(image.size) <= FEW_PIXELS
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, format="PNG" if small else "JPEG", optimize=True, quality=85)
    address = f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"address": address, "small": small}


def _settings(records: Sequence[Record]) -> dict[str, Any]:
    """What the numbers depend on, and what was chosen with the most labels."""
    settings = {name: records[-1][name] for name in ("versions", "threads", "backbone")}
    largest = max(record["budget"] for record in records)
    for record in records:
        if record["budget"] == largest and record["seed"] == 0:
            depth = f", {record['discarded']} discarded" if "discarded" in record else ""
            settings[record["title"] + depth] = {"settings": record["settings"], "chosen": record["chosen"]}
    return settings


def _cost(records: Sequence[Record]) -> str:
    features = max(record["seconds"]["features"] for record in records)
    solving = sum(record["seconds"]["fit"] + record["seconds"]["predict"] for record in records)
    threads = records[-1]["threads"]
    return (
        f"The pass of the network over the training pictures of the largest size and the test pictures, for the features of "
        f"all depths: {features:.0f} s. All {len(records)} "
        f"readouts, fit and prediction: {solving:.0f} s. The last of them had {threads} thread{'s' if threads > 1 else ''}."
    )
