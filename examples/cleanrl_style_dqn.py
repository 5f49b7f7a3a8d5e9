"""Double DQN in one file, top to bottom, in the manner of CleanRL; `--kernel` is the only difference between the two agents.

pip install ".[rl]"
python examples/cleanrl_style_dqn.py --steps 50000
python examples/cleanrl_style_dqn.py --steps 50000 --kernel
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import time

import gymnasium
import numpy as np
import torch

from torchkrr.models import KernelQNetwork, QNetwork

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--environment", default="CartPole-v1")
parser.add_argument("--kernel", action="store_true", help="kernel perturbations on the first and last layer")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--steps", type=int, default=50_000, help="game moves")
parser.add_argument("--learning-starts", type=int, default=1000, help="moves at random before the first optimizer step")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--polyak", type=float, default=0.005)
parser.add_argument("--epsilon", type=float, nargs=2, default=(0.9, 0.05), help="share of random moves, first and last")
parser.add_argument("--epsilon-decay", type=float, default=1000.0)
args = parser.parse_args()

random.seed(args.seed)
rng = np.random.default_rng(args.seed)
torch.manual_seed(args.seed)
torch.set_num_threads(1)

environment = gymnasium.make(args.environment)
assert isinstance(environment.observation_space, gymnasium.spaces.Box)
assert isinstance(environment.action_space, gymnasium.spaces.Discrete)
num_features, num_actions = environment.observation_space.shape[0], int(environment.action_space.n)
states = torch.zeros(args.steps, num_features)
next_states = torch.zeros(args.steps, num_features)
actions = torch.zeros(args.steps, dtype=torch.int64)
rewards, going_on = torch.zeros(args.steps), torch.zeros(args.steps)

online: QNetwork | None = None
began, returns, total = time.perf_counter(), [], 0.0
state, _ = environment.reset(seed=args.seed)
for step in range(args.steps):
    if online is None and step >= args.learning_starts:
        # The states seen so far say where centers belong and how far apart states are.
        online = (
            KernelQNetwork(states[:step], num_actions, ridge=1e-2) if args.kernel else QNetwork(num_features, num_actions)
        )
        target = copy.deepcopy(online).requires_grad_(False)
        optimizer = torch.optim.AdamW(online.parameters(), lr=args.learning_rate)

    first, last = args.epsilon
    epsilon = last + (first - last) * math.exp(-(step - args.learning_starts) / args.epsilon_decay)
    if online is None or random.random() < epsilon:
        action = random.randrange(num_actions)
    else:
        with torch.no_grad():
            action = int(online(torch.as_tensor(state, dtype=torch.float32)[None]).argmax())
    next_state, reward, terminated, truncated, _ = environment.step(action)
    states[step], next_states[step] = torch.as_tensor(state), torch.as_tensor(next_state)
    actions[step], rewards[step], going_on[step] = action, float(reward), float(not terminated)
    state, total = next_state, total + float(reward)
    if terminated or truncated:
        returns.append(total)
        total = 0.0
        state, _ = environment.reset()
        if len(returns) % 50 == 0:
            rate = step / (time.perf_counter() - began)
            print(f"move {step + 1}, game {len(returns)}, mean of 50 games {np.mean(returns[-50:]):.1f}, {rate:.0f} moves/s")

    if online is not None:
        rows = torch.as_tensor(rng.integers(step + 1, size=args.batch_size))
        with torch.no_grad():
            best = online(next_states[rows]).argmax(1, keepdim=True)
            future = target(next_states[rows]).gather(1, best).squeeze(1)
            wanted = rewards[rows] + args.discount * going_on[rows] * future
        values = online(states[rows]).gather(1, actions[rows, None]).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(values, wanted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(online.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, args.polyak)

agent = "with kernels" if args.kernel else "layers alone"
print(
    f"{agent}: {len(returns)} games, mean of the last 50 {np.mean(returns[-50:]):.1f}, {time.perf_counter() - began:.0f} s"
)
