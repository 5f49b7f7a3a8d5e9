"""What a network is trained under, and the optimizer."""

import dataclasses
import math

import pytest
import torch
from paper.learning.config import Config
from paper.learning.heads import CentersHead, KernelHead, LinearHead, anneal, make_optimizer
from paper.learning.networks import cut_network
from torch.nn.functional import cross_entropy, one_hot

from torchkrr import functional as F
from torchkrr import losses
from torchkrr.errors import ShapeError

C = 5


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 6, generator=generator), torch.randint(C, (40,), generator=generator)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


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


def test_batches_need_vectors():
    with pytest.raises(ShapeError):
        KernelHead(Config(), C).loss(torch.randn(4, 2, 2), torch.zeros(4, dtype=torch.int64))
