"""Lanes and a policy in, fragments out: the loop that every actor turns."""

from collections.abc import Callable

import numpy as np

from farfield.experience.lanes import Lanes
from farfield.experience.noise import draw
from farfield.protocols import Policy
from farfield.types import Array, Choice, Columns, Field, Fragment, Memory, Tick, Version, Weights, noise_blocks

Newer = Callable[[], tuple[Version, Weights] | None]  # a version to go on with, once there is one


class Actor:
    """Steps its lanes with the newest weights it was given; one `unroll` is one fragment of one stream."""

    def __init__(
        self, lanes: Lanes, policy: Policy, *, run: str, stream: str, seed: int, steps: int, label: str, spec: str
    ) -> None:
        self.lanes, self.policy = lanes, policy
        self.run, self.stream, self.seed, self.steps, self.label, self.spec = run, stream, seed, steps, label, spec
        self.seq, self.decision, self.stepped = 0, 0, 0
        self.version = -1  # that it acts with
        self._version: Version | None = None
        self._obs: Columns = {}
        self._memory: Memory = {}
        self._first = np.ones(lanes.count, bool)  # [N] the next row begins an episode
        self._total = np.zeros(lanes.count, np.float64)
        self._length = np.zeros(lanes.count, np.int32)

    def load(self, version: Version, weights: Weights) -> None:
        """Act with this version from the next step on."""
        self.policy.load(version, weights)
        self._version, self.version = version, version.number

    def unroll(self, newer: Newer = lambda: None) -> Fragment:
        """Step all lanes `steps` times, each time with the newest version that `newer` knows of."""
        version = self._version
        assert version is not None, "an actor acts after its first version was loaded"
        if not self._obs:
            self._obs, self._memory = self.lanes.reset(), self.policy.memory(self.lanes.count)
        T, N = self.steps, self.lanes.count
        blocks = noise_blocks(self.lanes.spec, version.network)
        noise = draw(blocks, seed=self.seed, stream=self.stream, first=self.decision, steps=T, lanes=N)
        rows = Rows(self.lanes.spec.observations, T, N)
        rows.remember(self._memory)
        first = self._first
        versions = np.empty(T, np.int64)
        for t in range(T):
            if found := newer():
                self.load(*found)
            versions[t] = self.version
            self._step(rows, t, noise[t])
            self.stepped += N
        columns = rows.finish(self._obs, first)
        self._first = rows.next_first
        columns |= self._episodes(columns)
        actions = {field.name: columns[field.name] for field in self.lanes.spec.actions}
        columns["log_prob"] = self.policy.log_prob(rows.logits, actions)
        if versions[0] != versions[-1]:
            columns["version"] = versions
        fragment = Fragment(
            run=self.run, stream=self.stream, seq=self.seq, version=int(versions[0]), attempt=version.attempt,
            spec=self.spec, columns=columns, decision=self.decision, actor=self.label,
        )  # fmt: skip
        self.seq, self.decision = self.seq + 1, self.decision + T * N
        return fragment

    def _step(self, rows: "Rows", t: int, noise: Array) -> None:
        if self._memory and self._first.any():
            for state in self._memory.values():
                state[self._first] = 0
        choice = self.policy.act(self._obs, noise=noise, memory=self._memory)
        rows.decide(t, self._obs, choice)  # before the step, which may write new observations where these are
        tick = self.lanes.step(choice.action)
        rows.write(t, tick)
        if self._memory:
            self._first = begins(tick)
        self._obs, self._memory = tick.obs, choice.memory

    def _episodes(self, columns: Columns) -> Columns:
        """Give returns and lengths of the episodes that ended, and remember how far the others are."""
        total = self._total + np.cumsum(columns["reward"], 0, np.float64)  # [T, N]
        length = self._length + np.cumsum(columns["valid"], 0, np.int32)
        before, steps_before = np.zeros_like(self._total), np.zeros_like(self._length)
        returns: list[float] = []
        lengths: list[int] = []
        for t, lane in np.argwhere(columns["terminated"] | columns["truncated"]):
            returns.append(float(total[t, lane] - before[lane]))
            lengths.append(int(length[t, lane] - steps_before[lane]))
            before[lane], steps_before[lane] = total[t, lane], length[t, lane]
        self._total, self._length = total[-1] - before, length[-1] - steps_before
        return {
            "episode/return": np.asarray(returns, np.float32),
            "episode/length": np.asarray(lengths, np.int32),
        }

    def state(self) -> Columns:
        """Give everything that an exact resume needs: where each lane is, its memory, the counters."""
        counters = {"seq": self.seq, "decision": self.decision, "stepped": self.stepped}
        state: Columns = {name: np.asarray(value) for name, value in counters.items()}
        state |= {"first": self._first, "total": self._total, "length": self._length}
        state |= {f"memory/{node}": value for node, value in self._memory.items()}
        return state | {f"lanes/{name}": value for name, value in self.lanes.state().items()}

    def restore(self, state: Columns) -> None:
        """Continue from `state` of an equal actor: lanes are reset and repeat their actions."""
        self.seq, self.decision, self.stepped = (int(state[name]) for name in ("seq", "decision", "stepped"))
        self._first, self._total, self._length = (state[name].copy() for name in ("first", "total", "length"))
        memory = [name for name in state if name.startswith("memory/")]
        self._memory = {name.removeprefix("memory/"): state[name].copy() for name in memory}
        inner = {name.removeprefix("lanes/"): value for name, value in state.items() if name.startswith("lanes/")}
        self._obs = self.lanes.restore(inner)


class Rows:
    """The columns of one fragment while it is being written, row by row."""

    def __init__(self, observations: tuple[Field, ...], steps: int, lanes: int) -> None:
        T, N = steps, lanes
        self.logits: Columns = {}
        self._seen: Columns = {f.name: np.empty((T + 1, N, *f.shape), f.dtype) for f in observations}
        self._acted: Columns = {}
        self._memory: Columns = {}
        self._reward = np.empty((T, N), np.float32)
        self._terminated, self._truncated, self._valid, self._first = (np.empty((T, N), bool) for _ in range(4))
        self._finals: list[tuple[int, Array, Columns]] = []
        self.next_first: Array = np.zeros(N, bool)  # whether an episode begins after the last row

    def remember(self, memory: Memory) -> None:
        """Keep the memory before row 0."""
        self._memory = {f"memory/{node}": state.copy() for node, state in memory.items()}

    def decide(self, t: int, obs: Columns, choice: Choice) -> None:
        """Write what row t of all lanes saw and chose."""
        if not self._acted:
            self._acted = _like(choice.action, len(self._reward))
            self.logits = _like(choice.logits, len(self._reward))
        for name, value in obs.items():
            self._seen[name][t] = value
        for name, value in choice.action.items():
            self._acted[name][t] = value
        for name, value in choice.logits.items():
            self.logits[name][t] = value

    def write(self, t: int, tick: Tick) -> None:
        """Write what came of it."""
        self._reward[t] = tick.reward
        self._terminated[t] = tick.terminated
        self._truncated[t] = tick.truncated
        self._valid[t] = tick.valid
        if tick.final is not None and len(tick.final[0]):
            self._finals.append((t, *tick.final))

    def finish(self, obs: Columns, first: Array) -> Columns:
        """Add the last observation, and where episodes begin; give all columns that a tick has a part in."""
        self._first[0] = first
        np.logical_not(self._valid[:-1], out=self._first[1:])  # after a row that was only a reset
        self.next_first = ~self._valid[-1]
        for t, lanes, _ in self._finals:
            (self.next_first if t + 1 == len(self._first) else self._first[t + 1])[lanes] = True
        for name, value in obs.items():
            self._seen[name][-1] = value
        columns = self._seen | self._acted | self._memory
        columns |= {"reward": self._reward, "terminated": self._terminated, "truncated": self._truncated}
        columns |= {"valid": self._valid, "first": self._first}
        if self._finals:
            index = [(t, lane) for t, lanes, _ in self._finals for lane in lanes]
            columns["final/index"] = np.asarray(index, np.int32)
            for name in obs:
                columns[f"final/{name}"] = np.concatenate([final[name] for *_, final in self._finals])
        return columns


def begins(tick: Tick) -> Array:
    """Say in which lanes the next row begins an episode."""
    first = ~tick.valid
    if tick.final is not None:
        first[tick.final[0]] = True
    return first


def _like(values: Columns, steps: int) -> Columns:
    return {name: np.empty((steps, *value.shape), value.dtype) for name, value in values.items()}
