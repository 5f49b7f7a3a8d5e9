"""Build the distributions, and install them into empty environments: `python -m tools.wheels`."""
