"""Observations of one stream in; actions, and with the rewards that follow finished fragments as payloads, out."""

from collections.abc import Callable
from math import isfinite
from threading import Lock
from time import monotonic
from typing import Any, Literal, cast

import numpy as np

from farfield.canonical import from_json
from farfield.errors import MissingError, SpecError
from farfield.experience.intake import amounts, given
from farfield.experience.noise import draw
from farfield.experience.slots import Decider, Slot
from farfield.experience.writing import NOBODY, Emit, Writer
from farfield.types import Array, Memory, Spec

DRAWN = 1024  # decisions for which noise is drawn at once, about
NARROW = 64  # numbers of an observation that are summed one by one


class Track:
    """The rows of one stream while they are written; any thread may call it, each call is one whole.

    `lanes` 0: one lane, everything comes and goes without the axis of lanes. The native one does the same, faster.
    """

    def __init__(  # noqa: PLR0913 - the native one is called in the same way
        self, slot: Slot, spec: bytes, *, run: str, policy: str, actor: str, stream: str, seed: int, steps: int,
        lanes: int, emit: Emit,
    ) -> None:  # fmt: skip
        self._slot, self._spec = slot, from_json(spec, Spec)
        self.stream, self._seed, self._lanes = stream, seed, lanes
        self._lock = Lock()
        self._writer = Writer(
            self._spec, steps=steps, lanes=lanes, emit=emit, run=run, policy=policy, actor=actor, stream=stream
        )
        self._snapshot: Any = self  # that it acts with; none yet
        self._shape = b""
        self._decider: Decider | None = None
        self._stamp = NOBODY  # of what decides
        self._noise: list[Array] = []  # one entry for each row from decision `_drawn` on
        self._drawn = 0
        self._fast = False

    @property
    def seq(self) -> int:
        """Give the number of the next fragment."""
        return self._writer.seq

    @property
    def decision(self) -> int:
        """Give the number of the last decision (of its first lane)."""
        return self._writer.decision

    @property
    def version(self) -> int:
        """Give the number of the version that decided last; -1: none did."""
        return -1 if self._writer.stamp is NOBODY else self._writer.stamp[0]

    @property
    def rows(self) -> int:
        """Count the rows that wait, the open one among them."""
        return self._writer.page.count

    @property
    def oldest(self) -> float:
        """Say for how many seconds the first of them has been waiting."""
        return monotonic() - self._writer.began if self._writer.page.count else 0.0

    def act(self, obs: Any, mask: Any = None, greedy: bool = False) -> Any:
        """Decide, and open a row for what comes of it; on an error nothing has happened."""
        with self._lock:
            if self._slot.snapshot is not self._snapshot:
                self._take_up()
            return self._short(obs, mask, greedy) if self._fast else self._decide(obs, mask, greedy)

    def reward(self, amount: Any) -> None:
        """Add to the reward of the open row: a number, or one for each lane."""
        with self._lock:
            self._writer.reward(amount)

    def end(self, truncated: bool = False, obs: Any = None, mask: Any = None) -> None:
        """End the episode (all lanes' episodes); cut off from outside, its last observation is asked for."""
        with self._lock:
            self._writer.end(truncated, obs, mask, self._memory)

    def restart(self, ended: Any, truncated: Any = None, obs: Any = None, mask: Any = None) -> None:
        """Say in which lanes an episode ended with the open row; the others go on. `obs`: last ones of all lanes."""
        with self._lock:
            self._writer.restart(ended, truncated, obs, mask)

    def record(self, obs: Any, action: Any, reward: Any, mask: Any = None, source: str = "host") -> None:
        """Open a row for a decision that somebody else made, with a first part of its reward."""
        if not source:
            raise SpecError('record: source: expected who decided, such as "person" or "host", came nothing')
        with self._lock:
            writer = self._writer
            rows = writer.rows[writer.page.count]
            writer.intake.write(obs, mask, rows)
            chosen = writer.intake.choice(action)
            writer.intake.permit(rows, chosen)
            amount = amounts(reward, (self._lanes,) if self._lanes else (), np.zeros(writer.N))
            k = writer.place(source, writer.stamp)
            writer.fill(k, chosen)
            writer.page.reward[k] = amount

    def put(
        self, obs: Any, action: Any, log_prob: Any, *, memory: Memory | None = None, version: int, attempt: int,
        mask: Any = None, source: str = "",
    ) -> None:  # fmt: skip
        """Open a row for a decision that a server made; `memory` is the state before it."""
        with self._lock:
            writer, page = self._writer, self._writer.page
            writer.intake.write(obs, mask, writer.rows[page.count])
            chosen = writer.intake.choice(action)
            k = writer.place(source, (version, attempt))
            writer.prior = {node: value.copy() for node, value in (memory or {}).items()}
            if k == 0 and not source:
                page.memory = writer.prior
            page.score(k, writer.score)
            page.log_prob[k], page.scored = 0.0 if log_prob is None else log_prob, k + 1
            writer.fill(k, chosen)

    def credit(self, n: int, amount: float, mode: Literal["add", "set"] = "add") -> bool:
        """Change the reward of decision n if its row is still here."""
        with self._lock:
            return self._writer.credit(n, amount, mode)

    def cut(self) -> int:
        """Emit the rows that are closed, and give how many; the open one stays."""
        with self._lock:
            return self._writer.cut()

    def memory(self) -> Memory:
        """Give what the next decision would remember, [N, …] for each recurrent node."""
        with self._lock:
            return self._memory()

    def _decide(self, obs: Any, mask: Any, greedy: bool) -> Any:
        decider, writer = self._decider, self._writer
        assert decider is not None
        page = writer.page
        writer.intake.write(obs, mask, writer.rows[page.count])
        prior = self._memory() if decider.states else {}
        k = writer.place("", self._stamp)
        writer.prior = prior
        if k == 0:
            page.memory = prior
        rows = writer.rows[k]
        for name, buffer in decider.inputs:
            buffer[...] = rows[name]
        for node, before, _ in decider.states:
            before[...] = prior[node]
        decider.run()
        decision = writer.base + k * writer.N
        at = (decision - self._drawn) // writer.N
        chosen = decider.choose(None if greedy else self._noise[at] if at < len(self._noise) else self._draw(decision))
        for name, value in decider.logits.items():
            page.logits[name][k] = value
        for _, before, after in decider.states:
            before[...] = after
        writer.fill(k, chosen)
        return given(self._spec, {name: page.acted[name][k].copy() for name in chosen}, self._lanes)

    def _memory(self) -> Memory:
        fresh = self._writer.first
        memory: Memory = {}
        for node, before, _ in self._decider.states if self._decider else []:
            memory[node] = before.copy()
            memory[node][fresh] = 0
        return memory

    def _draw(self, decision: int) -> Array:
        """Draw noise for a row and some that follow; give that row's."""
        N = self._writer.N
        rows = max(1, DRAWN // N)
        drawn = draw(self._snapshot.blocks, seed=self._seed, stream=self.stream, first=decision, steps=rows, lanes=N)
        self._noise, self._drawn = list(drawn[:, 0] if self._fast else drawn), decision
        return self._noise[0]

    def _take_up(self) -> None:
        """Go on with the snapshot that is in the slot."""
        snapshot = self._slot.snapshot
        if snapshot is None:
            raise MissingError("no version has come yet, so nothing can decide: wait for one, or let a fallback decide")
        if self._decider is not None and snapshot.shape == self._shape:
            self._decider.load(snapshot)
        else:
            page = self._writer.page
            page.score(page.count, self._writer.score)
            self._decider = decider = snapshot.decider(self._writer.N)
            self._shape, self._noise, self._writer.score = snapshot.shape, [], decider.score
            page.watch(decider.logits)
            self._shorten(decider)
        self._snapshot, self._stamp = snapshot, (snapshot.number, snapshot.attempt)

    def _shorten(self, decider: Decider) -> None:
        """Prepare the short way where there is one: one observation, one choice, nothing remembered."""
        fields, pick = self._spec.observations, decider.pick
        plain = len(fields) == len(decider.inputs) == 1 and not self._lanes
        narrow = len(fields[0].shape) == 1 and 0 < fields[0].shape[0] <= NARROW and fields[0].dtype == "float32"
        self._fast = plain and narrow and pick is not None and not decider.states
        if self._fast and pick is not None:
            self._short = self._shortest(decider, pick)

    def _shortest(self, decider: Decider, pick: Callable[[Array | None], int]) -> Callable[..., int]:
        """Make what does as `_decide`, without a loop over anything and with everything at hand.

        No call in it lets go of the interpreter, as many of NumPy's do: each would wake up threads that wait for it.
        """
        writer, page, field = self._writer, self._writer.page, self._spec.observations[0]
        intake, rows, array, ends = writer.intake, writer.rows, np.ndarray, (0, page.steps)
        seen, width = list(page.seen[field.name][:, 0]), field.shape
        given, dtype = decider.inputs[0][1].reshape(-1), page.seen[field.name].dtype
        program = tuple(decider.steps)
        taps = [(list(page.logits[name]), value) for name, value in decider.logits.items()]
        chosen = memoryview(cast("Any", page.acted[self._spec.actions[0].name].reshape(-1)))

        def short(obs: Any, mask: Any, greedy: bool) -> int:
            k = page.count
            row = seen[k]
            if obs.__class__ is array and obs.dtype is dtype and obs.shape == width and mask is None:
                row[...] = obs
                if not isfinite(sum(row.tolist())):
                    intake.inlets[0].blame(row)
            else:
                intake.write(obs, mask, rows[k])
            if k in ends or writer.begins or writer.source or self._stamp is not writer.stamp:
                k = writer.place("", self._stamp)
                row = seen[k]
            given[...] = row
            for step in program:
                step()
            decision = writer.base + k
            at = decision - self._drawn
            noise = self._noise
            action = pick(None if greedy else noise[at] if at < len(noise) else self._draw(decision))
            chosen[k] = action
            for tapped, value in taps:
                tapped[k][...] = value
            page.count = k + 1
            writer.open = True
            writer.decision = decision
            return action

        return short
