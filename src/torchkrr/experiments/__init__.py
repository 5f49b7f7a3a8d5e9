"""Experiments on real data: features of frozen networks, readouts on them, records and reports."""
