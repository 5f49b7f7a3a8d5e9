"""`torchkrr classify`: images by the head that `torchkrr transfer` wrote."""

from __future__ import annotations

import argparse
import csv
import importlib
from typing import Any

from .._extras import import_extra
from .._files import replacing, writable
from . import kinds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("head", help="head.safetensors, written by transfer")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="images, or folders of them; .npz for heads on features")
    parser.add_argument("--weights", metavar="FILE", help="of the backbone, if transfer was given a file")
    parser.add_argument(
        "--explain", type=kinds.count, default=3, metavar="K", help="the K training examples of most weight (3)"
    )
    parser.add_argument("--out", metavar="FILE", help="a CSV file for the predictions")


def run(args: argparse.Namespace) -> dict[str, Any]:
    # Late: --help needs none of it.
    for package in ("sklearn", "safetensors"):
        import_extra(package, "torchkrr classify", extra="vision")
    heads = importlib.import_module("..vision.heads", __package__)
    if args.out is not None:
        writable(args.out, reads=[args.head, *args.images, args.weights])
    head = heads.read_head(args.head)
    images = heads.read_images(head, args.images, weights=args.weights, progress=not args.quiet)
    found = heads.classify(head, images.features, explained=args.explain)
    typical = heads.typicality(head, found)
    rows = [_plain(*one, head.classes) for one in zip(images.names, found, typical, strict=True)]
    if args.out is not None:
        _write_csv(args.out, rows)
        print(f"{len(rows)} predictions: {args.out}")
    else:
        print("\n".join(_lines(row) for row in rows))
    return {"predictions": rows, "out": args.out}


def _plain(name: str, found: Any, typicality: float, classes: list[str]) -> dict[str, Any]:
    return {
        "image": name,
        "prediction": found.label,
        "probability": found.probability,
        "error_indicator": found.indicator,
        "typicality": typicality,
        "because": [{"item": one.item, "label": one.label, "weight": one.weight} for one in found.because],
        "probabilities": dict(zip(classes, found.probabilities.tolist(), strict=True)),
    }


def _lines(row: dict[str, Any]) -> str:
    because = ", ".join(f"{one['item']} ({one['label']}) {one['weight']:+.2f}" for one in row["because"])
    return (
        f"{row['image']}: {row['prediction']}  {100 * row['probability']:.1f} %  "
        f"error indicator {row['error_indicator']:.2f}, typicality {100 * row['typicality']:.0f} %\n    because of {because}"
    )


def _write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    names = [f"because_{number}" for number in range(1, 1 + len(rows[0]["because"]))]
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = [column for name in names for column in (name, f"{name}_label", f"{name}_weight")]
        writer.writerow(["image", "prediction", "probability", "error_indicator", "typicality", *columns])
        for row in rows:
            because = [value for one in row["because"] for value in (one["item"], one["label"], one["weight"])]
            numbers = [row["probability"], row["error_indicator"], row["typicality"]]
            writer.writerow([row["image"], row["prediction"], *numbers, *because])
