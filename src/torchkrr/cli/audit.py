"""`torchkrr audit`: labels that are likely wrong, outliers and near duplicates of any labeled data."""

from __future__ import annotations

import argparse
import pathlib
import time
from typing import Any

from .options import add_training_data, require_table_packages, share

WORST, BECAUSE = 10, 3
FIXES = ("drop", "correct")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_data(parser)
    parser.add_argument("--out", default="audit", metavar="DIR", help="folder of audit.csv and report.html (audit)")
    parser.add_argument("--rate", type=share, metavar="X", help="most right labels among the issues, expected (0.25)")
    parser.add_argument("--clean", metavar="FILE", help="also write the rows without issues, or with other labels")
    parser.add_argument("--fix", choices=FIXES, default="drop", help="of --clean: issues go, or get the suggested label")


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from .._files import writable
    from ..errors import InputError
    from ..quality import audit
    from ..quality.auditor import RATE
    from ..runs import make_folder
    from .fit import reading
    from .opening import open_training
    from .reports import say, say_found, say_next
    from .writing import output_delimiter

    start = time.monotonic()
    out = pathlib.Path(args.out)
    if args.clean is not None:  # before any work
        writable(args.clean, reads=[args.data])
        output_delimiter(args.clean)
    data = open_training(args)
    with reading(data, args) as (piece, points):
        task = data.task(piece) if args.task == "auto" else args.task
        if args.target and len(args.target) > 1:
            raise InputError(f"An audit looks at one target, got {', '.join(args.target)}. Audit them one by one.")
        labels = data.labels(piece, None) if task == "classification" else data.targets(piece)[:, 0]
        found = audit(
            points,
            labels,
            groups=data.groups(piece),
            ids=data.names(piece) or range(1, len(labels) + 1),  # the row after the header is row 1
            task=task,
            rate=RATE if args.rate is None else args.rate,
            progress=not args.quiet,
        )
        make_folder(out)
        title = f"Audit of {pathlib.Path(args.data).name}"
        found.to_csv(out / "audit.csv")
        found.to_html(out / "report.html", shown=lambda row: data.shown(piece, row), title=title)
        if args.clean is not None:
            cleaned = _clean(args, data, piece, found)
    seconds = time.monotonic() - start

    say_found(data, len(found))
    worst = _say_findings(found)
    say("time", f"{seconds:.1f} s")
    written = [out / "audit.csv", out / "report.html"]
    if args.clean is not None:
        written.append(pathlib.Path(args.clean))
        say("clean", f"{args.clean}: {cleaned:,} rows")
    say("written", ", ".join(map(str, written)))
    line = say_next("python", "-m", "webbrowser", str(out / "report.html"))
    return {
        "rows": len(found),
        "skipped": data.skipped,
        "task": task,
        "issues": int(found.is_label_issue.sum()),
        "expected_rate": found.rate,
        "outliers": int(found.is_outlier_issue.sum()),
        "duplicates": len(found.near_duplicates),
        "duplicates_disagreeing": sum(group.disagrees for group in found.near_duplicates),
        "worst": worst,
        "written": written,
        "seconds": seconds,
        "next": line,
    }


def _say_findings(found: Any) -> list[dict[str, Any]]:
    """The summary, and the rows that are doubted most, with the reason."""
    from ..quality.report import row_name, summary_line, suspects
    from .reports import say

    say("labels", summary_line(found))
    disagreeing = sum(group.disagrees for group in found.near_duplicates)
    say(
        "others",
        f"{int(found.is_outlier_issue.sum())} outliers; {len(found.near_duplicates)} groups of near duplicates, "
        f"{disagreeing} with different labels",
    )
    listed = []
    for one in suspects(found, WORST, BECAUSE):
        reasons = ", ".join(f"{row_name(found, row)} ({label}) {weight:+.2f}" for row, weight, label in one.evidence)
        name = row_name(found, one.row)
        mark = "" if one.issue else " (no issue)"
        print(f"{name}: {one.given}, rather {one.suggested}; quality {one.quality:.3f}{mark}")
        print(f"    because of {reasons}")
        listed.append({"row": name, "given": one.given, "suggested": one.suggested, "quality": one.quality})
    return listed


def _clean(args: argparse.Namespace, data: Any, piece: Any, found: Any) -> int:
    """Write the rows with labels that are not doubted, and return how many there are."""
    import numpy as np

    from .writing import open_output

    drop = args.fix == "drop"
    keep = ~found.is_label_issue if drop else np.ones(len(found), dtype=bool)
    labels = found.given_label if drop else np.where(found.is_label_issue, found.suggested_label, found.given_label)
    with open_output(args.clean) as output:
        output.write(data.relabeled(piece, labels, keep))
    return int(keep.sum())
