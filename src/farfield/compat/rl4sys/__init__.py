"""The Python API of RL4Sys in, a session of ours out: change `rl4sys.` to `farfield.compat.rl4sys.` in the imports.

docs/rl4sys.md says what becomes of every key of its files and of every method, and what is different.
"""

from farfield.compat.rl4sys.client.agent import RL4SysAgent
from farfield.compat.rl4sys.common.action import RL4SysAction
from farfield.compat.rl4sys.common.trajectory import RL4SysTrajectory
from farfield.compat.rl4sys.utils.util import StructuredLogger

__all__ = ["RL4SysAction", "RL4SysAgent", "RL4SysTrajectory", "StructuredLogger"]
