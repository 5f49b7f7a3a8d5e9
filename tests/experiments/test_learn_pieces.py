"""Pieces of learning with probes: data, networks, heads, bank, annealing."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot, pad

from torchkrr import functional as F
from torchkrr import losses
from torchkrr.errors import InputError, NotFittedError, ShapeError
from torchkrr.experiments.learn_bank import MemoryBank, features_of
from torchkrr.experiments.learn_config import Config
from torchkrr.experiments.learn_data import augmented, choose_rows, open_collection, training_batches
from torchkrr.experiments.learn_heads import CentersHead, KernelHead, LinearHead
from torchkrr.experiments.learn_networks import cut_network
from torchkrr.experiments.learn_optimizer import anneal, make_optimizer
from torchkrr.experiments.learn_training import Run
from torchkrr.experiments.small_networks import vgg_small, vit_small

C = 5
TINY = Config(dataset="digits", samples=60, epochs=2, discard=4, augmentation="none")


@pytest.fixture(scope="module")
def digits():
    return open_collection("digits")


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 6, generator=generator), torch.randint(C, (40,), generator=generator)


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
    prepare = cut_network(TINY).prepare
    config = dataclasses.replace(TINY, batch_size=64)
    batches = list(training_batches(digits.train, rows, prepare, config, seeded()))
    assert [len(labels) for _, labels in batches] == [50, 50, 50]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    wanted = prepare(digits.train.read(rows.tolist()))
    order = torch.cdist(images.flatten(1), wanted.flatten(1)).argmin(1)
    assert torch.equal(labels, digits.train.labels[order])
    assert sorted(labels.tolist()) == sorted(digits.train.labels[rows].tolist())
    assert not torch.equal(order, rows)


@pytest.mark.parametrize(("network", "parameters"), [("vgg-small", 388_896), ("vit-small", 180_864)])
def test_a_cut_network_is_the_beginning_of_the_whole_one(network, parameters):
    whole = cut_network(Config(network=network))
    assert whole.parameters == parameters
    x = torch.randn(2, 3, 32, 32)
    for discard in range(1, 5):
        cut = cut_network(Config(network=network, discard=discard))
        between = whole.backbone[0][: 5 - discard](x)
        vectors = between.mean((2, 3)) if between.ndim == 4 else between.mean(1)
        torch.testing.assert_close(cut.backbone(x), vectors, rtol=1e-4, atol=1e-5)
        assert cut.num_features == vectors.shape[1]
        assert cut.parameters < parameters
    other = cut_network(Config(network=network, seed=1))
    assert not torch.equal(other.backbone(x), whole.backbone(x))


def test_small_networks_have_five_stages():
    assert len(vgg_small()) == len(vit_small()) == 5


def test_any_network_with_stages_can_be_cut():
    cut = cut_network(Config(network="resnet18", size=32, discard=2, seed=1))
    assert cut.num_features == 128
    assert cut.backbone(torch.randn(2, 3, 32, 32)).shape == (2, 128)
    again, other = (cut_network(Config(network="resnet18", size=32, discard=2, seed=seed)) for seed in (1, 2))
    first, same, different = (next(one.backbone.parameters()) for one in (cut, again, other))
    assert torch.equal(first, same)
    assert not torch.equal(first, different)


def test_wrong_networks_are_refused():
    with pytest.raises(InputError, match="takes pictures of 32 px, got size=64"):
        cut_network(Config(size=64))
    with pytest.raises(InputError, match="vit-small has no class token to pool by"):
        cut_network(Config(network="vit-small", pooling="class_token"))
    with pytest.raises(InputError, match="vgg11 cannot take images of 16 px"):
        cut_network(Config(network="vgg11", size=16))
    with pytest.raises(InputError, match="There are no weights for vit-small"):
        cut_network(Config(network="vit-small", weights="pretrained"))
    with pytest.raises(InputError, match="There is no backbone 'vgg-tiny'"):
        cut_network(Config(network="vgg-tiny"))


def test_leave_one_out_head_is_the_loss_of_the_library(batch):
    features, labels = batch
    head = KernelHead(Config(), C)
    given = {"kernel": head.kernel, "ridge": Config().ridge, "temperature": Config().temperature, "num_classes": C}
    torch.testing.assert_close(head.loss(features, labels), losses.leave_one_out_cross_entropy(features, labels, **given))
    split = KernelHead(Config(objective="split", support_share=0.25), C)
    wanted = losses.episodic_cross_entropy(features[:10], labels[:10], features[10:], labels[10:], **given)
    torch.testing.assert_close(split.loss(features, labels), wanted)


@pytest.mark.parametrize("objective", ["loo", "split"])
def test_a_head_cannot_learn_random_labels_of_frozen_features_and_the_leaky_form_can(objective):
    """The features of a frozen random network: only lengthscale and temperature are learned, and no row sees its label."""
    generator = seeded(3)
    images, labels = torch.rand(128, 3, 32, 32, generator=generator), torch.randint(C, (128,), generator=generator)
    with torch.no_grad():
        features = cut_network(Config(discard=3)).backbone(images)

    def trained(loss_of):
        head = KernelHead(Config(objective=objective, ridge=1e-3), C)
        optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            loss = loss_of(head)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    def leaky(head):
        means = F.kernel_ridge(features, features, one_hot(labels, C).float(), kernel=head.kernel, ridge=1e-3)
        return cross_entropy(means / head.temperature.float(), labels)

    assert trained(lambda head: head.loss(features, labels)) > 0.95 * math.log(C)
    assert trained(leaky) < 0.05


def test_learned_centers_reduce_the_loss(batch):
    features, labels = batch
    config = Config(objective="centers", num_centers=10)
    head = CentersHead(config, C, features[:10], labels[:10])
    optimizer = make_optimizer(dataclasses.replace(config, learning_rate=0.05), torch.nn.Identity(), head)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = head.loss(features, labels)
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    assert values[-1] < 0.6 * values[0]
    assert not torch.equal(head.centers, features[:10])


@pytest.mark.parametrize("objective", ["loo", "centers"])
def test_the_regularizer_is_a_mean_over_pairs(batch, objective):
    features, labels = batch
    found = []
    for weight in (0.0, 2.0):
        config = Config(objective=objective, gromov_monge=weight)
        head = CentersHead(config, C, features, labels) if objective == "centers" else KernelHead(config, C)
        found.append(head.loss(features, labels).detach())
    embedded = head.kernel.embed(features)
    wanted = (torch.cdist(embedded, embedded) - torch.cdist(*[one_hot(labels, C).float()] * 2)).square().mean()
    torch.testing.assert_close(found[1] - found[0], 2 * wanted.detach(), rtol=1e-3, atol=1e-5)


def test_the_readout_predicts_with_the_trained_kernel(batch):
    features, labels = batch
    head = KernelHead(Config(num_neighbors=100, lengthscale=0.3), C)
    readout = head.readout(features, labels)
    assert readout.num_neighbors == 40
    query = torch.randn(7, 6)
    wanted = F.kernel_ridge(
        query, features, one_hot(labels, C).float(), kernel=head.kernel, ridge=Config().ridge, trend="constant"
    )
    torch.testing.assert_close(readout(query), wanted, rtol=1e-3, atol=1e-4)


def test_the_bank_has_the_features_of_its_last_refresh(digits):
    run = Run(TINY, digits, "nowhere/x.pt")
    bank = MemoryBank(digits.train, run.rows.fit, run.cut.prepare)
    with pytest.raises(NotFittedError, match="refresh"):
        bank.features  # noqa: B018
    before = bank.refresh(run.cut.backbone)
    run.cut.backbone.train()
    images = run.cut.prepare(digits.train.read(run.rows.fit[:20].tolist()))
    run.learn(images, digits.train.labels[run.rows.fit[:20]])
    now = features_of(run.cut.backbone, digits.train, run.rows.fit, run.cut.prepare)
    assert torch.equal(bank.features, before)
    assert not torch.equal(now, before)
    assert torch.equal(bank.refresh(run.cut.backbone), now)
    assert torch.equal(bank.features, now)
    assert run.cut.backbone.training


def test_validation_refreshes_the_bank(digits):
    run = Run(TINY, digits, "nowhere/x.pt")
    run.validate()
    before = run.bank.features
    with torch.no_grad():
        next(run.cut.backbone.parameters()).mul_(-1)
    run.validate()
    assert not torch.equal(run.bank.features, before)


def test_annealing_is_a_cosine_from_the_first_rate_to_zero():
    config = Config()
    head = KernelHead(config, C)
    network = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(config, network, head)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1e-2]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    reference = torch.optim.SGD(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 10)
    for step in range(10):
        anneal(optimizer, step / 10)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(reference.param_groups[0]["lr"])
        reference.step()
        schedule.step()
    anneal(optimizer, 1.0)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0)


def test_the_linear_head_is_a_linear_layer(batch):
    features, labels = batch
    head = LinearHead(6, C)
    torch.testing.assert_close(head.loss(features, labels), cross_entropy(head.linear(features), labels))
    assert make_optimizer(Config(head="linear"), torch.nn.Identity(), head).param_groups[0]["params"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discard": 5}, "discard must be less than the 5 stages"),
        ({"head": "forest"}, "head"),
        ({"objective": "leaky"}, "objective"),
        ({"samples": 3}, "samples must be at least 8"),
        ({"batch_size": 2}, "batch_size must be at least 4"),
        ({"validation_share": 0.0}, "validation_share must lie between 0 and 1"),
        ({"ridge": 0.0}, "ridge"),
        ({"patience": -1}, "patience must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Config(**changes)


def test_the_linear_head_does_not_depend_on_what_is_the_kernels():
    first, second = (Config(head="linear", objective=name, ridge=r).settings() for name, r in (("loo", 0.1), ("split", 0.2)))
    assert first == second
    assert Config(objective="loo").settings() != Config(objective="split").settings()


def test_batches_need_vectors():
    with pytest.raises(ShapeError):
        KernelHead(Config(), C).loss(torch.randn(4, 2, 2), torch.zeros(4, dtype=torch.int64))
