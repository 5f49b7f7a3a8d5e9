"""Types of options, and the options that several commands share.

What a type cannot read is wrong usage: argparse prints its message and exits with 2.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._extras import import_extra
from ..errors import InputError, KernelRidgeError, KernelRidgeWarning

POOLINGS = ("mean", "max", "class_token", "flatten")  # those of `models.features`, which imports torch
CONFIG_FIELDS = (  # of both TransferConfig and ProbeConfig
    *("dataset", "test_share", "backbone", "weights", "random_weights", "size", "pooling", "device", "batch_size"),
    *("seeds", "out", "cache", "strict"),
)


def number(kind: type[float], accepts: Callable[[float], bool], what: str, *, auto: bool = False) -> Callable[[str], Any]:
    """A type of option: a number that `accepts` holds for, which errors call `what`; or, if allowed, the word `auto`.

    Example:
        >>> number(int, lambda value: value >= 1, "positive", auto=True)("auto")
        'auto'
    """

    def read(text: str) -> float | str:
        if auto and text == "auto":
            return text
        try:
            if accepts(kind(text)):
                return kind(text)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"must be {'auto or ' * auto}{what}, got {text!r}")

    return read


# Far more threads than cores are slow, and too many end the process.
MOST_THREADS = 16 * max(4, os.cpu_count() or 1)
threads = number(int, lambda value: 1 <= value <= MOST_THREADS, f"a whole number from 1 to {MOST_THREADS}")
count = number(int, lambda value: value >= 1, "a whole number of at least 1")
share = number(float, lambda value: 0 < value < 1, "between 0 and 1, such as 0.9")


def names(text: str, what: str = "names") -> list[str]:
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must be different {what}, separated by commas, got {text!r}")
    return found


def delimiter(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1 or not text.isascii():
        raise argparse.ArgumentTypeError(f"must be one character or tab, got {text!r}")
    return text


def budgets(text: str) -> tuple[int | None, ...]:
    """Numbers of labels; `None` is all."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == "all" or (word.isdecimal() and int(word) >= 2) for word in words):
        raise argparse.ArgumentTypeError(f"must be numbers of labels of at least 2, or all, with commas, got {text!r}")
    return tuple(None if word == "all" else int(word) for word in words)


def readout_names(text: str) -> tuple[str, ...]:
    """Known readouts, each once."""
    from ..vision.readouts import readout_named

    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    try:
        for name in found:
            readout_named(name)
    except KernelRidgeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def add_delimiter(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--delimiter", type=delimiter, metavar="C", help="of a CSV file: one character, or tab")


def add_data_and_model(parser: argparse.ArgumentParser, what: str) -> argparse.Action:
    """The action of the model."""
    parser.add_argument("data", nargs="+", metavar="DATA", help=what)
    return parser.add_argument("model", metavar="MODEL", help="a file written by fit, transfer or update")


STORE = "postgresql://USER@HOST/DATABASE#TABLE, or a folder of LanceDB: FOLDER#TABLE"


def add_store_instead(parser: argparse.ArgumentParser, model: argparse.Action) -> None:
    """The option that names a store, where no model is named then."""

    class Store(argparse.Action):
        def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
            namespace.store, model.required = values, False

    parser.add_argument("--store", metavar="URI", action=Store, help=f"instead of MODEL, where fit put it: {STORE}")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that read rows part by part, for a fitted model."""
    parser.add_argument(
        "--chunk-rows", type=count, metavar="N", help="rows in memory at a time (10000; 256 pictures or texts)"
    )
    add_timeout(parser)
    add_delimiter(parser)
    add_pictures(parser.add_argument_group("pictures"))
    parser.add_argument("--encoder", metavar="PATH", help="of text, if it is not where it was in the fit")


def add_training_data(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that read all rows with their labels, of whatever kind."""
    parser.add_argument(
        "data", metavar="DATA", help="labeled rows: .csv, .parquet, .npz, .safetensors, or a folder of class folders"
    )
    table = parser.add_argument_group("tables")
    table.add_argument("--target", type=names, metavar="A,B", help="column to predict, or several")
    table.add_argument(
        "--task", choices=("auto", "regression", "classification"), default="auto", help="auto: by the target"
    )
    table.add_argument("--categorical", type=names, default=[], metavar="A,B", help="columns of numbers that are categories")
    table.add_argument("--ignore", type=names, default=[], metavar="A,B", help="columns to leave out")
    table.add_argument("--sample-weight", metavar="A", help="column with the weight of each row")
    table.add_argument("--id", metavar="A", help="column with the name of each row, by which others refer to it")
    table.add_argument("--groups", metavar="A", help="column that says which rows belong together and are left out together")
    table.add_argument("--text", metavar="A", help="column of text to predict from, alone")
    table.add_argument("--encoder", metavar="NAME|PATH", help="sentence encoder of the text: of sentence-transformers")
    add_delimiter(table)
    network = add_network(parser, otherwise="for a folder of pictures")
    network.add_argument("--layer", metavar="NAME", help="where features are taken from (before its classifier)")
    network.add_argument("--cache", metavar="DIR", help="keep the features of pictures (they are removed at the end)")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """The option of the commands that torchrun may start."""
    parser.add_argument("--timeout", type=count, default=60, metavar="S", help="of torchrun: wait for a process (60 s)")


def add_frozen_network(
    parser: argparse.ArgumentParser, *, readouts: str, out: str
) -> tuple[argparse._ArgumentGroup, argparse._ArgumentGroup, argparse._ArgumentGroup]:
    """Options of the commands that compare readouts of a frozen network, in the groups data, network and readouts."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "dataset",
        nargs="?",
        metavar="DATA",
        help="digits, cifar10, or the path of a folder of class folders, an .npz or a .csv file (digits)",
    )
    data.add_argument("--dataset", dest="former_dataset", metavar="PATH", help=argparse.SUPPRESS)
    data.add_argument("--test-share", type=share, default=0.2, metavar="X", help="of data without a test part (0.2)")
    network = add_network(parser, otherwise="digits for digits, else resnet18")
    group = parser.add_argument_group("readouts")
    group.add_argument("--seeds", type=count, default=5, metavar="N", help="subsamples of each number below all (5)")
    group.add_argument("--readouts", type=readout_names, metavar="A,B", help=f"some of the readouts only ({readouts})")
    parser.add_argument("--out", default=out, metavar="DIR", help=f"results ({out})")
    parser.add_argument("--cache", metavar="DIR", help="features (DIR/features)")
    return data, network, group


def add_network(parser: argparse.ArgumentParser, *, otherwise: str) -> argparse._ArgumentGroup:
    """Options of the commands that open a network by its name."""
    network = parser.add_argument_group("network")
    network.add_argument(
        "--backbone", metavar="NAME", help=f"digits, identity (pixels), or a torchvision or timm model ({otherwise})"
    )
    network.add_argument("--random-weights", action="store_true", help="untrained, to try things out")
    network.add_argument("--size", type=count, metavar="N", help="pixels of the images it is given")
    network.add_argument("--pooling", choices=POOLINGS, default="mean", help="maps and tokens to vectors (mean)")
    add_pictures(network)
    return network


def add_pictures(parser: argparse._ActionsContainer) -> None:
    """Options of the commands that read pictures."""
    parser.add_argument("--weights", metavar="FILE", help="of the network, instead of its own pretrained ones")
    parser.add_argument("--device", default="cpu", help="of the network (cpu)")
    parser.add_argument("--batch-size", type=count, default=64, metavar="N", help="images at a time (64)")
    parser.add_argument("--strict", action="store_true", help="stop at a picture that cannot be read")


def config_fields(args: argparse.Namespace, *more: str) -> dict[str, Any]:
    """The fields of a configuration: the shared ones, those named, and the readouts if some were chosen."""
    fields = {name: getattr(args, name) for name in (*CONFIG_FIELDS, *more)}
    return fields if args.readouts is None else {**fields, "readouts": args.readouts}


def report(outcome: Any, tables: str, written: Sequence[str], *more: str) -> dict[str, Any]:
    """Print what a comparison of readouts found, and return it for scripts."""
    paths = [outcome.out / name for name in written]
    print(outcome.inputs.text)
    if outcome.reused:
        print(f"{outcome.reused} of {len(outcome.records)} results were there already")
    print("\n".join((tables, *more, f"wrote {', '.join(map(str, paths))}")))
    return {
        "data": outcome.inputs.text,
        "results": [cell._asdict() for cell in outcome.cells],
        "records": len(outcome.records),
        "reused": outcome.reused,
        "written": paths,
    }


def require_packages(command: str, modules: Sequence[str], *, extra: str) -> None:
    """Import, before any work, all that a command needs to its end; the error names an extra that is enough."""
    for module in modules:
        import_extra(module, command, extra=extra)


def require_table_packages() -> None:
    require_packages("The command line", ("sklearn", "pandas", "pyarrow", "safetensors"), extra="cli")


def require_frozen_packages(command: str, args: argparse.Namespace) -> None:
    if args.former_dataset is not None:
        instead = f"{command} {shlex.quote(args.former_dataset)}"
        if args.dataset is not None:
            raise InputError(f"The data is given twice. Leave out --dataset: {instead}.")
        warn(f"--dataset will go in the next version. The data comes first now: {instead}.")
        args.dataset = args.former_dataset
    args.dataset = args.dataset or "digits"
    extra = "demo" if (args.backbone or args.dataset) == "digits" else "vision"
    require_packages(command, ("sklearn", "safetensors", "matplotlib"), extra=extra)


def warn(text: str) -> None:
    warnings.warn(text, KernelRidgeWarning, stacklevel=3)


@contextlib.contextmanager
def resumable(out: Any) -> Iterator[None]:
    """An interrupt inside says that nothing in the folder `out` is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What is done is kept in {out}; the same command goes on from there.") from None
