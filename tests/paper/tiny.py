"""The experiments in a size that takes a second."""

from paper.checkpoints import Job
from paper.lander.config import Config as LanderConfig
from paper.lander.training import run_one
from paper.learning.config import Config as LearningConfig

LANDER = LanderConfig(
    environment="CartPole-v1",
    episodes=8,
    hidden=16,
    num_centers=8,
    random_states=100,
    batch_size=16,
    replay_size=60,
    evaluation_episodes=2,
    checkpoint_every=3,
)
LEARNING = LearningConfig(dataset="digits", samples=60, epochs=4, discard=4, checkpoint_every=2, augmentation="shift")
LANDER_OPTIONS = ["--environment", "CartPole-v1", "--processes", "0", "--hidden", "16", "--num-centers", "8"]
LANDER_OPTIONS += ["--random-states", "100", "--batch-size", "16", "--checkpoint-every", "2", "--evaluation-episodes", "1"]
LEARNING_OPTIONS = ["--dataset", "digits", "--samples", "60", "--depths", "4", "--seeds", "1", "--augmentation", "shift"]


def play(config, folder, report=None):
    """The record of a run of the lander experiment."""
    return run_one(Job(config, "key", folder), report)


def numbers(record):
    """What must be the same whenever and however often a run was interrupted: all but times."""
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


def stop_at(number):
    """A report that interrupts the run when it is called for that time."""
    calls = []

    def report(steps, note):
        calls.append(note)
        if len(calls) == number:
            raise KeyboardInterrupt

    return report
