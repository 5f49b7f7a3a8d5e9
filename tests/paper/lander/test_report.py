"""Tables and intervals over seeds."""

import dataclasses
import json
import pathlib

import numpy as np
from paper.lander.config import AGENTS, Config
from paper.lander.report import bootstrap_difference, first_above, report, running_mean
from tests.paper.tiny import LANDER, play


def test_running_mean_and_first_above():
    rewards = [0.0, 10.0, 20.0, 30.0, 0.0]
    assert running_mean(rewards, 2).tolist() == [0.0, 5.0, 15.0, 25.0, 15.0]
    assert first_above(rewards, 15.0, window=2) == 4
    assert first_above([100.0] * 3, 50.0, window=4) is None
    assert first_above(rewards, None) is None


def test_bootstrap_interval_covers_and_orders():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        ours, theirs = rng.normal(1.0, 1.0, 12), rng.normal(0.0, 1.0, 12)
        difference, low, high = bootstrap_difference(ours.tolist(), theirs.tolist(), resamples=500)
        assert low <= difference <= high
        covered += low <= 1.0 <= high
    assert 0.85 * 200 <= covered <= 0.99 * 200


def test_without_evaluation_there_is_no_difference_of_evaluations(tmp_path):
    runs = [play(dataclasses.replace(LANDER, agent=agent, episodes=1, evaluation_episodes=0), tmp_path) for agent in AGENTS]
    text = report(runs, "command")
    assert "nan" not in text
    assert "Differences to dqn" in text
    assert " to +" not in text.split("Differences")[1]  # one run of each: there is nothing to resample


def test_a_report_says_why_runs_ended(tmp_path):
    record = play(dataclasses.replace(LANDER, episodes=1), tmp_path)
    assert "| first above 475.0 |" in report([record], "command")
    assert "A run ended once" not in report([record], "command")
    record["config"]["stop_when_solved"] = True
    assert "A run ended once 100 further games without exploration reached 475.0" in report([record], "command")


def test_recorded_runs_can_be_read():
    """Records in the documentation are what this version can read."""
    folder = pathlib.Path(__file__).parents[3] / "docs" / "results"
    for path in sorted((*folder.glob("lander*.jsonl"), *folder.glob("cartpole*.jsonl"))):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            config, games = Config(**record["config"]), len(record["rewards"])
            assert games == config.episodes or (config.stop_when_solved and 0 < games < config.episodes)
        assert "| agent |" in report(records, "command")
