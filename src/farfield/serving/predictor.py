"""Requests to act in, one run of the network for all that wait, answers out."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from farfield.errors import ConfigError, CorruptError, FarfieldError, MissingError, SpecError, nearest
from farfield.serving.fieldrules import Rule, numbers, observations
from farfield.serving.policies import NumpyPolicy
from farfield.serving.releases import Release
from farfield.types import Array, Columns, Memory, Noise, noise_blocks

SIZES = (1, 4, 16, 64, 256, 1024)  # lanes that programs are compiled for: a few, since each has buffers of its own
INLINE = 0.002  # seconds of the network: from here on it runs in a thread, so that the event loop goes on meanwhile
logger = logging.getLogger("farfield.gateway")
_STREAM = re.compile("[0-9a-f]{32}")
_FLOAT = np.dtype(np.float32)


class Draw(Protocol):
    """The noise of decisions, as experience/noise.py and the native core draw it."""

    def __call__(
        self, blocks: Sequence[tuple[str, int]], *, seed: int, stream: str, first: int, steps: int, lanes: int
    ) -> Noise:
        """Give noise [T, N, K]."""
        ...


class Ask(Struct, frozen=True):
    """One decision of N lanes that somebody wants."""

    observations: Columns  # [N, …] each
    memory: Memory = {}  # [N, …]; empty: nothing is remembered
    stream: str = ""  # whose noise; empty: greedily
    decision: int = 0  # of the first lane


class Answer(Struct, frozen=True):
    """What was decided."""

    action: Columns
    memory: Memory
    log_prob: Array | None  # [N]; None when greedy
    version: int
    attempt: int


class Waiting(Struct, frozen=True, eq=False):
    """An ask with its answer to come."""

    ask: Ask
    lanes: int
    answer: "asyncio.Future[Answer]"


class Acting:
    """A version's policy and what its batches are made of."""

    def __init__(self, release: Release) -> None:
        version = release.version
        self.release, self.spec, self.network = release, version.spec, version.network
        self.policy = NumpyPolicy(version.spec, version.network)
        self.policy.load(version, release.weights)
        self.blocks = noise_blocks(version.spec, version.network)
        self.rules: dict[str, Rule] = {field.name: observations(field) for field in version.spec.observations}
        greedy = [np.full(width, name == "uniform", np.float32) for name, width in self.blocks]
        self.greedy = np.concatenate(greedy)  # noise that changes nothing: a uniform of 1 is above any epsilon

    def fits(self, release: Release) -> bool:
        """Say whether only the tensors of a newer version differ."""
        return release.version.network == self.network and release.version.spec == self.spec

    def load(self, release: Release) -> None:
        """Go on with a newer version."""
        self.policy.load(release.version, release.weights)
        self.release = release


class Predictor:
    """Decides for everybody who waits at once; used by one event loop."""

    def __init__(self, newest: Callable[[], Release | None], *, draw: Draw | None, seed: int, lanes: int) -> None:
        self._newest, self._draw, self._seed = newest, draw, seed
        self._lanes = min(lanes, SIZES[-1])
        self._acting: Acting | None = None
        self._waiting: list[Waiting] = []
        self._turns: asyncio.Task[None] | None = None
        self._lasted = 0.0  # seconds that the network took last
        self.batches = self.decided = 0

    def put(self, ask: Ask) -> "asyncio.Future[Answer]":
        """Queue a request; SpecError: it does not fit the spec, MissingError: there is no version yet."""
        acting = self._take_up()
        lanes = self._check(ask, acting)
        loop = asyncio.get_running_loop()
        waiting = Waiting(ask, lanes, loop.create_future())
        self._waiting.append(waiting)
        if self._turns is None:
            self._turns = loop.create_task(self._run())
        return waiting.answer

    def _take_up(self) -> Acting:
        release, acting = self._newest(), self._acting
        if release is None:
            raise MissingError("there is no version yet: act by yourself until the learner has made the first one")
        if acting is None or not acting.fits(release):
            acting = self._acting = Acting(release)
        return acting

    def _check(self, ask: Ask, acting: Acting) -> int:
        """Refuse what cannot be decided upon, and give its lanes."""
        if ask.observations.keys() != acting.rules.keys():
            raise SpecError(f"observations: expected {sorted(acting.rules)}, came {sorted(ask.observations)}")
        first = next(iter(ask.observations.values()))
        lanes = len(first) if first.ndim else 0
        if not 1 <= lanes <= self._lanes:
            raise SpecError(f"lanes: expected 1 to {self._lanes} in one request, came {lanes}")
        with np.errstate(over="ignore"):  # sums of huge numbers: they are looked at one by one then
            for name, rule in acting.rules.items():
                rule(name, ask.observations[name], (lanes,))
        for name, state in ask.memory.items():
            if name not in acting.release.memory:
                raise SpecError(f"memory {name!r} is unknown; {nearest(name, acting.release.memory)}")
            numbers(f"memory/{name}", state, _FLOAT, (lanes, *acting.release.memory[name]))
        if ask.stream and not _STREAM.fullmatch(ask.stream):
            raise SpecError(f"stream: expected 32 lower-case hexadecimal digits or nothing, came {ask.stream[:40]!r}")
        if ask.stream and self._draw is None:
            raise ConfigError("this gateway draws no noise: ask without a stream, which means greedily")
        if not 0 <= ask.decision < 1 << 63:
            raise SpecError(f"decision: expected 0 to {(1 << 63) - 1}, came {ask.decision}")
        return lanes

    async def _run(self) -> None:
        """Decide until nobody waits; whatever comes during one batch makes the next."""
        try:
            await asyncio.sleep(0)  # all that can be read now gets into the first batch
            while self._waiting:
                batch = self._next()
                try:
                    await self._decide(batch)
                except FarfieldError as error:
                    _fail(batch, error)
                except Exception:  # nobody may wait for ever
                    logger.exception("a version cannot be acted with")
                    _fail(batch, CorruptError("the newest version cannot be acted with; the gateway's log says why"))
        finally:
            self._turns = None

    def _next(self) -> list[Waiting]:
        """Take as many requests as fit into one run of the network."""
        lanes = count = 0
        for waiting in self._waiting:
            if lanes + waiting.lanes > self._lanes:
                break
            lanes, count = lanes + waiting.lanes, count + 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _decide(self, batch: list[Waiting]) -> None:
        acting = self._take_up()
        if self._lasted > INLINE:
            answers = await asyncio.get_running_loop().run_in_executor(None, self._compute, acting, batch)
        else:
            answers = self._compute(acting, batch)
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():  # else nobody waits any more
                waiting.answer.set_result(answer)

    def _compute(self, acting: Acting, batch: list[Waiting]) -> list[Answer]:
        release = self._newest() or acting.release
        if release is not acting.release and acting.fits(release):
            acting.load(release)
        lanes = sum(waiting.lanes for waiting in batch)
        size = next(size for size in SIZES if size >= lanes)
        pad = size - lanes
        seen = {name: _stack([waiting.ask.observations[name] for waiting in batch], pad) for name in acting.rules}
        states = {
            node: _stack([_state(waiting, node, shape) for waiting in batch], pad)
            for node, shape in acting.release.memory.items()
        }
        noise = _stack([self._noise(acting, waiting) for waiting in batch], pad)
        began = time.thread_time()
        choice = acting.policy.act(seen, noise=noise, memory=states)
        self._lasted = time.thread_time() - began
        scores = acting.policy.log_prob(choice.logits, choice.action)
        actions = {f.name: choice.action[f.name].astype(f.dtype, copy=False) for f in acting.spec.actions}
        self.batches, self.decided = self.batches + 1, self.decided + lanes
        answers: list[Answer] = []
        start = 0
        for waiting in batch:
            own = slice(start, start := start + waiting.lanes)
            answers.append(
                Answer(
                    {name: value[own] for name, value in actions.items()},
                    {node: value[own] for node, value in choice.memory.items()},
                    scores[own] if waiting.ask.stream else None,
                    acting.release.version.number,
                    acting.release.version.attempt,
                )
            )
        return answers

    def _noise(self, acting: Acting, waiting: Waiting) -> Noise:
        ask = waiting.ask
        if not ask.stream or self._draw is None:
            return np.broadcast_to(acting.greedy, (waiting.lanes, len(acting.greedy)))
        drawn = self._draw(
            acting.blocks, seed=self._seed, stream=ask.stream, first=ask.decision, steps=1, lanes=waiting.lanes
        )
        return drawn[0]


def _fail(batch: list[Waiting], error: FarfieldError) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def _stack(parts: list[Array], pad: int) -> Array:
    """Lay lanes behind one another, with zeros at the end; requests have been checked, so that dtypes agree."""
    if pad:
        parts = [*parts, np.zeros((pad, *parts[0].shape[1:]), parts[0].dtype)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _state(waiting: Waiting, node: str, shape: tuple[int, ...]) -> Array:
    state = waiting.ask.memory.get(node)
    return np.zeros((waiting.lanes, *shape), np.float32) if state is None else state
