"""Checks of the project that are run by `make`, not shipped."""
