"""Decisions to be made by the server in, answers out: one Act call that many threads share by the ids of questions."""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition, Event
from time import monotonic
from typing import NamedTuple

from farfield import columns
from farfield.errors import CorruptError, SpecError
from farfield.transports.link.lifeline import Lifeline, Stream
from farfield.types import Array, Columns, Memory
from farfield.v1 import farfield_pb2 as wire


class Answer(NamedTuple):
    """What the server decided."""

    action: Columns
    memory: Memory
    log_prob: Array | None
    version: int
    attempt: int


class Question:
    """One decision that somebody waits for."""

    def __init__(self, request: wire.ActRequest) -> None:
        self.request, self.done = request, Event()
        self.answer: Answer | None = None
        self.refusal = ""


class Asker:
    """Opens its call with the first question; what was asked when it broke is asked again."""

    def __init__(self, open_call: Callable[[Iterator[wire.ActRequest]], Stream], hello: wire.Hello) -> None:
        self.line = Lifeline("farfield-act", self._once)
        self._open_call, self._hello = open_call, hello
        self._work = Condition()
        self._open: dict[int, Question] = {}
        self._waiting: deque[int] = deque()
        self._number = 0
        self._life = 0
        self._closed = False

    def ask(
        self, observations: Columns, memory: Memory, *, stream: str, decision: int, timeout: float
    ) -> Answer | None:
        """Wait for an answer; none in time, or while nobody answers. Without a stream it is greedy."""
        request = wire.ActRequest(
            observations=columns.write(observations), memory=columns.write(memory), stream=bytes.fromhex(stream),
            decision=max(decision, 0),
        )  # fmt: skip
        question = Question(request)
        with self._work:
            self._number += 1
            number = request.id = self._number
            self._open[number] = question
            self._waiting.append(number)
            self._work.notify_all()
        deadline = monotonic() + timeout
        while not question.done.wait(min(0.2, max(0.0, deadline - monotonic()))):
            if self.line.refusal or self.line.closed or monotonic() >= deadline:
                break
        with self._work:
            self._open.pop(number, None)
        if question.refusal:
            raise SpecError(f"the server would not decide: {question.refusal}")
        return question.answer

    def close(self) -> None:
        """Ask nothing more."""
        with self._work:
            self._closed = True
            self._life += 1
            self._work.notify_all()
        self.line.close()

    def _once(self) -> None:
        with self._work:
            self._work.wait_for(lambda: self._open or self._closed)
            if self._closed:
                return
            self._life += 1
            life = self._life
            self._waiting = deque(sorted(self._open))
        try:
            for reply in self.line.hold(self._open_call(self._requests(life))):
                self._take(reply)
                self.line.well()
        finally:
            with self._work:
                self._life += self._life == life
                self._work.notify_all()

    def _requests(self, life: int) -> Iterator[wire.ActRequest]:
        hello: wire.Hello | None = self._hello
        while True:
            with self._work:
                self._work.wait_for(lambda: self._life != life or self._waiting)
                if self._life != life:
                    return
                question = self._open.get(self._waiting.popleft())
            if question is not None:
                request = question.request
                if hello is not None:
                    request, hello = wire.ActRequest(hello=hello), None
                    request.MergeFrom(question.request)
                yield request

    def _take(self, reply: wire.ActReply) -> None:
        with self._work:
            question = self._open.get(reply.id)
        if question is None:  # nobody waits for it any longer
            return
        if reply.error:
            question.refusal = reply.error
        else:
            scored = columns.read([reply.log_prob]) if reply.HasField("log_prob") else {}
            action = columns.read(reply.actions)
            if not action:
                raise CorruptError("an answer without an action came")
            question.answer = Answer(
                action, columns.read(reply.memory), next(iter(scored.values()), None), reply.version, reply.attempt
            )
        question.done.set()
