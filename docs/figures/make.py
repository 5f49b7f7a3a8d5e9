"""Make the pictures whose scripts have changed since they were made, or that are missing.

python docs/figures/make.py          # --all makes every picture; --check only says which are out of date

`made.json` remembers, for each picture, a digest of the script that made it and of the records it drew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
IMAGES, RESULTS, MADE = FOLDER.parent / "images", FOLDER.parent / "results", FOLDER / "made.json"
HELPERS = {"make.py", "style.py"}
# Pictures of commands that take hours; these copy their own.
BY_COMMAND = {
    "lander.png": "make lander",
    "landing.gif": "make lander",
    "learn-vgg-small.png": "make learn",
    "learn-vit-small.png": "make learn",
    "probe-vgg16.png": "make probe",
    "probe-lite0.png": "make probe",
    "transfer-cifar10.png": "make transfer",
}


def scripts() -> dict[str, pathlib.Path]:
    """The script behind each picture: the one that saves it under that name."""
    found = {}
    for script in [*sorted(FOLDER.glob("*.py")), ROOT / "examples" / "spread_centers.py"]:
        if script.name not in HELPERS:
            found.update({f"{name}.png": script for name in saved_by(script)})
    return found


def saved_by(script: pathlib.Path) -> list[str]:
    if script.parent != FOLDER:
        return [script.stem]
    return [line.split('"')[1] for line in script.read_text().splitlines() if line.strip().startswith("save(")]


def digest(script: pathlib.Path) -> str:
    found = hashlib.sha256(script.read_bytes())
    for records in sorted((*(ROOT / "benchmarks" / "results").glob("*.jsonl"), *RESULTS.glob("*.jsonl"))):
        if records.name in script.read_text():
            found.update(records.read_bytes())
    return found.hexdigest()[:16]


def outdated() -> dict[str, pathlib.Path]:
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    known = {script: digest(script) for script in scripts().values()}
    return {
        name: script for name, script in scripts().items() if made.get(name) != known[script] or not (IMAGES / name).exists()
    }


def run(script: pathlib.Path) -> None:
    if script.parent == FOLDER:
        subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
        return
    out = ROOT / "runs" / script.stem
    subprocess.run([sys.executable, str(script), "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    shutil.copy(out / f"{script.stem}.png", IMAGES)
    shutil.copy(out / f"{script.stem}.json", RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    wanted = scripts() if options.all else outdated()
    if options.check:
        print("\n".join(sorted(wanted)) or "every picture is as its script makes it")
        sys.exit(bool(wanted))
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    for script in sorted(set(wanted.values())):
        print(f"{script.relative_to(ROOT)}", flush=True)
        run(script)
        made.update({name: digest(script) for name, by in scripts().items() if by == script})
        MADE.write_text(json.dumps(dict(sorted(made.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
