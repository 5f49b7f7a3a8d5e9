"""Labelled data from names, folders, archives and lists; what is wrong with them is said by name."""

import csv
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from torchkrr.errors import FileError, InputError, MissingExtraError
from torchkrr.vision import datasets
from torchkrr.vision.datasets import fixed_parts, open_dataset, picture_files
from torchkrr.vision.images import FeatureSet, ImageArray

DIGITS = load_digits()
PIXELS = (DIGITS.images[:60] * 15.9375).astype(np.uint8)
LABELS = DIGITS.target[:60] % 3


def write_folder(root, *, names=("one", "two", "three"), pixels=PIXELS, labels=LABELS):
    for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = root / names[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{row:03}.png")
    return root


def write_archive(path, **arrays):
    np.savez(path, **arrays)
    return path


def write_manifest(path, rows, columns=("path", "label")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_digits_are_divided_by_class_and_the_same_each_time():
    split = open_dataset("digits")
    assert torch.equal(split.train.labels, open_dataset("digits").train.labels)
    shares = split.test.labels.bincount() / (split.train.labels.bincount() + split.test.labels.bincount())
    assert float((shares - 0.2).abs().max()) < 0.01
    pixels = np.stack([image[..., 0] for part in split for image in part.read(range(len(part)))])
    original = np.round(DIGITS.images * (255 / 16)).astype(np.uint8)
    assert sorted(image.tobytes() for image in pixels) == sorted(image.tobytes() for image in original)  # none twice
    other = open_dataset("digits", test_share=0.5, seed=1)
    assert abs(len(other.test) - len(other.train)) <= 10
    assert split.train.describe(17) == "image 17 of the training part"


def test_a_folder_of_class_folders(tmp_path):
    root = write_folder(tmp_path / "fruit")
    (root / "one" / "notes.txt").write_text("no picture")
    (root / "one" / ".hidden.png").write_text("no picture")
    (root / ".git").mkdir()
    split = open_dataset(str(root))
    assert split.train.name == "fruit"
    assert split.train.classes == ["one", "three", "two"]
    assert len(split.train) + len(split.test) == 60
    assert not set(split.train.paths) & set(split.test.paths)
    for part in split:
        for row in range(len(part)):
            where = part.describe(row)
            assert where.split("/")[0] == part.classes[part.labels[row]]
            number = int(where.split("/")[1][:3])
            assert np.array_equal(part.read([row])[0], np.repeat(PIXELS[number][..., None], 3, axis=2))


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_a_folder_with_parts(tmp_path, test_name):
    write_folder(tmp_path / "train", pixels=PIXELS[:40], labels=LABELS[:40])
    write_folder(tmp_path / test_name, pixels=PIXELS[40:], labels=LABELS[40:])
    split = open_dataset(str(tmp_path))
    assert (len(split.train), len(split.test)) == (40, 20)
    assert split.train.describe(0).startswith("train/")
    assert split.test.describe(0).startswith(test_name)


def test_a_list_of_files(tmp_path):
    write_folder(tmp_path / "pictures")
    paths = sorted((tmp_path / "pictures").rglob("*.png"))
    rows = [
        (path.relative_to(tmp_path), path.parent.name, "test" if row % 4 == 0 else "train") for row, path in enumerate(paths)
    ]
    split = open_dataset(str(write_manifest(tmp_path / "list.csv", rows, ("path", "label", "split"))))
    assert (len(split.train), len(split.test)) == (45, 15)
    assert split.test.describe(0) == str(rows[0][0])
    divided = open_dataset(str(write_manifest(tmp_path / "other.csv", [row[:2] for row in rows])), test_share=0.25)
    assert (len(divided.train), len(divided.test)) == (45, 15)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS[..., None], PIXELS),
        (PIXELS[:, None].repeat(3, axis=1), PIXELS),
        (PIXELS / 255.0, PIXELS),
        (PIXELS.astype(np.float32), PIXELS),
        (PIXELS.astype(np.int64), PIXELS),
    ],
)
def test_pictures_in_an_archive_whatever_their_layout(tmp_path, images, expected):
    path = write_archive(
        tmp_path / "a.npz", images_train=images, labels_train=LABELS, images_test=images, labels_test=LABELS
    )
    split = open_dataset(str(path))
    assert np.array_equal(np.stack(split.test.read(range(60)))[..., 1], expected)
    assert split.train.read([0])[0].shape == (8, 8, 3)


def test_features_in_an_archive(tmp_path):
    features = np.random.default_rng(0).normal(size=(60, 5))
    names = np.array(["red", "green", "blue"])
    split = open_dataset(str(write_archive(tmp_path / "f.npz", features=features, labels=LABELS, classes=names)))
    assert isinstance(split.train, FeatureSet)
    assert split.train.features.dtype == torch.float32
    assert split.train.classes == ["red", "green", "blue"]
    assert len(split.train.labels) + len(split.test.labels) == 60
    words = open_dataset(str(write_archive(tmp_path / "w.npz", x=features, y=names[LABELS])))
    assert words.train.classes == ["blue", "green", "red"]
    for part in words:
        for row, label in zip(part.features, part.labels, strict=True):
            found = int((torch.from_numpy(features).float() == row).all(1).nonzero())
            assert part.classes[label] == names[LABELS[found]]
    assert split.test.describe(3) == "row 3 of the test part"


def test_fingerprints_follow_contents_alone(tmp_path):
    def archive(name, **arrays):
        return open_dataset(str(write_archive(tmp_path / f"{name}.npz", **arrays))).train.fingerprint

    base = {"images": PIXELS, "labels": LABELS}
    changed = PIXELS.copy()
    changed[59, 3, 3] ^= 1
    swapped = LABELS.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    first = archive("a", **base)
    assert first == archive("b", **base)
    different = [archive("a", images=changed, labels=LABELS), archive("a", images=PIXELS, labels=swapped)]
    different += [
        archive("a", **base, classes=np.array(["x", "y", "z"])),
        archive("a", images=PIXELS[:, ::-1], labels=LABELS),
    ]
    root = write_folder(tmp_path / "folder")
    different.append(open_dataset(str(root)).train.fingerprint)
    copied = write_folder(tmp_path / "copy")
    assert open_dataset(str(copied)).train.fingerprint == different[-1]
    path = copied / open_dataset(str(copied)).train.paths[0]
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    different.append(open_dataset(str(copied)).train.fingerprint)
    assert len({first, *different}) == len(different) + 1


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda _: b"", lambda _: b"no picture", lambda b: b[:20]])
def test_a_broken_picture_is_named(tmp_path, damage):
    root = write_folder(tmp_path)
    path = root / "two" / sorted(entry.name for entry in (root / "two").iterdir())[0]
    path.write_bytes(damage(path.read_bytes()))
    parts = open_dataset(str(root))
    with pytest.raises(FileError, match=f"The image .*two/{path.name} cannot be read"):
        [part.read(range(len(part))) for part in parts]


def broken_folder(tmp_path, what):
    if what == "empty class":
        (write_folder(tmp_path) / "four").mkdir()
    elif what == "one class":
        write_folder(tmp_path, labels=LABELS * 0)
    elif what == "loose":
        Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    elif what == "one member":
        write_folder(tmp_path, pixels=PIXELS[:4], labels=np.array([0, 0, 1, 2]))
    elif what == "new class in test":
        write_folder(tmp_path / "train", labels=LABELS % 2)
        write_folder(tmp_path / "test")
    return tmp_path


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("empty class", "The class folder .*four holds no images"),
        ("one class", "only one class, 'one'"),
        ("loose", "its images lie in it directly"),
        ("nothing", "it has no folders"),
        ("one member", "The class 'three' of .* has 1 member, too few"),
        ("new class in test", "test part of .* has classes that the training part has not: 'three'"),
    ],
)
def test_a_folder_that_cannot_be_used_is_an_error(tmp_path, what, words):
    with pytest.raises(FileError, match=words):
        open_dataset(str(broken_folder(tmp_path, what)))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"pixels": PIXELS}, "has no array of a known name, only: pixels"),
        ({"images": PIXELS}, "has no array 'labels'"),
        ({"labels": LABELS}, "neither features nor images"),
        ({"images": PIXELS, "features": PIXELS[:, 0], "labels": LABELS}, "both 'features' and 'images'"),
        ({"images": PIXELS, "labels": LABELS[:9]}, "labels of shape"),
        ({"images": PIXELS, "labels": LABELS * 0}, "only one class"),
        ({"images": PIXELS, "labels": LABELS * 0.5}, "Expected integers or words"),
        ({"images": PIXELS - 300.0, "labels": LABELS}, "Expected uint8"),
        ({"images": PIXELS[..., None].repeat(2, 3), "labels": LABELS}, "images of shape"),
        ({"features": PIXELS[:, 0] * np.nan, "labels": LABELS}, "must be finite"),
        ({"images_train": PIXELS, "labels_train": LABELS}, "part is not clear"),
        ({"features": PIXELS[:, 0], "labels": LABELS, "classes": np.array(["a", "b"])}, "labels from 0 to 2, but 2 names"),
        (
            {
                "features_train": PIXELS[:, 0],
                "labels_train": LABELS,
                "features_test": PIXELS[:, 0, :3],
                "labels_test": LABELS,
            },
            "a test part of shape",
        ),
        ({"images": np.array([None] * 60), "labels": LABELS}, "cannot be read as an .npz file"),
    ],
)
def test_an_archive_that_cannot_be_used_is_an_error(tmp_path, arrays, words):
    path = write_archive(tmp_path / "bad.npz", **arrays)
    with pytest.raises(FileError, match=words) as caught:
        open_dataset(str(path))
    assert "bad.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ([], ("path", "label"), "a header but no rows"),
        ([("a.png", "x")], ("file", "label"), "its columns are: file, label"),
        ([("gone.png", "x")], ("path", "label"), "Line 2 of .* does not exist: .*gone.png"),
        ([("a.png", "")], ("path", "label"), "Line 2 of .* has no label"),
        ([("a.png", "x", "dev")], ("path", "label", "split"), "has the split 'dev'"),
        ([("a.png", "x"), ("a.png", "x")], ("path", "label"), "only one class, 'x'"),
        ([("a.png", "x", "train"), ("a.png", "y", "train")], ("path", "label", "split"), "test part of .* is empty"),
    ],
)
def test_a_list_that_cannot_be_used_is_an_error(tmp_path, rows, columns, words):
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    with pytest.raises(FileError, match=words):
        open_dataset(str(write_manifest(tmp_path / "list.csv", rows, columns)))


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("picture", "'pictures'"), ("Digit", "'digits'"), ("CIFAR-10", "'cifar10'"), ("pets", None), ("no/where", None)],
)
def test_a_name_that_is_almost_right_is_answered_with_the_right_one(tmp_path, monkeypatch, asked, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    with pytest.raises(FileError) as found:
        open_dataset(asked)
    assert (f"Did you mean {hint}?" in str(found.value)) if hint else "Did you" not in str(found.value)
    with pytest.raises(FileError, match=f"Did you mean '{tmp_path}/pictures'"):
        open_dataset(str(tmp_path / "pictrues"))


def test_other_paths_and_shares_are_errors(tmp_path):
    with pytest.raises(FileError, match="neither a name known here"):
        open_dataset(str(tmp_path / "nowhere"))
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileError, match="must be a folder of class folders"):
        open_dataset(str(tmp_path / "a.txt"))
    (tmp_path / "b.npz").write_text("x")
    with pytest.raises(FileError, match=r"cannot be read as an \.npz file"):
        open_dataset(str(tmp_path / "b.npz"))
    with pytest.raises(InputError, match="test_share"):
        open_dataset("digits", test_share=1.0)


@pytest.fixture
def small_cifar10(tmp_path, monkeypatch):
    """The home folder is a new one, and CIFAR-10 has six pictures a part."""
    monkeypatch.setattr(datasets.pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(datasets, "CIFAR10_SIZES", {"x_train": (6, 32, 32, 3), "x_test": (6, 32, 32, 3)})
    data = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    return types.SimpleNamespace(
        path=tmp_path / ".cache" / "torchkrr" / "cifar10.npz", data=data, targets=[0, 1, 2, 3, 4, 9]
    )


def test_cifar10_is_read_from_the_cache(small_cifar10):
    small_cifar10.path.parent.mkdir(parents=True)
    x, y = small_cifar10.data, np.array(small_cifar10.targets)
    np.savez(small_cifar10.path, x_train=x, y_train=y, x_test=x, y_test=y)
    split = open_dataset("cifar10")
    assert isinstance(split.train, ImageArray)
    assert split.train.name == "cifar10"
    assert split.train.classes[-1] == "truck"
    assert split.train.labels.tolist() == small_cifar10.targets
    np.savez(small_cifar10.path, x_train=x[:3], y_train=y[:3], x_test=x, y_test=y % 3)
    with pytest.raises(FileError, match="is not CIFAR-10"):
        open_dataset("cifar10")


def test_without_torchvision_cifar10_says_that_it_needs_it(small_cifar10, monkeypatch):
    for name in ("torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"The dataset cifar10 needs torchvision.*torchkrr\[vision\]"):
        open_dataset("cifar10")
    assert not small_cifar10.path.exists()


def test_cifar10_is_downloaded_where_it_is_not(small_cifar10, monkeypatch):
    def broken(*_args, **_choices):
        raise OSError("no route to host")

    monkeypatch.setattr(datasets, "import_torchvision", lambda *_: types.SimpleNamespace(CIFAR10=broken))
    with pytest.raises(FileError, match=r"downloading it failed: no route to host. Put it there"):
        open_dataset("cifar10")
    assert not small_cifar10.path.exists()
    found = types.SimpleNamespace(CIFAR10=lambda *_args, **_choices: small_cifar10)
    monkeypatch.setattr(datasets, "import_torchvision", lambda *_: found)
    assert np.array_equal(open_dataset("cifar10").test.read([5])[0], small_cifar10.data[5])
    assert [entry.name for entry in small_cifar10.path.parent.iterdir()] == ["cifar10.npz"]


def test_parts_that_are_fixed_are_found(tmp_path):
    (tmp_path / "train").mkdir()
    assert fixed_parts(tmp_path) is None
    (tmp_path / "validation").mkdir()
    assert fixed_parts(tmp_path) == ("train", "validation")
    assert fixed_parts(tmp_path / "nowhere") is None


def test_files_and_folders_of_images_are_listed(tmp_path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("a/2.png", "a/1.JPG", "a/deep/3.webp", "a/notes.txt", "b.png"):
        (tmp_path / name).touch()
    found = [file.relative_to(tmp_path).as_posix() for file in picture_files([str(tmp_path / "b.png"), str(tmp_path / "a")])]
    assert found == ["b.png", "a/1.JPG", "a/2.png", "a/deep/3.webp"]
    with pytest.raises(FileError, match="There is no image"):
        picture_files([str(tmp_path / "c.png")])
    with pytest.raises(FileError, match="has no images"):
        picture_files([str(tmp_path / "empty")])
