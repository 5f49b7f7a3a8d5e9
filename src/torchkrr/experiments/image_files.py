"""Pictures in files: a folder for each class, or a list in a CSV file."""

from __future__ import annotations

import csv
import pathlib

from torch import Tensor

from ..errors import FileError
from .pictures import FilePictures, Split
from .splitting import check_classes, check_parts, encode, stratified_split

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif"}
TEST_FOLDERS = ("test", "val", "valid", "validation")
PARTS = ("train", "test")


def open_folder(root: pathlib.Path, *, test_share: float, seed: int) -> Split:
    """A folder with one folder of pictures for each class, or with such folders below `train` and `test`.

    Files that are no pictures by their ending are passed over, and so are names that begin with a dot.
    """
    folders = _folders(root)
    test = next((name for name in TEST_FOLDERS if name in folders), None)
    if "train" in folders and test is not None:
        train_paths, train_labels = _by_class(root, root / "train")
        test_paths, test_labels = _by_class(root, root / test)
        classes, rows = encode(train_labels + test_labels)
        check_classes(f"The folder {root / 'train'}", sorted(set(train_labels)))
        parts = rows[: len(train_labels)], rows[len(train_labels) :]
        check_parts(str(root), classes, *parts)
        return Split(*(_pictures(root, classes, *part) for part in zip(parts, (train_paths, test_paths), strict=True)))
    paths, labels = _by_class(root, root)
    classes, rows = encode(labels)
    check_classes(f"The folder {root}", classes)
    return _divided(root, root.name, classes, rows, paths, test_share=test_share, seed=seed)


def open_manifest(path: pathlib.Path, *, test_share: float, seed: int) -> Split:
    """A CSV file with columns `path` (relative to the file), `label`, and `split` (`train` or `test`) if one is fixed."""
    paths, labels, parts = _lines(path)
    classes, rows = encode(labels)
    check_classes(str(path), classes)
    root = path.parent
    if not parts:
        return _divided(root, path.stem, classes, rows, paths, test_share=test_share, seed=seed, where=str(path))
    chosen = [[row for row, part in enumerate(parts) if part == name] for name in PARTS]
    check_parts(str(path), classes, *(rows[part] for part in chosen))
    return Split(*(_pictures(root, classes, rows[part], [paths[row] for row in part], path.stem) for part in chosen))


def pictures_by_class(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """The pictures of a folder with one folder for each class, relative to it, and the class of each."""
    if not folder.is_dir():
        raise FileError(f"{folder} must be a folder with one folder of pictures for each class; it is no folder.")
    return _by_class(folder, folder)


def _divided(
    root: pathlib.Path,
    name: str,
    classes: list[str],
    labels: Tensor,
    paths: list[str],
    *,
    test_share: float,
    seed: int,
    where: str | None = None,
) -> Split:
    parts = stratified_split(where or str(root), labels, classes, test_share=test_share, seed=seed)
    return Split(*(_pictures(root, classes, labels[part], [paths[row] for row in part.tolist()], name) for part in parts))


def _pictures(
    root: pathlib.Path, classes: list[str], labels: Tensor, paths: list[str], name: str | None = None
) -> FilePictures:
    return FilePictures(name or root.name, classes, labels, root, paths)


def _by_class(root: pathlib.Path, folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """Paths relative to `root`, and the class of each: the name of its folder."""
    paths: list[str] = []
    labels: list[str] = []
    names = _folders(folder)
    if not names:
        loose = any(entry.suffix.lower() in ENDINGS for entry in folder.iterdir())
        found = "its pictures lie in it directly" if loose else "it has no folders"
        raise FileError(
            f"{folder} must hold one folder of pictures for each class, but {found}. "
            "For labels from a list, give a CSV file with the columns path and label."
        )
    for name in names:
        found_here = sorted(
            entry.relative_to(root).as_posix()
            for entry in (folder / name).rglob("*")
            if entry.suffix.lower() in ENDINGS and not entry.name.startswith(".") and entry.is_file()
        )
        if not found_here:
            raise FileError(
                f"The class folder {folder / name} holds no pictures ({', '.join(sorted(ENDINGS))}). Add some, or remove it."
            )
        paths += found_here
        labels += [name] * len(found_here)
    return paths, labels


def _folders(folder: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__")))


def _lines(path: pathlib.Path) -> tuple[list[str], list[str], list[str]]:
    """Columns path, label and split (empty if there is none) of a manifest."""
    paths: list[str] = []
    labels: list[str] = []
    parts: list[str] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            columns = [name.strip() for name in reader.fieldnames or []]
            if not {"path", "label"} <= set(columns):
                raise FileError(
                    f"{path} must have the columns path and label (and split, if the test part is fixed), "
                    f"its columns are: {', '.join(columns) or 'none'}."
                )
            reader.fieldnames = columns
            for line in reader:
                entry = {name: (line[name] or "").strip() for name in columns}
                where = f"Line {reader.line_num} of {path}"
                if not entry["path"] or not entry["label"]:
                    raise FileError(f"{where} has no {'path' if not entry['path'] else 'label'}.")
                if not (path.parent / entry["path"]).is_file():
                    raise FileError(f"{where} names a picture that does not exist: {path.parent / entry['path']}.")
                paths.append(entry["path"])
                labels.append(entry["label"])
                if "split" in columns:
                    if entry["split"].lower() not in PARTS:
                        raise FileError(f"{where} has the split {entry['split']!r}. It must be train or test.")
                    parts.append(entry["split"].lower())
    except UnicodeDecodeError:
        raise FileError(f"{path} is not encoded in UTF-8. Convert it first: iconv -f latin1 -t utf8 {path}.") from None
    except csv.Error as error:
        raise FileError(f"{path} cannot be read as a CSV file: {error}.") from error
    if not paths:
        raise FileError(f"{path} has a header but no rows.")
    return paths, labels, parts
