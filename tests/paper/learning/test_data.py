"""Rows, batches and augmentation."""

import dataclasses
import itertools

import pytest
import torch
from paper.learning.config import Config
from paper.learning.data import augmented, choose_rows, open_images, training_batches
from paper.learning.networks import cut_network
from tests.paper.tiny import LEARNING
from tests.vision.labeled import write_features
from torch.nn.functional import pad

from torchkrr.errors import InputError


@pytest.fixture(scope="module")
def digits():
    return open_images("digits")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_no_augmentation_leaves_images_alone():
    images = torch.rand(3, 3, 8, 8)
    assert augmented(images, "none", seeded()) is images


@pytest.mark.parametrize("how", ["shift", "flip-shift"])
def test_augmented_images_are_shifted_and_mirrored_ones(how):
    images = torch.rand(24, 3, 16, 16, generator=seeded(1))
    reach = 2
    found = augmented(images, how, seeded())
    padded = pad(images, (reach,) * 4)
    seen = set()
    for image, wide in zip(found, padded, strict=True):
        for down, right, mirrored in itertools.product(range(5), range(5), (False, True)):
            crop = wide[:, down : down + 16, right : right + 16]
            if torch.equal(image, crop.flip(2) if mirrored else crop):
                seen.add((down, right, mirrored))
                break
        else:
            pytest.fail("not a shifted image")
    assert len({(down, right) for down, right, _ in seen}) > 5
    assert {mirrored for *_, mirrored in seen} == ({False, True} if how == "flip-shift" else {False})


def test_rows_are_the_same_for_every_head_and_depth_and_do_not_overlap(digits):
    labels = digits.train.labels
    first = choose_rows(labels, Config(samples=200))
    other = choose_rows(labels, Config(samples=200, head="linear", discard=3, objective="centers"))
    assert torch.equal(first.all, other.all)
    assert len(first.all.unique()) == 200
    assert (len(first.fit), len(first.validation)) == (180, 20)
    assert labels[first.validation].bincount(minlength=10).tolist() == [2] * 10
    assert not torch.equal(first.all, choose_rows(labels, Config(samples=200, seed=1)).all)


def test_an_epoch_has_every_row_once_in_batches_of_equal_size(digits):
    rows = torch.arange(150)
    prepare = cut_network(LEARNING).prepare
    config = dataclasses.replace(LEARNING, batch_size=64, augmentation="none")
    batches = list(training_batches(digits.train, rows, prepare, config, seeded()))
    assert [len(labels) for _, labels in batches] == [50, 50, 50]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    wanted = prepare(digits.train.read(rows.tolist()))
    order = torch.cdist(images.flatten(1), wanted.flatten(1)).argmin(1)
    assert torch.equal(labels, digits.train.labels[order])
    assert sorted(labels.tolist()) == sorted(digits.train.labels[rows].tolist())
    assert not torch.equal(order, rows)


def test_features_cannot_be_trained(tmp_path):
    with pytest.raises(InputError, match="has features, not images"):
        open_images(str(write_features(tmp_path / "some.npz")))
