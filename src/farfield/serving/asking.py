"""One client's Act call: requests to decide in, answers out in any order."""

import asyncio
from functools import partial

from farfield import columns
from farfield.errors import CorruptError, FarfieldError, MissingError, SpecError
from farfield.serving.hosted import Hosted
from farfield.serving.predictor import Answer, Ask
from farfield.serving.uplinks import Talk
from farfield.v1 import farfield_pb2 as wire

MOST = 256  # requests of one call that wait for their answers; more are not read


class Asking:
    """Reads requests, hands them to the predictor, writes what was decided."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._replies: list[wire.ActReply] = []
        self._open = 0  # requests without an answer
        self._ended = False
        self._failure: FarfieldError | None = None

    async def run(self, first: wire.ActRequest, talk: Talk) -> None:
        """Serve until the client is done; MissingError: there is no version yet."""
        reader = asyncio.create_task(self._read(first, talk))
        try:
            while not (self._ended and not self._open and not self._replies):
                await self._wake.wait()
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                replies, self._replies = self._replies, []
                for reply in replies:
                    await talk.write(reply)
            if reader.done():
                reader.result()  # raises what nobody foresaw
        finally:
            reader.cancel()

    def stop(self) -> None:
        """Take nothing more; what was asked is still answered."""
        self._ended = True
        self._wake.set()
        self._room.set()

    async def _read(self, first: wire.ActRequest, talk: Talk) -> None:
        request: wire.ActRequest | None = first
        try:
            if not request.observations:  # it only said who calls
                request = await talk.read()
            while request is not None and not self._ended:
                await self._take(request)
                request = await talk.read()
        except MissingError as error:
            self._failure = error
        finally:
            self.stop()

    async def _take(self, request: wire.ActRequest) -> None:
        while self._open >= MOST and not self._ended:
            self._room.clear()
            await self._room.wait()
        try:
            answer = self._hosted.act(ask_of(request))
        except MissingError:
            raise
        except FarfieldError as error:
            self._answer(wire.ActReply(id=request.id, error=str(error)))
        else:
            self._open += 1
            answer.add_done_callback(partial(self._decided, request.id))

    def _decided(self, number: int, answer: "asyncio.Future[Answer]") -> None:
        self._open -= 1
        self._room.set()
        if answer.cancelled():
            return
        error = answer.exception()
        self._answer(reply_to(number, answer.result()) if error is None else wire.ActReply(id=number, error=str(error)))

    def _answer(self, reply: wire.ActReply) -> None:
        self._replies.append(reply)
        self._wake.set()


def ask_of(request: wire.ActRequest) -> Ask:
    """Read a request."""
    if len(request.stream) not in (0, 16):
        raise SpecError(f"stream: expected 16 bytes, or none to act greedily, came {len(request.stream)}")
    try:
        seen, memory = columns.read(request.observations), columns.read(request.memory)
    except CorruptError as error:
        raise SpecError(str(error)) from error
    return Ask(seen, memory, request.stream.hex(), request.decision)


def reply_to(number: int, answer: Answer) -> wire.ActReply:
    """Write an answer."""
    scored = {} if answer.log_prob is None else {"log_prob": answer.log_prob}
    return wire.ActReply(
        id=number, actions=columns.write(answer.action), memory=columns.write(answer.memory),
        log_prob=next(iter(columns.write(scored)), None), version=answer.version, attempt=answer.attempt,
    )  # fmt: skip
