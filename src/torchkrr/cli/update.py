"""`torchkrr update`: add examples to a head that `torchkrr transfer` wrote, or remove some."""

from __future__ import annotations

import argparse
import collections
from typing import Any

from .._files import writable
from ..errors import InputError
from .options import require_packages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("head", help="head.safetensors, written by transfer or update")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    add("--add", **repeated, metavar="FOLDER", help="a folder with a folder of images for each class (repeatable)")
    add("--remove", **repeated, metavar="NAME", help="an example, or several, such as 'cat/*' (repeatable)")
    add("--weights", metavar="FILE", help="of the backbone, if transfer was given a file")
    add("--out", required=True, metavar="FILE", help="where the changed head goes")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not args.add and not args.remove:
        raise InputError("There is nothing to do: give examples to --add or --remove.")
    require_packages("torchkrr update", ("sklearn", "safetensors"), extra="vision")
    from ..vision.heads import read_head, read_labeled, with_examples, without_examples, write_head

    writable(args.out, reads=[args.weights])  # a head may be changed in its place
    old = head = read_head(args.head)
    if args.remove:
        head = without_examples(head, args.remove)
    removed = len(old.items) - len(head.items)
    for path in args.add:
        images, labels = read_labeled(head, path, weights=args.weights, progress=not args.quiet)
        head = with_examples(head, images.features, labels, images.names)
    added = len(head.items) - len(old.items) + removed
    write_head(args.out, head)
    numbers = collections.Counter(head.layer.values.argmax(1).tolist())
    classes = {name: numbers[row] for row, name in enumerate(head.classes)}
    print(f"examples  {len(head.items)}: {added} added, {removed} removed")
    print("classes   " + ", ".join(f"{name} {count}" for name, count in classes.items()))
    print(f"head      {args.out}")
    return {"examples": len(head.items), "added": added, "removed": removed, "classes": classes, "out": args.out}
