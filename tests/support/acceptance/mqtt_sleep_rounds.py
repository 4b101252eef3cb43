"""Masters with a lease are stopped by SIGSTOP and continued, while MQTT clients publish and subscribe with QoS 2.

    python -m tests.support.acceptance.mqtt_sleep_rounds --client raw --rounds 100 --resume FILE

A life is a pair of brokers with clients that go through up to ten rounds. Each line of FILE is one life: kind of
client, seed, rounds, and results. Another run with the same FILE and seed runs the missing lives. Taps record the
packets of brokers and clients. If a payload came twice, their log shows the cause. Exit code 1: the cause was a broker
or a subscriber.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.mqtt_once_clients import KINDS, PUBLISHER, SUBSCRIBER, Work, lives
from tests.support.acceptance.mqtt_wire_log import Conversation, Tap, faults_of_brokers, packets_of, published_twice
from tests.support.acceptance.zombie_faults import Scene, Stopped, StoppedHandingOver
from tests.support.acceptance.zombie_locks import LEASE, SqliteLease
from tests.support.acceptance.zombie_pair import Pair
from tests.support.acceptance.zombie_shim import built
from tests.support.ci.verdicts import verdict
from tests.support.prove import SEED

ROUNDS_OF_A_LIFE = 10
AWAKE_SECONDS_MAX = 1.0
# Long, because the machine may be busy.
SECONDS_MAX = 300.0


class _Lease(SqliteLease):
    """``length``: length of the lease; a busy machine needs a longer one."""

    def __init__(self, place: Path, length: str) -> None:
        super().__init__(place)
        self._length = length

    def settings(self, broker: str) -> dict[str, str]:
        return super().settings(broker) | {"locker.lock_acquire_sleep_interval": self._length}


class Life:
    """One pair and one kind of client. ``live`` returns the results."""

    def __init__(self, place: Path, library: Path, kind: str, seed: int, rounds: int, lease: str = LEASE) -> None:
        self._kind = kind
        self._seed = seed
        self._rounds = rounds
        self._dice = random.Random(seed)
        self._pair = Pair(place / "data", _Lease(place, lease), library)
        self._taps = []
        for name, broker in self._pair.brokers.items():
            broker.mqtt = free_port()
            self._taps.append(Tap(name, broker.mqtt))
        self.work = Work()

    async def live(self) -> dict[str, Any]:
        pair, work = self._pair, self.work
        try:
            for tap in self._taps:
                await tap.open()
            await asyncio.to_thread(pair.start, SECONDS_MAX)
            async with asyncio.TaskGroup() as tasks:
                for life in lives(self._kind, work, [tap.port for tap in self._taps]):
                    tasks.create_task(life)  # type: ignore[arg-type]
                await self._until(lambda: work.is_subscribed, "the subscriber is there")
                for _ in range(self._rounds):
                    work.is_open = True
                    await asyncio.to_thread(self._round)
                    work.is_open = False
                    await self._until(lambda: work.is_complete, "all that was published is confirmed, and came")
                work.is_over = True
            for broker in reversed(await asyncio.to_thread(pair.settled, SECONDS_MAX)):
                assert await asyncio.to_thread(broker.terminate) == 0
        finally:
            work.is_over = True
            for tap in self._taps:
                tap.close()
            await asyncio.to_thread(pair.stop)
        assert pair.check_stopped() == []
        return self._seen()

    def _round(self) -> None:
        """Stop the master, and continue it after another broker has become master."""
        zombie, successor = self._pair.settled(SECONDS_MAX)
        scene = Scene(self._pair, zombie, successor, self._dice)
        sleep = self._dice.choice((Stopped, Stopped, Stopped, StoppedHandingOver))()
        time.sleep(self._dice.uniform(0.0, AWAKE_SECONDS_MAX))  # clients are at work
        sleep.strike(scene)
        successor.wait_role("master", SECONDS_MAX)
        time.sleep(self._dice.uniform(0.0, AWAKE_SECONDS_MAX))
        sleep.wake(scene)
        self._pair.settled(SECONDS_MAX)

    async def _until(self, condition: Any, what: str) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while not condition():  # noqa: ASYNC110 - clients of other threads have no event of this loop
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not in {SECONDS_MAX} s: {what}; {self._seen()}") from None

    def _log(self) -> list[Conversation]:
        return [each for tap in self._taps for each in tap.log]

    def _seen(self) -> dict[str, Any]:
        work, log = self.work, self._log()
        to_subscriber, of_publisher = packets_of(SUBSCRIBER, log), packets_of(PUBLISHER, log)
        twice = sorted({each for each in work.received if work.received.count(each) > 1})
        of_brokers, of_client = faults_of_brokers(to_subscriber), published_twice(of_publisher)
        return {
            "client": self._kind,
            "seed": self._seed,
            "rounds": self._rounds,
            "published": len(work.published),
            "connects": work.connects,
            "came_again": sum(getattr(each.packet, "dup", False) and each.is_to_client for each in to_subscriber),
            "twice": twice,
            "missing": sorted(set(work.confirmed) - set(work.received)),
            "is_in_order": work.received == work.published,
            # A message that a client published again as a new one comes again as a new one.
            "broker_is_the_cause": {each: how for each, how in of_brokers.items() if each not in of_client},
            "publisher_is_the_cause": of_client,
            "subscriber_is_the_cause": [each for each in twice if each not in of_brokers | of_client],
        }


def seed_of(kind: str, number: int, seed: int) -> int:
    """Return the seed of a life, which is the same in each run."""
    return random.Random(f"{seed}/{kind}/{number}").randrange(1 << 32)


def live(library: Path, kind: str, seed: int, rounds: int, lease: str = LEASE) -> dict[str, Any]:
    """Run one life in a separate directory."""
    with tempfile.TemporaryDirectory(prefix="mqtt-sleeps-") as place:
        return asyncio.run(Life(Path(place), library, kind, seed, rounds, lease).live())


@verdict
def check(seen: dict[str, Any]) -> None:
    """Check the guarantees. Paho's client may publish a message again as a new one (docs/clients.md)."""
    assert not seen["broker_is_the_cause"], seen
    assert not seen["subscriber_is_the_cause"], seen
    assert not (seen["client"] == "raw" and seen["twice"]), seen
    assert not seen["missing"], seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", choices=sorted(KINDS), action="append", help="kinds of clients; all by default")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each kind (default: 100)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file of the lives (JSON lines)")
    parser.add_argument("--lease", default=LEASE, help="its length (default: %(default)s); longer on a busy machine")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    known: list[dict[str, Any]] = []
    if options.resume is not None and options.resume.exists():
        known = [json.loads(line) for line in options.resume.read_text().splitlines()]
    done = {(each["client"], each["seed"]) for each in known if "failed" not in each}
    is_broken = False
    with built() as library:
        for number in range(-(-options.rounds // ROUNDS_OF_A_LIFE)):
            for kind in options.client or sorted(KINDS):
                seed = seed_of(kind, number, options.seed)
                if (kind, seed) in done:
                    continue
                rounds = min(ROUNDS_OF_A_LIFE, options.rounds - number * ROUNDS_OF_A_LIFE)
                try:
                    seen = live(library, kind, seed, rounds, options.lease)
                    is_broken |= bool(seen["broker_is_the_cause"] or seen["subscriber_is_the_cause"])
                except (AssertionError, ExceptionGroup) as error:
                    seen = {"client": kind, "seed": seed, "rounds": 0, "failed": repr(error)[:2_000]}
                print(json.dumps(seen), flush=True)
                if options.resume is not None:
                    with options.resume.open("a") as file:
                        file.write(json.dumps(seen) + "\n")
    return is_broken


if __name__ == "__main__":
    sys.exit(main())
