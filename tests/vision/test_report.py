"""The page stands alone, says what was measured, and a browser shows it without complaint."""

import base64
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from tests.vision.labeled import write_features, write_folder
from tests.vision.test_transfer import config

from torchkrr.vision import transfer
from torchkrr.vision.readouts import fitted_head
from torchkrr.vision.report import examine, transfer_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    data = write_folder(root / "data & more", 200)
    (data / "digit 4").rename(data / "<b>four")
    return transfer.run(config(data, root / "out", backbone="identity", size=8))


def look(outcome, features, labels):
    return examine(fitted_head(outcome.head, outcome.inputs.classes), outcome.inputs.classes, features, labels)


def predicted(outcome):
    names = outcome.head.predict(outcome.inputs.test.features.numpy()).tolist()
    return torch.tensor([outcome.inputs.classes.index(name) for name in names])


def chromium(path, *options):
    given = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    found = subprocess.run(
        [*given, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True, cwd=path.parent
    )
    assert "CONSOLE" not in found.stderr, found.stderr
    return found.stdout


def test_a_page_needs_no_other_file(outcome):
    text = (outcome.out / "report.html").read_text()
    assert set(re.findall(r'(?:src|srcset|href)="(data:|[^"]{0,20})', text)) == {"data:"}
    assert not re.search(r"<script|@import|url\(|https?://", text)
    assert "&lt;b&gt;four" in text
    assert "<b>four" not in text
    assert "$" not in re.sub(r"data:[^\"]*", "", text)


def test_a_page_holds_what_was_recorded(outcome):
    text = (outcome.out / "report.html").read_text()
    for cell in outcome.cells:
        assert cell.title in text
        assert f"{100 * cell.accuracy:.1f}" in text
    right = predicted(outcome) == outcome.inputs.test.labels
    assert f"is right on {100 * float(right.double().mean()):.1f} % of 40 test examples" in text


def test_both_reports_say_what_the_names_of_readouts_mean(outcome):
    for name, line in (("report.html", "<dt>{}</dt><dd>{}"), ("report.md", "\n- {}: {}")):
        text = (outcome.out / name).read_text()
        assert line.format("SK", "local kernel ridge regression") in text
        assert line.format("weighted kNN", "votes of the 20 nearest training examples") in text
        assert line.format("torchkrr head", "the estimator LocalKernelRidgeClassifier") in text
        assert "HAN-SK" not in text  # which was not run
        assert "% are right in the group of the smallest indicator" in text
        assert "The head in head.safetensors is the estimator LocalKernelRidgeClassifier: a prior" in text


def test_mistakes_show_the_images_that_explain_them(outcome):
    inputs = outcome.inputs
    features, labels = inputs.test.features, (inputs.test.labels + 1) % 10  # all of them wrong
    examined = look(outcome, features, labels)
    assert examined.accuracy < 0.1
    confidences = [mistake.probability for mistake in examined.mistakes]
    assert confidences == sorted(confidences, reverse=True)
    assert not examined.doubtful
    text = transfer_page(inputs, outcome.records, examined)
    assert text.count('class="mistake"') == 12
    shown = set(re.findall(r'<img class=pixels alt="([^"]*)" src="data:image/png;base64,([^"]*)"', text))
    assert len(shown) > 20
    assert all(base64.b64decode(source).startswith(b"\x89PNG") for _, source in shown)
    names = {name.replace("&lt;", "<").replace("&gt;", ">") for name, _ in shown}
    for mistake in examined.mistakes:
        assert inputs.test.source.describe(mistake.row) in names
        assert mistake.because
        assert {outcome.head._ids[because.row] for because in mistake.because} <= names


def test_the_examples_behind_a_prediction_are_those_of_largest_weight(outcome):
    inputs = outcome.inputs
    examined = look(outcome, inputs.test.features, (inputs.test.labels + 1) % 10)
    expected = outcome.head.explain(inputs.test.features.numpy())
    indicators = outcome.head.error_indicator(inputs.test.features.numpy())
    for mistake in examined.mistakes:
        largest = np.abs(expected.weights[mistake.row])[:6]
        assert [abs(because.weight) for because in mistake.because] == pytest.approx(largest.tolist())
        assert mistake.indicator == pytest.approx(indicators[mistake.row])


def test_groups_and_confusions_count_every_example_once(outcome):
    inputs = outcome.inputs
    examined = look(outcome, inputs.test.features, inputs.test.labels)
    assert sum(group.size for group in examined.groups) == 40 == int(examined.confusion.sum())
    assert len(examined.mistakes) + len(examined.doubtful) == 12
    assert all(shown.label == shown.truth for shown in examined.doubtful)
    doubts = [shown.probability for shown in examined.doubtful]
    assert doubts == sorted(doubts)
    indicators = [group.indicator for group in examined.groups]
    assert indicators == sorted(indicators)
    right = sum(group.size * group.accuracy for group in examined.groups)
    assert right == pytest.approx(float(examined.confusion.diagonal().sum())) == pytest.approx(40 * examined.accuracy)
    expected = torch.zeros(10, 10, dtype=torch.int64)
    for truth, label in zip(inputs.test.labels.tolist(), predicted(outcome).tolist(), strict=True):
        expected[truth, label] += 1
    assert torch.equal(examined.confusion, expected)


def test_many_classes_are_listed_instead_of_a_matrix(tmp_path, outcome):
    names = [f"class {number}" for number in range(30)]
    confusion = torch.zeros(30, 30, dtype=torch.int64)
    confusion[3, 5], confusion[2, 2] = 7, 9
    examined = look(outcome, outcome.inputs.test.features, outcome.inputs.test.labels)
    examined = examined._replace(confusion=confusion, mistakes=[], doubtful=[])
    text = transfer_page(outcome.inputs._replace(classes=names), outcome.records, examined)
    assert "<td>class 3</td><td>class 5</td><td>7</td><td>7</td>" in text
    assert 'class="matrix"' not in text
    assert "makes none" in text


@browser
def test_a_browser_shows_the_page(outcome):
    dom = chromium(outcome.out / "report.html", "--dump-dom")
    assert dom.count("<h2") == 4
    # Sizes of images are known to the browser only if it could draw them.
    probe = outcome.out / "probe.html"
    text = (outcome.out / "report.html").read_text()
    check = "[...document.images].map(i => i.complete && i.naturalWidth > 0 ? 1 : 0)"
    probe.write_text(text.replace("</body>", f"<script>onload=()=>{{document.title=String({check})}}</script></body>"))
    title = re.search(r"<title>(.*?)</title>", chromium(probe, "--dump-dom"))[1]
    assert set(title.split(",")) == {"1"}
    assert title.count("1") == text.count("<img") >= 2


@browser
def test_light_and_dark_pages_differ_and_neither_is_empty(outcome, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = []
    for name, options in {"light": (), "dark": ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")}.items():
        target = tmp_path / f"{name}.png"
        chromium(outcome.out / "report.html", "--window-size=900,1400", f"--screenshot={target}", *options)
        drawn = np.asarray(image.open(target).convert("L"))
        pixels.append(int(drawn[5, 5]))
        assert len(np.unique(drawn)) > 50
    assert pixels[0] > 240
    assert pixels[1] < 60


def test_a_page_on_features_names_rows(tmp_path):
    found = transfer.run(config(write_features(tmp_path / "some.npz", 200), tmp_path / "out", seeds=1, readouts=("knn",)))
    examined = look(found, found.inputs.test.features, (found.inputs.test.labels + 1) % 10)
    text = transfer_page(found.inputs, found.records, examined)
    assert re.search(r"row \d+ of the training part", text)
