"""`torchkrr classify`: images, with a head that `torchkrr transfer` wrote."""

from __future__ import annotations

import argparse
import csv
from typing import Any

from .._files import replacing, writable
from .options import count, require_packages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("head", help="head.safetensors, written by transfer")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="images, or folders of them; .npz for heads on features")
    parser.add_argument("--weights", metavar="FILE", help="of the backbone, if transfer was given a file")
    parser.add_argument("--explain", type=count, default=3, metavar="K", help="the K training examples of most weight (3)")
    parser.add_argument("--out", metavar="FILE", help="a CSV file for the predictions")


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_packages("torchkrr classify", ("sklearn", "safetensors"), extra="vision")
    from ..vision.heads import classify, read_head, read_images, typicality

    if args.out is not None:
        writable(args.out, reads=[args.head, *args.images, args.weights])
    head = read_head(args.head)
    images = read_images(head, args.images, weights=args.weights, progress=not args.quiet)
    predictions = classify(head, images.features, explained=args.explain)
    rows: list[dict[str, Any]] = [
        {
            "image": name,
            "prediction": prediction.label,
            "probability": prediction.probability,
            "error_indicator": prediction.indicator,
            "typicality": typical,
            "because": [{"item": one.item, "label": one.label, "weight": one.weight} for one in prediction.because],
            "probabilities": dict(zip(head.classes, prediction.probabilities.tolist(), strict=True)),
        }
        for name, prediction, typical in zip(images.names, predictions, typicality(head, predictions), strict=True)
    ]
    if args.out is not None:
        _write_csv(args.out, rows)
        print(f"{len(rows)} predictions: {args.out}")
    else:
        for row in rows:
            because = ", ".join(f"{one['item']} ({one['label']}) {one['weight']:+.2f}" for one in row["because"])
            shares = f"error indicator {row['error_indicator']:.2f}, typicality {100 * row['typicality']:.0f} %"
            print(
                f"{row['image']}: {row['prediction']}  {100 * row['probability']:.1f} %  {shares}\n    because of {because}"
            )
    return {"predictions": rows, "out": args.out}


def _write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    flat = []
    for row in rows:
        because = {
            f"because_{number}{end}": one[key]
            for number, one in enumerate(row["because"], start=1)
            for end, key in (("", "item"), ("_label", "label"), ("_weight", "weight"))
        }
        flat.append({key: row[key] for key in row if key not in ("because", "probabilities")} | because)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
