"""A fuzzer for the decoder, with bytes that no client sends: changed frames of the vectors. A command that was read and
is written again, if the format allows it, must be read as the same command."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence

from tandemmq.broker.protocols.openwire.codec import WireFormat
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.frames import FrameCutter
from tandemmq.broker.protocols.openwire.schema import Command, WireFormatInfo
from tandemmq.broker.protocols.openwire.types import VERSION_MAX
from tandemmq.broker.protocols.openwire.wireformat import negotiate, our_info
from tests.support.fuzz.any_bytes import mutated, pieces, try_all
from tests.support.protocols.openwire.vectors import vectors

FRAME_BYTES_MAX = 1 << 20
EDGES = [0, 1, -1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, -0x8000, 0x7FFFFFFF, -0x80000000, 0x10000, 31, 32, 63, 64, 255]
OURS = our_info(max_frame_size=FRAME_BYTES_MAX, provider_version="0")


def run(seed: int, cases: int) -> Counter[str]:
    samples = [(vector.wire_format, frame) for vector in vectors() for frame in vector.frames if len(frame) < 4096]
    frames = [frame for _, frame in samples]

    def make(dice: random.Random) -> tuple[str, Callable[[], int]]:
        wire_format, frame = dice.choice(samples)
        wire = wire_format() if dice.random() < 0.9 else any_format(dice)
        stream = changed(dice, frame, frames)
        shown = f"{wire.version=} {wire.is_tight=} {wire.is_cached=} {stream.hex()}"
        return shown, lambda: feed(dice, wire, stream)

    return try_all(seed, cases, make, WireError, lambda error: str(error).partition(" ")[0])


def any_format(dice: random.Random) -> WireFormat:
    return WireFormat(
        dice.randint(1, VERSION_MAX),
        is_tight=dice.random() < 0.5,
        is_cached=dice.random() < 0.5,
        has_stack_traces=dice.random() < 0.5,
        cache_size=dice.choice((1, 2, 100, 1024)),
    )


def feed(dice: random.Random, wire: WireFormat, stream: bytes) -> int:
    """Return the number of commands in the stream. Raises WireError at the first invalid bytes."""
    cutter = FrameCutter(FRAME_BYTES_MAX)
    commands = 0
    for piece in pieces(dice, stream):
        cutter.feed(piece)
        while (frame := cutter.next_frame()) is not None:
            look(wire, wire.decode(frame))
            commands += 1
    return commands


def look(wire: WireFormat, command: Command) -> None:
    """Check that the command can be printed, and is the same after it is written and read again."""
    repr(command)
    if isinstance(command, WireFormatInfo):
        negotiate(OURS, command)
    twin = WireFormat(
        wire.version, is_tight=wire.is_tight, is_cached=wire.is_cached, has_stack_traces=wire.has_stack_traces
    )
    assert twin.decode(twin.encode(command)) == command, "written and read again, it is another"


def changed(dice: random.Random, frame: bytes, others: Sequence[bytes]) -> bytes:
    data = mutated(dice, frame, others, _edge, keeps=4)
    if dice.random() < 0.2 and len(data) > 4:
        data[4] = dice.randrange(256)
    # Mostly a correct size, so that the bytes after it are parsed.
    if dice.random() < 0.95 and len(data) >= 4:
        struct.pack_into(">i", data, 0, len(data) - 4)
    return bytes(data)


def _edge(dice: random.Random) -> bytes:
    bytes_ = dice.choice((2, 4, 8))
    return (dice.choice(EDGES) % (1 << 8 * bytes_)).to_bytes(bytes_, "big")
