"""Probing runs from pictures to report: every depth, records that resume, limits, errors."""

import os
import re

import numpy as np
import pytest
import torch
from tests.vision.labeled import write_features, write_folder
from tests.vision.test_transfer import numbers

from torchkrr.errors import InputError
from torchkrr.models import Depths
from torchkrr.nn import LocalKernelRidge
from torchkrr.runs import read_records
from torchkrr.vision import depths
from torchkrr.vision.backbones import DigitNetwork
from torchkrr.vision.datasets import open_dataset
from torchkrr.vision.depths import ProbeConfig, limited, open_depths, read_inputs
from torchkrr.vision.figures import LIGHT, draw_depths
from torchkrr.vision.summary import findings, grids, summarize

LAYERS = ["top", "top.0", "middle", "middle.0", "stem"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("probe") / "some <digits>", 250)


def config(data, out, **changes):
    given = {"backbone": "digits", "budgets": (60, None), "seeds": 2, "readouts": ("sk", "knn"), **changes}
    return ProbeConfig(dataset=str(data), out=str(out), **given)


@pytest.fixture(scope="module")
def outcome(data, tmp_path_factory):
    return depths.run(config(data, tmp_path_factory.mktemp("out")))


def test_a_run_leaves_everything_at_every_depth(outcome):
    assert set(os.listdir(outcome.out)) == {"records.jsonl", "figure.png", "report.html", "report.md", "features"}
    assert len(outcome.records) == 5 * (2 + 1) * 2  # depths, runs of the two sizes, readouts
    assert [cell.layer for cell in outcome.cells[::4]] == LAYERS
    assert [(cell.budget, cell.num_seeds) for cell in outcome.cells[:2]] == [(60, 2), (200, 1)]
    assert all(0.5 < record["accuracy"] <= 1 for record in outcome.records if record["discarded"] < 3)


def test_one_pass_over_the_pictures_serves_all_depths(outcome):
    assert len(list((outcome.out / "features").glob("*.f32"))) == 2  # the training and the test part
    inputs = outcome.inputs
    assert inputs.train.features.shape == (200, 128 + 64 + 48 + 48 + 32)
    pictures = open_dataset(str(outcome.inputs.train.source.root), test_share=0.2).test
    backbone, depths = open_depths("digits")
    batch = backbone.prepare(pictures.read(range(len(pictures))))
    with torch.inference_mode():
        vectors = backbone.model.vectors(batch)
    for depth, expected in zip(depths, reversed(vectors), strict=True):
        torch.testing.assert_close(inputs.at(depth).test.features, expected)


def test_a_record_says_what_was_measured(outcome):
    record = next(r for r in outcome.records if (r["readout"], r["budget"], r["discarded"]) == ("sk", 200, 1))
    inputs = outcome.inputs.at(outcome.inputs.depths[1])
    values = torch.nn.functional.one_hot(inputs.train.labels, 10).float()
    layer = LocalKernelRidge(inputs.train.features, values, num_neighbors=100)
    right = layer(inputs.test.features).argmax(1) == inputs.test.labels
    assert record["accuracy"] == pytest.approx(float(right.double().mean()))
    assert record["indicator"] == pytest.approx(float(layer.power_function(inputs.test.features).double().mean()))
    assert (record["layer"], record["num_features"], record["shape"]) == ("top.0", 64, [64, 4, 4])
    assert record["backbone"]["layers"] == LAYERS[::-1]
    assert record["backbone"]["pooling"] == "mean"
    assert all((r["indicator"] is None) == (r["readout"] == "knn") for r in outcome.records)


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(data, outcome, tmp_path, monkeypatch):
    solve, done = depths.solve_at, []

    def stopping(*given):
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(given)
        return solve(*given)

    asked = config(data, tmp_path, cache=str(outcome.out / "features"))
    monkeypatch.setattr(depths, "solve_at", stopping)
    with pytest.raises(KeyboardInterrupt):
        depths.run(asked)
    monkeypatch.setattr(depths, "solve_at", solve)
    with open(tmp_path / "records.jsonl", "a") as file:  # as if it had been killed a little later
        file.write('{"key": "half a li')
    resumed = depths.run(asked)
    assert resumed.reused == 7
    assert numbers(resumed.records) == numbers(outcome.records)
    again = depths.run(asked)
    assert again.reused == len(again.records) == len(read_records(tmp_path / "records.jsonl")) == 30


def test_a_limit_takes_so_many_pictures_of_all_classes(data, tmp_path):
    found = read_inputs(config(data, tmp_path, train_limit=50))
    assert found.train.features.shape[0] == 50
    assert "50 of 200 training and 50 test examples" in found.text
    counts, everything = (torch.bincount(labels) for labels in (found.train.labels, open_dataset(str(data)).train.labels))
    assert (counts - everything / 4).abs().max() <= 1.5
    whole = read_inputs(config(data, tmp_path))
    rows = torch.tensor(found.train.source.rows)
    torch.testing.assert_close(found.train.features, whole.train.features[rows])
    assert torch.equal(found.train.labels, whole.train.labels[rows])
    assert found.train.source.describe(3) == whole.train.source.describe(int(rows[3]))
    assert limited(whole.train.source, 200, 0) is whole.train.source


def test_other_pictures_have_another_fingerprint(data):
    pictures = open_dataset(str(data)).train
    prints = {limited(pictures, limit, seed).fingerprint for limit, seed in [(50, 0), (50, 1), (51, 0), (None, 0)]}
    assert len(prints) == 4


def test_pooling_and_layers_are_choices_that_are_reported(data, tmp_path):
    asked = config(data, tmp_path, layers=("stem", "top"), pooling="max", budgets=(None,), readouts=("sk",))
    found = depths.run(asked)
    assert [(cell.discarded, cell.layer) for cell in found.cells] == [(0, "top"), (1, "stem")]
    assert "max of stem (32, 8, 8); top (128, 4, 4); 160 features" in found.inputs.text
    assert "become vectors by pooling: max." in (tmp_path / "report.html").read_text()


def test_flattened_maps_beyond_a_size_are_projected():
    _, depths = open_depths("digits", layers=("stem", "middle"), pooling="flatten")
    assert [depth.num_features for depth in depths] == [768, 2048]
    model = Depths(DigitNetwork(), ["stem", "middle"], "flatten", most=1000)
    assert [vector.shape[1] for vector in model.vectors(torch.zeros(1, 3, 8, 8))] == [1000, 768]


def test_cells_are_means_and_extremes_over_seeds(outcome):
    own = [r for r in outcome.records if (r["readout"], r["budget"], r["discarded"]) == ("sk", 60, 4)]
    cell = next(c for c in outcome.cells if (c.readout, c.budget, c.discarded) == ("sk", 60, 4))
    assert cell.accuracy == pytest.approx(np.mean([record["accuracy"] for record in own]))
    assert cell.indicator == pytest.approx(np.mean([record["indicator"] for record in own]))
    assert (cell.indicator_lowest, cell.indicator_highest) == tuple(sorted(record["indicator"] for record in own))


def test_the_best_depth_is_named_with_what_the_whole_network_reaches(outcome):
    made = [dict(r, accuracy=0.9 if r["discarded"] == 2 else 0.5) for r in outcome.records if r["budget"] == 200]
    cells = summarize(made)
    assert grids(cells)[0].best("SK").layer == "middle"
    expected = "With 200 training examples SK is best with 2 stages discarded (up to middle): 90.0 %, against 50.0 %"
    assert findings(cells)[0].startswith(expected)
    level = summarize([dict(record, accuracy=0.5) for record in made])
    assert findings(level)[0] == "With 200 training examples SK is best with no stage discarded: 50.0 %."


def test_the_figure_shows_means_and_extremes_and_the_indicator(outcome):
    figure = draw_depths(outcome.cells, LIGHT)
    small, large, indicator = figure.axes
    assert [panel.get_xlabel() for panel in figure.axes] == ["top stages discarded"] * 3
    assert (len(small.containers), len(large.containers)) == (2, 2)
    assert all(container.has_yerr for container in small.containers)  # two seeds
    assert not any(container.has_yerr for container in large.containers)  # one run
    expected = [100 * c.accuracy for c in outcome.cells if (c.readout, c.budget) == ("sk", 200)]
    assert large.containers[0].lines[0].get_ydata() == pytest.approx(expected)
    shown = indicator.lines[-1].get_ydata()
    assert shown == pytest.approx([c.indicator for c in outcome.cells if (c.readout, c.budget) == ("sk", 200)])


def test_the_page_stands_alone_and_holds_what_was_recorded(outcome, tmp_path):
    text = (outcome.out / "report.html").read_text()
    assert set(re.findall(r'(?:src|srcset|href)="(data:|[^"]{0,20})', text)) == {"data:"}
    assert not re.search(r"<script|@import|url\(|https?://", text)
    assert "some &lt;digits&gt;: digits at depth" in text
    assert "$" not in re.sub(r"data:[^\"]*", "", text)
    for cell in outcome.cells:
        assert f"{100 * cell.accuracy:.1f}" in text
        assert cell.indicator is None or f"{cell.indicator:.3f}" in text
    assert str(outcome.out.parent) not in text


def test_what_cannot_be_probed_is_an_error(data, tmp_path):
    with pytest.raises(InputError, match="Give pictures"):
        depths.run(config(write_features(tmp_path / "some.npz"), tmp_path / "out"))
    with pytest.raises(InputError, match="identity has no layers"):
        depths.run(config(data, tmp_path / "out", backbone="identity"))
    with pytest.raises(InputError, match="takes layers"):
        ProbeConfig(layer="top")
    with pytest.raises(InputError, match="train_limit must be at least 2"):
        ProbeConfig(train_limit=1)
    with pytest.raises(InputError, match="stages of SqueezeNet end is not known here"):
        open_depths("squeezenet1_1", random_weights=True)
