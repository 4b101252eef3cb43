"""A running broker against connections that say anything, damaged or valid; ``python -m tests.support.fuzz`` goes on
longer. Of what is valid TANDEMMQ_PROVE says how much there is to be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import pytest

from tests.support.fuzz import commands, ports, valid_frames, valid_packets
from tests.support.prove import IS_PROOF, IS_THOROUGH, SEED, rounds
from tests.support.services.zookeeper import JAR, WANT

ROUNDS_MAX = 10
#: Seeds that found faults, with the first case and how many cases: all runs go through them (CONTRIBUTING.md,
#: "A seed that fails").
FOUND_BY_PACKETS = [
    (348188701, 100, 67),  # a client ended twice: SUBSCRIBE to a backlog, and DISCONNECT right behind it
]


@pytest.mark.promise("any-input")
@pytest.mark.timeout(120)
def test_a_broker_survives_any_commands() -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    commands.run(SEED, 200)


@pytest.mark.prove
@pytest.mark.timeout(7200 if IS_PROOF else 600)
def test_valid_frames_in_any_order_lose_nothing_and_harm_nobody() -> None:
    seed = SEED
    examples, steps = rounds(6 if IS_THOROUGH else 2, 200), 60 if IS_THOROUGH else 40
    print(f"seed {seed}, {examples} examples, {steps} steps (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    wanted = {"stomp send", "stomp acknowledge", "openwire send", "openwire acknowledge"}
    for number in range(ROUNDS_MAX):  # chance may leave something out of a few short examples
        valid_frames.run(seed + number, examples, steps)
        done = {what for what in valid_frames.DONE if ":" not in what}
        if wanted <= done:
            break
    assert wanted <= done


@pytest.mark.prove
@pytest.mark.timeout(7200 if IS_PROOF else 300)
@pytest.mark.parametrize("found", FOUND_BY_PACKETS, ids=lambda found: str(found[0]))
def test_valid_packets_that_found_a_fault_harm_nobody(found: tuple[int, int, int]) -> None:
    seed, first, cases = found
    valid_packets.run(seed, cases, first)


@pytest.mark.prove
@pytest.mark.thorough
@pytest.mark.timeout(7200 if IS_PROOF else 300)
def test_valid_packets_of_mqtt_in_any_order_harm_nobody() -> None:
    cases = rounds(200, 5_000)
    print(f"seed {SEED}, {cases} cases (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    valid_packets.run(SEED, cases)
    assert {"heard: PUBCOMP", "heard: SUBACK", "heard: PUBREL"} <= valid_packets.DONE.keys()


@pytest.mark.promise("any-input")
@pytest.mark.prove
@pytest.mark.timeout(7200 if IS_PROOF else 300)
@pytest.mark.parametrize(
    "names", [ports.PORTS[:-1], pytest.param(ports.PORTS[-1:], marks=pytest.mark.service)], ids=["broker", "set"]
)
def test_walks_over_all_ports_harm_nobody_and_a_good_client_loses_nothing(
    names: Sequence[str], require_service: Callable[[object, str], None]
) -> None:
    if "replication" in names:
        require_service(JAR.exists() and shutil.which("java"), WANT)
    seconds = rounds(20, 1800, quick=5)
    print(f"seed {SEED}, {seconds} s (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    done = ports.run(SEED, names, seconds, part_seconds=min(seconds, ports.PART_SECONDS))
    assert all(done[f"{name}: actions"] for name in names), done
