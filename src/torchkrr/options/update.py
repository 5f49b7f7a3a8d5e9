"""`torchkrr update`: examples added to the head that `torchkrr transfer` wrote, and taken out of it."""

from __future__ import annotations

import argparse
import collections
import importlib
from typing import Any

from .._extras import import_extra
from .._files import writable
from ..errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("head", help="head.safetensors, written by transfer or update")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument(
        "--add", **repeated, metavar="FOLDER", help="a folder with a folder of images for each class (repeatable)"
    )
    parser.add_argument("--remove", **repeated, metavar="NAME", help="an example, or several, such as 'cat/*' (repeatable)")
    parser.add_argument("--weights", metavar="FILE", help="of the backbone, if transfer was given a file")
    parser.add_argument("--out", required=True, metavar="FILE", help="where the changed head goes")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not args.add and not args.remove:
        raise InputError("There is nothing to do: give examples to --add or --remove.")
    # Late: --help needs none of it.
    for package in ("sklearn", "safetensors"):
        import_extra(package, "torchkrr update", extra="vision")
    heads = importlib.import_module("..vision.heads", __package__)
    writable(args.out, reads=[args.weights])  # a head may be changed in its place
    old = head = heads.read_head(args.head)
    if args.remove:
        head = heads.without_examples(head, args.remove)
    removed = len(old.items) - len(head.items)
    for path in args.add:
        images, labels = heads.read_labeled(head, path, weights=args.weights, progress=not args.quiet)
        head = heads.with_examples(head, images.features, labels, images.names)
    added = len(head.items) - len(old.items) + removed
    heads.write_head(args.out, head)
    numbers = collections.Counter(head.layer.values.argmax(1).tolist())
    counts = {name: numbers[row] for row, name in enumerate(head.classes)}
    print(f"examples  {len(head.items)}: {added} added, {removed} removed")
    print("classes   " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"head      {args.out}")
    return {"examples": len(head.items), "added": added, "removed": removed, "classes": counts, "out": args.out}
