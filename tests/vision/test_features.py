"""Feature extraction: right numbers, once; nothing stale; whatever stops it, the next run ends with the same bits."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import numpy as np
import pytest
import torch
from tests.vision.labeled import write_folder
from torch import nn

from torchkrr.errors import FileError, InputError
from torchkrr.vision.backbones import open_backbone, wrap_backbone
from torchkrr.vision.datasets import images_by_class
from torchkrr.vision.features import extract, is_whole, read_inputs
from torchkrr.vision.images import ImageArray, ImageFiles, ImageSubset
from torchkrr.vision.sampling import encode_labels
from torchkrr.vision.transfer import TransferConfig

COUNT, BATCH = 53, 8
PROGRAM = """
    import sys, time
    import numpy as np
    import torch
    from torch import nn
    from torchkrr.vision.backbones import wrap_backbone
    from torchkrr.vision.features import extract
    from torchkrr.vision.images import ImageArray

    def backbone(wait):
        torch.manual_seed(3)
        network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5))
        network.register_forward_hook(lambda *_: time.sleep(wait))
        return wrap_backbone(network, name="small", size=8)

    def pictures():
        pixels = np.random.default_rng(0).integers(0, 256, (53, 8, 8, 3), dtype=np.uint8)
        return ImageArray("noise", ["a", "b"], torch.arange(53) % 2, pixels, part="training")
"""
names: dict = {}
exec(textwrap.dedent(PROGRAM), names)
make_backbone, make_pictures = names["backbone"], names["pictures"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    found = extract(make_backbone(0), make_pictures(), cache=tmp_path_factory.mktemp("whole"), batch_size=BATCH)
    return found.features.clone()


def counted(backbone):
    """The backbone, and the numbers of pictures that it will be called with."""
    calls = []
    backbone.model.register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    return calls


def files(folder):
    return sorted(entry.suffix for entry in folder.iterdir())


def test_features_are_those_of_the_network(tmp_path, expected):
    backbone, pictures = make_backbone(0), make_pictures()
    with torch.inference_mode():
        direct = backbone.model(backbone.prepare(pictures.read(range(COUNT))))
    torch.testing.assert_close(expected, direct)
    assert expected.shape == (COUNT, backbone.num_features)


def test_the_second_time_nothing_is_computed(tmp_path, expected):
    backbone = make_backbone(0)
    first = extract(backbone, make_pictures(), cache=tmp_path / "new" / "folder", batch_size=BATCH)
    calls = counted(backbone)
    again = extract(backbone, make_pictures(), cache=tmp_path / "new" / "folder", batch_size=3)
    assert (first.reused, again.reused, calls) == (False, True, [])
    assert again.seconds == first.seconds > 0
    assert torch.equal(again.features, expected)
    assert files(tmp_path / "new" / "folder") == [".f32", ".jsonl"]
    about = json.loads(next((tmp_path / "new" / "folder").glob("*.jsonl")).read_text().splitlines()[0])
    assert about["versions"]["torch"] == torch.__version__


def test_the_file_is_mapped_and_safe_from_edits(tmp_path, expected):
    backbone, pictures = make_backbone(0), make_pictures()
    features = extract(backbone, pictures, cache=tmp_path).features
    features.zero_()
    again = extract(backbone, pictures, cache=tmp_path)
    assert again.reused
    torch.testing.assert_close(again.features, expected)
    stored = np.fromfile(next(tmp_path.glob("*.f32")), dtype=np.float32)
    assert np.array_equal(stored, again.features.numpy().ravel())


@pytest.mark.parametrize("stopped_by", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path, expected, stopped_by):
    program = textwrap.dedent(PROGRAM) + f"extract(backbone(0.05), pictures(), cache=sys.argv[1], batch_size={BATCH})\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        journals = list(tmp_path.glob("*.jsonl"))
        if journals and journals[0].read_text().count("\n") >= 4:
            break
        time.sleep(0.005)
    process.send_signal(stopped_by)
    assert process.wait(timeout=60) != 0
    backbone = make_backbone(0)
    calls = counted(backbone)
    found = extract(backbone, make_pictures(), cache=tmp_path, batch_size=50)  # the batches stay as they were begun
    assert not found.reused
    assert 0 < sum(calls) <= COUNT - 3 * BATCH
    assert set(calls) <= {BATCH, COUNT % BATCH}
    assert torch.equal(found.features, expected)
    assert files(tmp_path) == [".f32", ".jsonl"]


def interrupted(folder, after=3):
    """Leave a run with so many finished batches."""
    backbone = make_backbone(0)
    calls = counted(backbone)

    def stop(*_):
        if len(calls) > after:
            raise KeyboardInterrupt

    backbone.model.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        extract(backbone, make_pictures(), cache=folder, batch_size=BATCH)


def tear_numbers(folder):
    path = next(folder.glob("*.f32"))
    contents = bytearray(path.read_bytes())
    contents[BATCH * 5 * 4 + 2] ^= 255  # in the second batch
    path.write_bytes(contents)


def tear_journal(folder):
    path = next(folder.glob("*.jsonl"))
    path.write_text(path.read_text()[:-9])


def lose_journal(folder):
    next(folder.glob("*.jsonl")).write_text("\x00\x00\n")


def cut_numbers(folder):
    path = next(folder.glob("*.f32"))
    path.write_bytes(path.read_bytes()[: 2 * BATCH * 5 * 4])


@pytest.mark.parametrize(
    ("damage", "kept"), [(lambda _: None, 3), (tear_numbers, 2), (tear_journal, 2), (lose_journal, 0), (cut_numbers, 2)]
)
def test_a_torn_batch_is_computed_again(tmp_path, expected, damage, kept):
    interrupted(tmp_path)
    damage(tmp_path)
    backbone = make_backbone(0)
    calls = counted(backbone)
    found = extract(backbone, make_pictures(), cache=tmp_path, batch_size=BATCH)
    assert sum(calls) == COUNT - kept * BATCH
    assert torch.equal(found.features, expected)


@pytest.mark.parametrize("harm", [lambda b: b[:-4], lambda b: b[:9] + b"x" + b[10:], lambda _: b""])
def test_damaged_features_are_computed_again(tmp_path, expected, harm):
    extract(make_backbone(0), make_pictures(), cache=tmp_path, batch_size=BATCH)
    path = next(tmp_path.glob("*.f32"))
    path.write_bytes(harm(path.read_bytes()))
    found = extract(make_backbone(0), make_pictures(), cache=tmp_path, batch_size=BATCH)
    assert not found.reused
    assert torch.equal(found.features, expected)


def changed_weight():
    backbone = make_backbone(0)
    with torch.no_grad():
        backbone.model.network[0].weight[0, 0, 0, 0] += 1e-3
    return wrap_backbone(backbone.model.network, name="small", size=8), make_pictures()


def changed_statistics():
    backbone = make_backbone(0)
    backbone.model.network[1].running_mean += 0.1
    return wrap_backbone(backbone.model.network, name="small", size=8), make_pictures()


def with_backbone(**choices):
    return wrap_backbone(make_backbone(0).model.network, **{"name": "small", "size": 8, **choices}), make_pictures()


def other_architecture():
    network = make_backbone(0).model.network
    network[2] = nn.Tanh()
    return wrap_backbone(network, name="small", size=8), make_pictures()


def with_pictures(change):
    pictures = make_pictures()
    pixels, labels = pictures.pixels.copy(), pictures.labels.clone()
    change(pixels, labels)
    return make_backbone(0), ImageArray("noise", ["a", "b"], labels, pixels, part="training")


CHANGES = {
    "a weight": changed_weight,
    "statistics of batch norm": changed_statistics,
    "the activation": other_architecture,
    "the mean": lambda: with_backbone(mean=(0.5, 0.5, 0.5)),
    "the interpolation": lambda: with_backbone(interpolation="bilinear"),
    "the layer": lambda: with_backbone(layer="2"),
    "the pooling": lambda: with_backbone(layer="2", pooling="max"),
    "a pixel": lambda: with_pictures(lambda pixels, _: np.bitwise_xor(pixels[52, 7, 7], 1, out=pixels[52, 7, 7])),
    "a label": lambda: with_pictures(lambda _, labels: labels[:2].copy_(labels[:2].flip(0))),
    "the order": lambda: with_pictures(lambda pixels, _: pixels.__setitem__(slice(0, 2), pixels[1::-1].copy())),
}


def test_nothing_stale_is_ever_found(tmp_path):
    extract(make_backbone(0), make_pictures(), cache=tmp_path)
    for count, (what, change) in enumerate(CHANGES.items(), start=2):
        backbone, pictures = change()
        found = extract(backbone, pictures, cache=tmp_path)
        assert not found.reused, what
        assert len(list(tmp_path.glob("*.f32"))) == count, what
        with torch.inference_mode():
            direct = backbone.model(backbone.prepare(pictures.read(range(COUNT))))
        torch.testing.assert_close(found.features, direct)
    assert extract(make_backbone(0), make_pictures(), cache=tmp_path).reused


def test_progress_says_how_many_a_second(tmp_path, capsys):
    extract(make_backbone(0), make_pictures(), cache=tmp_path, progress=True)
    assert "features of noise" in (err := capsys.readouterr().err)
    assert "53/53" in err
    assert "images/s" in err


def test_what_goes_wrong_in_the_reading_thread_is_said(tmp_path):
    class Broken(ImageArray):
        def read(self, indices):
            if 20 in indices:
                raise FileError("The image x.png cannot be read")
            return super().read(indices)

    whole = make_pictures()
    broken = Broken(whole.name, whole.classes, whole.labels, whole.pixels, part="training")
    with pytest.raises(FileError, match=r"x\.png"):
        extract(make_backbone(0), broken, cache=tmp_path, batch_size=BATCH)
    backbone = make_backbone(0)
    calls = counted(backbone)
    extract(backbone, whole, cache=tmp_path, batch_size=BATCH)
    assert sum(calls) < COUNT


def test_bad_input_is_an_error(tmp_path):
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        extract(make_backbone(0), make_pictures(), cache=tmp_path, batch_size=0)
    with pytest.raises(InputError, match="device must be one that torch can use here, such as cpu, got 'gpu'"):
        extract(make_backbone(0), make_pictures(), cache=tmp_path, device="gpu")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="cannot be made"):
        extract(make_backbone(0), make_pictures(), cache=tmp_path / "file")
    network = make_backbone(0).model.network
    network[4].weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match="features of images 0 to 7 of noise must be finite"):
        extract(wrap_backbone(network, name="bad", size=8), make_pictures(), cache=tmp_path, batch_size=8)


@pytest.fixture
def damaged(tmp_path):
    """A folder of digits, of which two cannot be read."""
    folder = write_folder(tmp_path / "some digits", 60)
    for name in ("digit 3/0003.png", "digit 7/0007.png"):
        (folder / name).write_bytes(b"no picture")
    return folder


def test_features_of_images_that_cannot_be_read_are_nan_unless_strict(damaged, tmp_path):
    backbone = open_backbone("identity", size=4)
    paths, labels = images_by_class(damaged)
    classes, encoded = encode_labels(labels)
    images = ImageFiles("damaged", classes, encoded, damaged, paths)
    with pytest.raises(FileError, match=r"0003\.png cannot be read"):
        extract(backbone, images, cache=tmp_path / "a", batch_size=BATCH)
    found = extract(backbone, images, cache=tmp_path / "a", batch_size=BATCH, strict=False).features
    broken = [row for row, path in enumerate(paths) if path in ("digit 3/0003.png", "digit 7/0007.png")]
    assert (~is_whole(found)).nonzero().flatten().tolist() == broken
    whole = ImageSubset(images, is_whole(found).nonzero().flatten())
    expected = extract(backbone, whole, cache=tmp_path / "b").features
    assert torch.equal(found[is_whole(found)], expected)
    assert extract(backbone, images, cache=tmp_path / "a", strict=False).reused
    with pytest.raises(FileError, match=r"0003\.png cannot be read"):  # those of the cache do not hide it
        extract(backbone, images, cache=tmp_path / "a")


def test_a_run_leaves_out_what_cannot_be_read_and_says_so(damaged, tmp_path):
    config = TransferConfig(dataset=str(damaged), backbone="identity", size=4, out=str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inputs = read_inputs(config)
    assert len(inputs.train.labels) + len(inputs.test.labels) == 58
    for part in (inputs.train, inputs.test):
        assert len(part.features) == len(part.labels) == len(part.source)
        for row in range(len(part.source)):
            assert inputs.classes[part.labels[row]] == part.source.describe(row).split("/")[0]
    text = " ".join(str(warning.message) for warning in caught)
    assert "digit 3/0003.png" in text
    assert "digit 7/0007.png" in text
    with pytest.raises(FileError, match=r"cannot be read"):
        read_inputs(dataclasses.replace(config, strict=True))
