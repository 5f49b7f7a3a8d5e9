"""Experiments on real data and games, with records and reports."""
