"""Images from files, and batches of them as Pillow makes them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from torchkrr.errors import ShapeError
from torchkrr.vision.backbones import wrap_backbone
from torchkrr.vision.images import Preparation, read_image

NOISE = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [20, 77])
def test_resizing_is_that_of_pillow(mode, size):
    smooth = np.asarray(Image.fromarray(NOISE[0]).resize((41, 31), Image.Resampling.BICUBIC))
    found = Preparation(size, (0.0,) * 3, (1.0,) * 3, mode)([smooth])[0] * 255
    square = Image.fromarray(smooth).crop((5, 0, 36, 31))
    expected = np.asarray(square.resize((size, size), Image.Resampling[mode.upper()])).astype(np.float32)
    assert float((found.permute(1, 2, 0) - torch.from_numpy(expected)).abs().max()) <= 1.01


def test_a_picture_is_prepared_alike_in_any_company():
    prepare = Preparation(24, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    alone = torch.cat([prepare([picture]) for picture in NOISE])
    assert torch.equal(prepare(list(NOISE)), alone)
    assert torch.equal(prepare([*NOISE, np.zeros((9, 5, 3), dtype=np.uint8)])[:4], alone)
    assert alone.is_contiguous(memory_format=torch.channels_last)
    same = Preparation(32, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")(list(NOISE))
    expected = (NOISE / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.4, 0.5, 0.6])
    torch.testing.assert_close(same.permute(0, 2, 3, 1), torch.from_numpy(expected).float())


@pytest.mark.parametrize("picture", [NOISE[0, ..., 0], NOISE[0].astype(np.float32), NOISE[0, :0]])
def test_what_is_no_picture_is_an_error(picture):
    with pytest.raises(ShapeError, match="An image must be"):
        Preparation(8, (0.0,) * 3, (1.0,) * 3, "bicubic")([picture])
    with pytest.raises(ShapeError, match="three numbers each"):
        wrap_backbone(nn.Flatten(), name="x", size=8, mean=(0.5,))


def test_pictures_of_every_kind_are_upright_rgb(tmp_path):
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert np.array_equal(read_image(tmp_path / "deep.png")[..., 0], grey)
    clear = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    clear.save(tmp_path / "clear.png")
    assert read_image(tmp_path / "clear.png").tolist() == [[[255, 255, 255], [10, 20, 30]]]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.fromarray(np.zeros((10, 30, 3), dtype=np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape == (30, 10, 3)
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.gif")
    assert read_image(tmp_path / "palette.gif").shape == (2, 3, 3)
