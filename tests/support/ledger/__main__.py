"""The client's process: python -m tests.support.ledger PROTOCOL SEED STEPS BOOK PORT...

It makes half of the steps, takes all messages, disconnects, prints "drained" and waits for a line with the ports, which
may have changed. Then it makes the other half, and leaves a prepared branch at the end.

It ends with an error if any module of the product is loaded, because its records must be independent of the tested
code.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.support.ledger.book import Book
from tests.support.ledger.clients import client_of
from tests.support.ledger.story import Story


def main(protocol: str, seed: str, steps: str, path: str, *rest: str) -> None:
    with Path(path).open("w") as out:
        story = Story(Book(out), random.Random(int(seed)))
        client = client_of(protocol, rest)
        story.run(client, int(steps) // 2)
        story.drain()
        client.close()
        print("drained", flush=True)
        client = client_of(protocol, sys.stdin.readline().split())
        story.run(client, int(steps) // 2)
        if client.is_jms:
            story.prepare()
        client.close()
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "tandemmq")
    assert not loaded, f"the client shares code with the tested product: {loaded}"


if __name__ == "__main__":
    main(*sys.argv[1:])
