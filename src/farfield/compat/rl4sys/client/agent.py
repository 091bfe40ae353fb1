"""An RL4Sys file in; decisions for observations, and experience that reaches its learner, out."""

import atexit
import contextlib
import logging
import warnings
import weakref
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

import farfield
from farfield.compat.rl4sys import file, mapping
from farfield.compat.rl4sys.common.action import RL4SysAction
from farfield.compat.rl4sys.common.trajectory import RL4SysTrajectory
from farfield.compat.rl4sys.decisions import Decisions
from farfield.compat.rl4sys.writing import Counts, Ended, Writing

OPEN = 1024  # episodes that may be open at once; beyond that the oldest counts as abandoned
CLOSING = 10.0  # seconds that close waits for what is on its way

_log = logging.getLogger("farfield.compat.rl4sys")


class RL4SysAgent:
    """Decides with the newest policy, here, in microseconds; all traffic is in the background. Any thread may call.

    The network never raises and never blocks: until a first version is there, allowed actions are drawn at random,
    and while the gateway is away experience waits on the disk.
    """

    def __init__(self, conf_path: str, debug: bool = False) -> None:
        settings, ignored = file.read(conf_path)
        agreed = mapping.agree(settings)
        ignored |= agreed.ignored
        if debug or settings.debug or settings.log_level:
            level = "DEBUG" if debug or settings.debug else settings.log_level.upper()
            with contextlib.suppress(ValueError):
                _log.setLevel(level)
        if ignored:
            told = "; ".join(f"{key} ({why})" for key, why in sorted(ignored.items()))
            warnings.warn(f"{Path(conf_path).name}: without effect here: {told}", stacklevel=2)
        self.client_id, self.algorithm_name = settings.client_id, settings.algorithm_name
        self.algorithm_type, self.algorithm_parameters = settings.type, settings.algorithm_parameters
        self._limit, self._vector = settings.max_traj_length, settings.algorithm_name != "DQN"
        self._bound = float(settings.act_limit or 1.0)
        self._lock = RLock()
        wait = settings.connection_timeout_seconds
        options = {
            "run": settings.run, "spec": agreed.spec, "token": settings.token, "policy": settings.policy,
            "config": agreed.config, "client": settings.client_id, "quota": settings.buffer_size,
            "remote": settings.remote, "wait": wait,
        }  # fmt: skip
        self.app: Any = farfield.connect(settings.train_server_address, **(options | settings.options))
        if not settings.remote:  # which needs no version here
            self.app.wait(wait)
        part, manner = self.app._part(settings.policy), self.app._manner
        self._decisions = Decisions(part, manner._replace(pace=False), agreed.spec, self._shown)
        self._writing = Writing(
            part, self._decisions, credit=self.app.credit, hold=settings.send_frequency, lock=self._lock
        )
        self._pace = manner.pace
        self._open: dict[int, RL4SysTrajectory] = {}  # that something was added to, in this order
        atexit.register(_at_exit, weakref.ref(self))

    @property
    def local_version(self) -> int:
        """Give the number of the version that decides; -1: none yet."""
        newest = self.app.version
        return -1 if newest is None else newest.number

    @property
    def counts(self) -> Counts:
        """Give what this agent counted; `app.counters()` has what the session did."""
        return self._writing.counts

    def request_for_action(
        self, traj: RL4SysTrajectory | None = None, obs: Any = None, mask: Any = None, *args: Any, **kwargs: Any
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """Decide. Without an episode, or with one that is over, a new one begins."""
        if obs is None:
            raise ValueError("request_for_action: obs is None; hand over what the program sees")
        if self._pace:
            self._writing.yield_turn()
        with self._lock:
            action = self._decisions.decide(obs, mask)
            if traj is None or traj.completed:
                if traj is not None and id(traj) in self._open:  # its end was marked on it, not here
                    self._end(traj)
                traj = RL4SysTrajectory(action.version)
            elif len(traj) >= self._limit:
                self._cut(traj, action)
        return traj, action

    def add_to_trajectory(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Say that the action was carried out; rewards may be set before and after."""
        with self._lock:
            if traj.completed:
                _log.warning("an action was added to an episode that is over: it is not learned from")
                return
            if len(traj) >= self._limit:
                self._cut(traj, action)
            traj.add_action(action)
            self._open[id(traj)] = traj
            if len(self._open) > OPEN:
                self._abandon(next(iter(self._open.values())))

    def mark_end_of_trajectory(self, traj: RL4SysTrajectory, action: RL4SysAction | None) -> None:
        """Say that the episode ended with this action, added already or not."""
        with self._lock:
            if traj.completed and id(traj) not in self._open:
                return
            if action is not None:
                action.set_done(True)
                traj.add_action(action)
            self._end(traj)

    def update_action_reward(self, action: RL4SysAction, reward: float) -> None:
        """Set an action's reward."""
        action.update_reward(reward)

    def close(self, timeout: float = CLOSING) -> Any:
        """Deliver everything, or say what remains; it is on the disk, and the next process sends it."""
        with self._lock:
            if self._writing.closed:
                return None
            for traj in list(self._open.values()):
                self._abandon(traj)
            self._writing.release(0)
            self._writing.closed = True
        remaining = self.app.close(timeout)
        if remaining.payloads:
            _log.warning("closed before everything was delivered: %s", remaining)
        return remaining

    def _shown(self, chosen: Any) -> Any:
        """Give an action as the algorithm's applications take it: an int for DQN, else an array."""
        if not self._vector:
            return chosen
        if isinstance(chosen, int):
            return np.array([chosen])
        return np.clip(chosen, -self._bound, self._bound)[None]

    def _end(self, traj: RL4SysTrajectory) -> None:
        """End an episode: nothing comes after it."""
        traj.completed = True
        self._open.pop(id(traj), None)
        if traj.actions:
            self._writing.take(Ended(list(traj.actions)))

    def _cut(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Hand over an episode that grew too long; it goes on with this action."""
        self._open.pop(id(traj), None)
        self._writing.take(Ended(list(traj.actions), self._decisions.seen(action)))
        traj.actions.clear()

    def _abandon(self, traj: RL4SysTrajectory) -> None:
        """Hand over what is known of an episode that nobody ended: the last outcome is not."""
        self._open.pop(id(traj), None)
        *known, last = traj.actions
        if traj.completed or last.done:
            self._end(traj)
            return
        traj.completed = True
        self._writing.counts.unfinished += 1
        if known:
            self._writing.take(Ended(known, self._decisions.seen(last)))


def _at_exit(agent: "weakref.ref[RL4SysAgent]") -> None:
    """Deliver what a program that never calls close leaves."""
    found = agent()
    if found is not None:
        found.close()
