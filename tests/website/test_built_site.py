"""The built site in a browser, from the file system: `make docs` builds it and runs this with SITE=site."""

import html
import html.parser
import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from torchkrr.cli import COMMANDS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / os.environ.get("SITE", "no site")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOKED_AT = (
    *("index.html", "concepts/continuity.html", "gallery/line.html"),
    *("api/functional.html", "api/commands.html", "paper-to-code.html"),
)

pytestmark = pytest.mark.skipif("SITE" not in os.environ, reason="make docs builds the site")
browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets, self.ids, self.loaded = [], set(), []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found.get("id"), found.get("name")}
        if tag == "a" and found.get("href"):
            self.targets.append(found["href"])
        elif tag in ("script", "img", "link", "iframe"):
            loads = tag != "link" or found.get("rel") in ("stylesheet", "icon", "preload")
            self.loaded += [target for key in ("src", "href") if loads and (target := found.get(key))]


@pytest.fixture(scope="module")
def pages():
    found = {}
    for path in SITE.rglob("*.html"):
        found[path] = Links()
        found[path].feed(path.read_text())
    return found


def chromium(path, *options):
    given = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    given += ["--virtual-time-budget=10000"]
    found = subprocess.run(
        [*given, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True, cwd=SITE
    )
    assert "CONSOLE" not in found.stderr, found.stderr
    return found.stdout


def test_every_option_of_every_command_is_on_a_page():
    text = html.unescape((SITE / "api" / "commands.html").read_text())
    for name, text_of in COMMANDS.items():
        assert f">torchkrr {name}<" in text
        assert text_of in text
    for path in sorted((ROOT / "src" / "torchkrr" / "cli").glob("*.py")):
        for option in re.findall(r'add\(\s*"(--[a-z-]+)"', path.read_text()):
            assert option in text, option


def test_links_lead_to_pages_and_places_on_them(pages):
    assert len(pages) > 50
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"[a-z]+:", target) or page.name == "404.html":
                continue
            place, _, anchor = target.partition("#")
            path = (page.parent / place).resolve() if place else page
            path = path / "index.html" if path.is_dir() else path
            assert path.is_file(), f"{page} links to {target}"
            assert not anchor or path.suffix != ".html" or anchor in pages[path].ids, f"{page} links to {target}"


def test_nothing_is_loaded_from_elsewhere(pages):
    for page, links in pages.items():
        assert not [target for target in links.loaded if re.match(r"(?:[a-z]+:)?//", target)], page
    for style in SITE.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?https?:", style.read_text()), style


def test_formulas_are_mathml_and_none_is_left_as_tex(pages):
    count = 0
    for page in pages:
        text = page.read_text()
        count += text.count("<math")
        assert "arithmatex" not in text, page
        assert "merror" not in text, page
        prose = re.sub(r"<(script|style|pre|code|math)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\$\$|\\(?:frac|mathcal|lambda|sigma)\b", prose), page
    assert count > 300


def test_recorded_results_are_on_the_site():
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        page = (SITE / "benchmarks" / "results" / path.with_suffix(".html").name).read_text()
        assert path.read_text().splitlines()[0].removeprefix("# ") in page
        assert "Recorded on" in page


def test_every_public_name_is_documented():
    import torchkrr

    for namespace in ("functional", "nn", "kernels", "transforms", "neighbors", "tuning", "losses", "models"):
        text = (SITE / "api" / f"{namespace}.html").read_text()
        for name in getattr(torchkrr, namespace).__all__:
            thing = getattr(getattr(torchkrr, namespace), name)
            if callable(thing) and getattr(thing, "__module__", "typing").startswith("torchkrr"):
                # A function named as its file is documented inside that file.
                assert re.search(rf'id="torchkrr\.{namespace}\.{name}(?:\.{name})?"', text), f"{namespace}.{name}"


@browser
@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_browser_shows_a_page_without_a_complaint(name):
    dom = chromium(SITE / name, "--dump-dom")
    assert "md-content" in dom
    assert "<h1" in dom


@browser
def test_light_and_dark_pages_differ_and_neither_is_empty(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = []
    for name, options in {"light": (), "dark": ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")}.items():
        target = tmp_path / f"{name}.png"
        chromium(SITE / "index.html", "--window-size=1300,1400", f"--screenshot={target}", *options)
        drawn = np.asarray(image.open(target).convert("L"))
        pixels.append(int(np.median(drawn)))
        assert len(np.unique(drawn)) > 50
    assert pixels[0] > 240
    assert pixels[1] < 70


@browser
def test_search_works_from_the_file_system(tmp_path):
    """The page with a search typed into it: results come from the index beside it."""
    probe = SITE / "probe.html"
    text = (SITE / "index.html").read_text()
    typed = """<script>addEventListener("load", () => setTimeout(() => {
        const field = document.querySelector("[data-md-component=search-query]")
        document.querySelector("#__search").click()
        field.focus(); field.value = "leave-one-out"
        field.dispatchEvent(new Event("input", {bubbles: true}))
        field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}))
    }, 500))</script>"""
    try:
        probe.write_text(text.replace("</body>", f"{typed}</body>"))
        dom = chromium(probe, "--dump-dom")
    finally:
        probe.unlink(missing_ok=True)
    assert "md-search-result__article" in dom
