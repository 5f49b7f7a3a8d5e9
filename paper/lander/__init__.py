"""Double DQN with and without kernels on LunarLander and other games: the paper's section 4.4."""
