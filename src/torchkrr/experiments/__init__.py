"""Experiments on real data and games: frozen networks and readouts, agents with kernels; records and reports."""
