"""The page of an `Audit`: one file that works offline."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..estimators.encoding import Array
from ..runs import Table, versions
from ..vision.figures import Look, color_axes, figure_tag, new_figure, render_page
from ..vision.report import thumbnail

TEMPLATE = pathlib.Path(__file__).parent / "templates" / "audit.html"
SHOWN, EVIDENCE, GROUPS, IN_GROUP, OUTLIERS, CONFUSIONS, CLASSES = 24, 5, 12, 6, 12, 20, 50
MOST_TEXT = 300  # characters of a row
BINS = 40


class Suspect(NamedTuple):
    """A row whose label is doubted, and the rows that doubt it."""

    row: int
    given: str
    suggested: str
    quality: float
    issue: bool
    evidence: list[tuple[int, float, str]]  # row, weight, label


def suspects(audit: Any, count: int, evidence: int = EVIDENCE) -> list[Suspect]:
    """The most suspicious rows: issues, and where there are few of them the next ones that should rather be otherwise."""
    labels = labels_of(audit)
    found = []
    other = np.array([written(label) for label in audit.suggested_label]) != np.array(labels)
    for row in audit.ranked[other[audit.ranked]][:count].tolist():
        behind = audit.evidence(row, evidence)
        pairs = zip(behind.rows.tolist(), behind.weights.tolist(), strict=True)
        found.append(
            Suspect(
                row,
                labels[row],
                written(audit.suggested_label[row]),
                float(audit.label_quality[row]),
                bool(audit.is_label_issue[row]),
                [(other, weight, labels[other]) for other, weight in pairs],
            )
        )
    return found


def written(label: Any) -> str:
    """A label as text; of numbers four digits, of several numbers all of them."""
    if isinstance(label, np.ndarray):
        return ", ".join(map(written, label))
    return f"{label:.4g}" if isinstance(label, (float, np.floating)) else str(label)


def labels_of(audit: Any) -> list[str]:
    return [written(label) for label in audit.given_label]


def row_name(audit: Any, row: int) -> str:
    name = row if audit.ids is None else audit.ids[row]
    return f"row {name}" if isinstance(name, int) else str(name)


def audit_page(audit: Any, shown: Any, title: str) -> str:
    """The page as text; `shown` as in `Audit.to_html`."""
    views: dict[int, dict[str, Any]] = {}
    view = _viewer(audit, shown)

    def show(row: int) -> dict[str, Any]:
        if row not in views:
            views[row] = view(row)
        return views[row]

    labels = labels_of(audit)
    disagreeing = sum(group.disagrees for group in audit.near_duplicates)
    farthest = np.argsort(-audit.error_indicator, kind="stable")[:OUTLIERS].tolist()
    worst = suspects(audit, SHOWN)
    return render_page(
        TEMPLATE,
        title=title,
        data=f"{len(audit):,} rows" + (f" of {len(audit.classes)} classes" if audit.classes is not None else ""),
        result=summary_line(audit),
        histogram=figure_tag("How many rows have which label quality", lambda look: draw_qualities(audit, look)),
        histogram_note=(
            "Label quality: the probability that a label is right."
            if audit.classes is not None
            else "Label quality: how often a right target would be as far from its prediction."
        )
        + " The axis of counts is logarithmic.",
        worst=worst,
        pictures=bool(worst and show(worst[0].row)["address"]),
        classes=_classes(audit).html() if audit.classes is not None else "",
        confusions=_confusions(audit).html() if audit.classes is not None and audit.is_label_issue.any() else "",
        duplicates=[
            {"disagrees": group.disagrees, "count": len(group.rows), "rows": group.rows[:IN_GROUP].tolist()}
            for group in audit.near_duplicates[:GROUPS]
        ],
        duplicates_note=f"{_counted(len(audit.near_duplicates), 'group')}, {disagreeing} with different labels."
        + (f" The first {GROUPS} are shown." if len(audit.near_duplicates) > GROUPS else ""),
        outliers=farthest,
        outliers_note=f"{_counted(int(audit.is_outlier_issue.sum()), 'outlier')}. The farthest rows by the error indicator "
        "without themselves:",
        labels=labels,
        name=lambda row: row_name(audit, row),
        show=show,
        settings={
            "versions": versions(),
            "head": repr(audit.estimator),
            "kernel": repr(audit.estimator.kernel_),
            "alpha": float(audit.estimator.alpha_),
            "neighbors": int(audit.estimator.n_neighbors_),
            "expected false discovery rate": audit.rate,
        },
    )


def summary_line(audit: Any) -> str:
    """What was found, in two sentences."""
    issues = int(audit.is_label_issue.sum())
    wrong = float(1 - audit.label_quality.mean())
    estimate = f" About {100 * wrong:.1f} % of all labels are estimated to be wrong." if audit.classes is not None else ""
    return (
        f"{_counted(issues, 'label')} of {len(audit):,} {'is' if issues == 1 else 'are'} likely wrong, at an expected "
        f"false discovery rate of {100 * audit.rate:.0f} % under the noise model.{estimate}"
    )


def draw_qualities(audit: Any, look: Look) -> Any:
    figure = new_figure((7, 2.6))
    axes = figure.subplots()
    edges = np.linspace(0, 1, BINS + 1)
    for chosen, color, name in (
        (~audit.is_label_issue, look.faint, "other rows"),
        (audit.is_label_issue, look.accent, "issues"),
    ):
        if chosen.any():
            axes.hist(audit.label_quality[chosen], bins=edges, color=color, label=name, alpha=0.85)
    axes.set_yscale("log")
    axes.set_xlim(0, 1)
    axes.set_xlabel("label quality")
    axes.set_ylabel("rows")
    axes.legend(frameon=False, labelcolor=look.ink)
    color_axes(axes, look)
    return figure


def _viewer(audit: Any, shown: Any) -> Callable[[int], dict[str, Any]]:
    def view(row: int) -> dict[str, Any]:
        value = None if shown is None else shown(row) if callable(shown) else shown[row]
        if value is None:
            return {"address": "", "text": row_name(audit, row)}
        if isinstance(value, np.ndarray) or hasattr(value, "convert"):
            pixels: Array = np.asarray(value.convert("RGB") if hasattr(value, "convert") else value)
            return thumbnail(pixels)
        text = str(value)
        return {"address": "", "text": text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"}

    return view


def _classes(audit: Any) -> Table:
    rows = [["given label", "rows", "issues", "wrong, estimated", "mostly taken to be"]]
    for one in audit.summary[:CLASSES]:
        other = "" if one.confused_with is None else str(one.confused_with)
        rows.append([str(one.label), f"{one.rows:,}", f"{one.issues:,}", f"{100 * one.share_wrong:.1f} %", other])
    return Table(rows)


def _confusions(audit: Any) -> Table:
    """The most frequent pairs."""
    confusion, names = audit.confusion, audit.classes
    assert names is not None
    order = np.argsort(-confusion, axis=None, kind="stable")[:CONFUSIONS]
    rows = [["given", "suggested", "issues"]]
    for given, other in zip(*np.unravel_index(order, confusion.shape), strict=True):
        if confusion[given, other]:
            rows.append([str(names[given]), str(names[other]), f"{confusion[given, other]:,}"])
    return Table(rows)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
