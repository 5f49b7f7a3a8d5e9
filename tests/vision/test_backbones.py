"""Backbones by name: the bundled one, those of torchvision and timm, weights from files, and how pictures are prepared."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from torchkrr._extras import import_extra, import_torchvision
from torchkrr.errors import FileError, InputError, MissingExtraError
from torchkrr.vision import backbones, figures, report
from torchkrr.vision.backbones import DIGIT_WEIGHTS, open_backbone
from torchkrr.vision.datasets import open_dataset
from torchkrr.vision.images import Preparation, read_image

SHARED = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "data" / "weights"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs real weights in {SHARED}")
NOISE = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def features(backbone, pictures=None):
    with torch.inference_mode():
        return backbone.model(backbone.prepare(list(NOISE if pictures is None else pictures)))


def run_python(program):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_bundled_network_reads_digits_from_few_examples():
    backbone, split = open_backbone("digits"), open_dataset("digits")
    train, test = (features(backbone, part.read(range(len(part)))) for part in split)
    assert train.shape == (len(split.train), backbone.num_features)
    few = torch.cat([(split.train.labels == digit).nonzero()[:5, 0] for digit in range(10)])

    def nearest(points, queries):
        return split.train.labels[few][torch.cdist(queries, points[few]).argmin(1)]

    pixels = [torch.from_numpy(np.stack(part.read(range(len(part))))).flatten(1).float() for part in split]
    accuracy = [float((nearest(*pair) == split.test.labels).double().mean()) for pair in ((train, test), pixels)]
    assert accuracy[0] > 0.93
    assert accuracy[0] > accuracy[1] + 0.05


def test_the_bundled_weights_are_small_and_their_provenance_is_theirs():
    provenance = json.loads(DIGIT_WEIGHTS.with_suffix(".json").read_text())
    assert DIGIT_WEIGHTS.stat().st_size < 1_000_000
    assert provenance["sha256"] == hashlib.sha256(DIGIT_WEIGHTS.read_bytes()).hexdigest()
    assert {"command", "data", "licence", "accuracy", "versions"} <= set(provenance)
    assert "--limit" not in provenance["command"]


def test_the_bundled_network_needs_neither_torchvision_nor_timm():
    program = """
        import sys
        from torchkrr.vision.backbones import open_backbone
        from torchkrr.vision.features import extract
        print(open_backbone("digits").fingerprint, sorted({"torchvision", "timm"} & set(sys.modules)))
    """
    assert run_python(program) == f"{open_backbone('digits').fingerprint} []"  # and the fingerprint is that of any process


def test_pixels_as_features():
    backbone = open_backbone("identity", size=32)
    torch.testing.assert_close(features(backbone), torch.from_numpy(NOISE / 255).float().permute(0, 3, 1, 2).flatten(1))
    assert open_backbone("identity", size=64).num_features == 3 * 64 * 64


def test_a_network_of_torchvision_ends_before_its_classifier():
    backbone = open_backbone("resnet18", random_weights=True, size=32)
    assert backbone.num_features == 512
    assert "torchvision, random weights, 32 px bilinear" in backbone.text
    network = backbone.model.network
    assert isinstance(network.fc, nn.Identity)
    assert not network.training
    again = open_backbone("resnet18", random_weights=True, size=32)
    assert again.fingerprint == backbone.fingerprint
    assert torch.equal(features(again), features(backbone))
    tapped = open_backbone("resnet18", random_weights=True, size=32, layer="layer2", pooling="max")
    assert (tapped.num_features, features(tapped).shape) == (128, (4, 128))
    assert len({backbone.fingerprint, tapped.fingerprint}) == 2
    assert len({open_backbone("timm/resnet18", random_weights=True, size=32).fingerprint, backbone.fingerprint}) == 2


def test_a_network_of_timm_has_its_own_preparation():
    backbone = open_backbone("tf_efficientnet_lite0", random_weights=True, size=32)
    assert backbone.num_features == 1280
    assert backbone.prepare == Preparation(32, (0.5,) * 3, (0.5,) * 3, "bicubic")
    assert open_backbone("tf_efficientnet_lite0", random_weights=True).prepare.size == 224


def test_class_tokens_stay_out_of_the_mean():
    backbone = open_backbone("vit_tiny_patch16_224", random_weights=True, size=32, layer="norm")
    network = backbone.model.network
    with torch.inference_mode():
        tokens = network.forward_features(backbone.prepare(list(NOISE)))
    torch.testing.assert_close(features(backbone), tokens[:, 1:].mean(1))
    first = open_backbone("vit_tiny_patch16_224", random_weights=True, size=32, layer="norm", pooling="class_token")
    torch.testing.assert_close(features(first), tokens[:, 0])


@pytest.fixture(scope="module")
def small_network(tmp_path_factory):
    """Weights of an untrained network in files of every kind."""
    folder = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = import_extra("torchvision.models", "x", extra="vision").mobilenet_v3_small()
    state = network.state_dict()
    torch.save(state, folder / "plain.pth")
    torch.save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, folder / "wrapped.th"
    )
    headless = {name: tensor for name, tensor in state.items() if not name.startswith("classifier.3")}
    torch.save(headless, folder / "headless.pt")
    save_file(
        {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()},
        folder / "half.safetensors",
    )
    part = {name: tensor.contiguous() for name, tensor in network.features.state_dict().items()}
    save_file(part, folder / "part.safetensors")
    save_file({f"features.{name}": tensor for name, tensor in part.items()}, folder / "named_part.safetensors")
    return folder, network.eval()


@pytest.fixture(autouse=True)
def _torchvision_is_there():
    import_torchvision()


@pytest.mark.parametrize("name", ["plain.pth", "wrapped.th", "headless.pt", "half.safetensors"])
def test_weights_from_files(small_network, name):
    folder, network = small_network
    backbone = open_backbone("mobilenet_v3_small", weights=str(folder / name), size=32)
    network = network.half().float() if name.startswith("half") else network
    with torch.inference_mode():
        x = backbone.prepare(list(NOISE))
        expected = network.classifier[:3](network.avgpool(network.features(x)).flatten(1))
    torch.testing.assert_close(features(backbone), expected, rtol=1e-3, atol=1e-3)
    assert name in backbone.text


@pytest.mark.parametrize("name", ["part.safetensors", "named_part.safetensors"])
def test_weights_of_a_part_make_that_part_the_backbone(small_network, name):
    folder, network = small_network
    backbone = open_backbone("mobilenet_v3_small", weights=str(folder / name), size=32)
    with torch.inference_mode():
        expected = network.features(backbone.prepare(list(NOISE))).mean((2, 3))
    torch.testing.assert_close(features(backbone), expected, rtol=1e-3, atol=1e-3)
    deeper = open_backbone("mobilenet_v3_small", weights=str(folder / name), size=32, layer="features.3")
    assert deeper.num_features == 24


@needs_shared
def test_real_weights_of_efficientnet():
    path = SHARED / "tf_efficientnet_lite0.imagenet.safetensors"
    backbone = open_backbone("tf_efficientnet_lite0", weights=str(path), size=64)
    digit = Image.fromarray(NOISE[0]).resize((90, 70))
    vectors = features(backbone, [*NOISE[:1], np.asarray(digit)])
    assert vectors.shape == (2, 1280)
    assert float(vectors.min()) >= 0  # the last activation is a ReLU6, averaged
    assert float(vectors.std()) > 0.05


@needs_shared
def test_real_weights_of_vgg_features():
    path = SHARED / "vgg16_features.imagenet.fp16.safetensors"
    backbone = open_backbone("vgg16", weights=str(path), size=32)
    assert (backbone.num_features, features(backbone).shape) == (512, (4, 512))
    assert backbone.prepare == Preparation(32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear")
    with pytest.raises(FileError, match="do not fit VGG"):
        open_backbone("vgg11", weights=str(path), size=32)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"name": "resnet81"}, "no backbone 'resnet81' in torchvision or timm. Did you mean .*resnet18"),
        ({"name": "torchvision/tf_efficientnet_lite0"}, "no backbone"),
        ({"name": "resnet18", "random_weights": True, "weights": "x.pth"}, "one of the two"),
        (
            {"name": "resnet18", "random_weights": True, "size": 32, "layer": "layer9"},
            "no layer 'layer9'. Did you mean 'layer",
        ),
        ({"name": "resnet18", "random_weights": True, "size": 32, "pooling": "max"}, "nothing to pool by 'max'"),
        ({"name": "resnet18", "random_weights": True, "size": 32, "pooling": "median"}, "pooling must be one of"),
        ({"name": "vgg11_bn", "random_weights": True, "size": 16}, "cannot take images of 16 px"),
        ({"name": "resnet18", "random_weights": True, "size": 0}, "size must be at least 1"),
        ({"name": "digits", "size": 16}, "takes images of 8 px"),
        ({"name": "identity", "weights": "x.pth"}, "neither weights nor layers"),
    ],
)
def test_bad_choices_are_errors(choices, words):
    with pytest.raises(InputError, match=words):
        open_backbone(**choices)


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
def test_a_download_that_fails_says_what_else_can_be_done(monkeypatch, name):
    def unreachable(*_args, **_choices):
        raise OSError("no route to host")

    monkeypatch.setattr(import_extra("torchvision.models", "x", extra="vision"), "get_model", unreachable)
    monkeypatch.setattr(import_extra("timm", "x", extra="vision"), "create_model", unreachable)
    with pytest.raises(FileError, match=r"weights of resnet18 cannot be downloaded: no route to host.*--weights FILE"):
        open_backbone(name)


def test_missing_packages_name_their_extra(monkeypatch):
    monkeypatch.setattr(backbones.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"torchkrr\[vision\]"):
        open_backbone("resnet18")


@pytest.mark.parametrize(
    ("module", "ask", "words"),
    [
        ("matplotlib.figure", lambda: figures.new_figure((1, 1)), r"A figure needs matplotlib.*torchkrr\[plot\]"),
        ("PIL.Image", lambda: report.thumbnail(NOISE[0]), r"Pictures in a report needs PIL.*torchkrr\[demo\]"),
        ("sklearn.datasets", lambda: open_dataset("digits"), r"The dataset digits needs sklearn.*torchkrr\[demo\]"),
        ("PIL.Image", lambda: read_image("a.png"), r"Reading images needs PIL.*torchkrr\[demo\]"),
    ],
)
def test_the_smallest_extra_that_is_enough_is_named(module, ask, words, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=words):
        ask()
