"""One run of a live program: observations, rewards and its end in; actions out, at once, whatever the network does."""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from farfield.errors import MissingError
from farfield.experience.guesses import Guess
from farfield.experience.intake import given
from farfield.experience.parts import Part, memory_of
from farfield.types import Columns, Decision, Memory

Act = Callable[..., Any]


class Manner(NamedTuple):
    """How an episode decides."""

    greedy: bool
    remote: bool
    pace: bool
    fallback: Any
    deadline: float


class Episode:
    """Made by `Session.episode`. After `end`, the next `act` begins the next run of the program.

    `act`, `reward` and `record` are the track's own wherever nothing has to happen before, so that nothing
    costs anything above it.
    """

    act: Act
    reward: Callable[[Any], None]
    record: Callable[..., None]

    def __init__(self, part: Part, lanes: int, manner: Manner, done: Callable[["Episode"], None]) -> None:
        self._part, self._lanes, self._manner, self._done = part, lanes, manner, done
        self._guess: Guess | None = None
        self._refusal: Act | None = None  # instead of everything, once it is over
        self._begin(part.take(lanes))
        if not isinstance(manner.fallback, str):
            self._guess = Guess(part.spec, lanes, manner.fallback)  # what it cannot use is refused now

    @property
    def decision(self) -> Decision:
        """Name the last decision (of its first lane; lane i has n + i), so that its reward can come later."""
        return Decision(self._track.stream, self._track.decision)

    def end(self, truncated: bool = False, obs: Any = None, mask: Any = None) -> None:
        """End the episode; where it was only cut off, say with `obs` what would have been seen next."""
        if self._track.decision == self._ended:
            return
        self._track.end(truncated, obs, mask)
        self._ended = self._track.decision
        self._next = self._ended + max(self._lanes, 1) * (1 + truncated)
        self._memory = {}
        self._part.episodes += max(self._lanes, 1)
        if self._track.stream in self._part.outdated:  # until then the last decision keeps its name
            self.act, self.record = partial(self._begin_anew, "act"), partial(self._begin_anew, "record")

    def restart(self, ended: Any, truncated: Any = None, obs: Any = None, mask: Any = None) -> None:
        """Say in which lanes an episode ended with the last decision; `obs`: last observations of all lanes."""
        self._track.restart(ended, truncated, obs, mask)
        self._part.episodes += int(np.count_nonzero(ended))

    def advise(self, obs: Any, mask: Any = None, best: int = 3) -> list[tuple[Any, float, float | None]]:
        """Give the best actions for one observation, with probability and value (where a network has that).

        Nothing is decided or recorded. Best first; nothing while there is no version.
        """
        if self._refusal is not None:
            self._refusal()
        part = self._part
        memory = {node: state[:1] for node, state in memory_of(self._track).items()}
        return part.advise(part.intake(0).read(obs, mask), memory, best)

    def close(self, truncated: bool = False) -> None:
        """End the episode, if it is not over, and give its stream to the next one."""
        if self._refusal is not None:
            return
        self.end(truncated)
        self.forbid(self._refuse)
        self._part.give(self._track, self._lanes)
        self._done(self)

    def forbid(self, refuse: Act) -> None:
        """Let every call end with an error."""
        self._refusal = refuse
        self.act = self.reward = self.record = self.restart = self.end = refuse

    def __enter__(self) -> "Episode":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(truncated=kind is not None)

    def _begin(self, track: Any) -> None:
        """Write into a track from now on."""
        self._track = track
        self._memory: Memory = {}  # of a server that decides
        self._ended = track.decision  # the last decision before the episode
        self._next = self._ended + max(self._lanes, 1)  # where a server decides
        self.reward, self.record = track.reward, track.record
        self._choose()

    def _begin_anew(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Begin the next run of the program in another stream, with fragments as the server likes them now."""
        self._part.give(self._track, self._lanes)
        self._begin(self._part.take(self._lanes))
        return getattr(self, what)(*arguments, **options)

    def _choose(self) -> None:
        """Take the shortest way to an action that there is now."""
        manner = self._manner
        if manner.remote:
            act = self._act_remotely
        elif not self._part.ready:
            act = self._act_early
        else:
            act = partial(self._track.act, greedy=True) if manner.greedy else self._track.act
        self.act = partial(self._act_in_turn, act) if manner.pace else act

    def _act_in_turn(self, act: Act, obs: Any, mask: Any = None) -> Any:
        self._part.yield_turn(self._track)
        return act(obs, mask)

    def _act_early(self, obs: Any, mask: Any = None) -> Any:
        """Decide before the first version has come."""
        if self._part.ready:
            self._choose()
            return self.act(obs, mask)
        if self._manner.fallback == "remote":
            return self._act_remotely(obs, mask)
        return self._fall_back(obs, mask)

    def _act_remotely(self, obs: Any, mask: Any = None) -> Any:
        """Let the server decide, within the deadline."""
        if self._guess is None:
            self._guess = Guess(self._part.spec, self._lanes, self._manner.fallback)
        part, greedy, columns = self._part, self._manner.greedy, self._guess.columns(obs, mask)
        stream = "" if greedy else self._track.stream
        number = max(self._next, self._track.decision + 1)
        answer = part.link.ask(columns, self._memory, stream=stream, decision=number, timeout=self._manner.deadline)
        if answer is None:
            part.late += 1
            return self._fall_back(obs, mask)
        action = self._checked(columns, answer)
        if action is None:
            part.rubbish += 1
            return self._fall_back(obs, mask)
        memory = self._memory or {node: np.zeros_like(state) for node, state in answer.memory.items()}
        scores = None if greedy else answer.log_prob if self._lanes else float(answer.log_prob[0])
        self._track.put(
            obs, action, scores, memory=memory, version=answer.version, attempt=answer.attempt, mask=mask,
            source="greedy" if greedy else "",
        )  # fmt: skip
        self._memory = answer.memory
        self._next = self._track.decision + max(self._lanes, 1)
        return action

    def _checked(self, columns: Columns, answer: Any) -> Any:
        """Give the action of a server's answer; none where it is no action or cannot be learned from."""
        lanes = max(self._lanes, 1)
        try:
            action = given(self._part.spec, answer.action, self._lanes)
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        scores = np.zeros(lanes) if self._manner.greedy else answer.log_prob
        scored = scores is not None and scores.shape == (lanes,) and bool(np.isfinite(scores).all())
        return action if scored and self._guess is not None and self._guess.sound(columns, action) else None

    def _fall_back(self, obs: Any, mask: Any) -> Any:
        if self._manner.fallback == "last" and self._part.ready:
            action = self._track.act(obs, mask, self._manner.greedy)
        else:
            if self._guess is None:
                self._guess = Guess(self._part.spec, self._lanes, self._manner.fallback)
            action = self._guess(obs, mask)
            self._track.record(obs, action, np.zeros(self._lanes) if self._lanes else 0.0, mask, "fallback")
        self._part.fallbacks += max(self._lanes, 1)
        self._next = self._track.decision + max(self._lanes, 1)
        return action

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise MissingError("this episode is over: begin another one with app.episode()")
