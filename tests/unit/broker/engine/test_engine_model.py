"""Any interleaving of clients on one engine: at the end engine and store agree, and each message was delivered once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tandemmq.broker.core.commands import Ack, AckMode, Nack, Unsubscribe

MODES = st.sampled_from(list(AckMode))


def machine(make_harness: Any) -> type[RuleBasedStateMachine]:
    class EngineMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.harness = make_harness(
                window_messages=5, page_messages=3, memory_limit=12_000, stomp_nack="requeue", maximum_redeliveries=99
            )
            self.number = 0
            self.names = 0
            self.clients: list[Any] = []
            self.sender = self.harness.client()

        def name(self) -> str:
            self.names += 1
            return f"r{self.names}"

        @rule(count=st.integers(1, 8), turns=st.booleans())
        def send(self, count: int, turns: bool) -> None:
            for _ in range(count):
                self.number += 1
                self.sender.send(f"m{self.number}", receipt=f"m{self.number}")
            if turns:
                self.harness.turn()

        @rule()
        def send_in_transaction(self) -> None:
            self.number += 2
            self.sender.begin()
            for body in (f"m{self.number - 1}", f"m{self.number}"):
                self.sender.send(body, transaction="t")
            self.sender.commit()

        @rule()
        def turn(self) -> None:
            self.harness.turn()

        @rule(mode=MODES, prefetch=st.integers(1, 7))
        def subscribe(self, mode: AckMode, prefetch: int) -> None:
            client = self.harness.consumer("s", ack=mode, prefetch=prefetch)
            self.clients.append(client)

        def pick(self, data: st.DataObject) -> tuple[Any, int] | None:
            choices = [(c, tag) for c in self.clients for tag in c.client.subscriptions["s"].unacked]
            return data.draw(st.sampled_from(choices)) if choices else None

        @precondition(lambda self: self.clients)
        @rule(data=st.data(), is_nack=st.booleans())
        def answer(self, data: st.DataObject, is_nack: bool) -> None:
            picked = self.pick(data)
            if picked is not None:
                client, tag = picked
                client.handle(Nack("s", tag) if is_nack else Ack("s", tag, None, self.name()))

        @precondition(lambda self: self.clients)
        @rule(data=st.data(), commits=st.booleans())
        def transact(self, data: st.DataObject, commits: bool) -> None:
            picked = self.pick(data)
            if picked is not None:
                client, tag = picked
                client.begin().handle(Ack("s", tag, "t"))
                if commits:
                    client.commit()
                else:
                    client.abort()

        @precondition(lambda self: self.clients)
        @rule(data=st.data(), how=st.sampled_from(["vanish", "disconnect", "unsubscribe"]))
        def leave(self, data: st.DataObject, how: str) -> None:
            client = data.draw(st.sampled_from(self.clients))
            self.clients.remove(client)
            if how == "vanish":
                client.vanish()
            elif how == "disconnect":
                client.disconnect()
            else:
                client.handle(Unsubscribe("s"))

        @rule()
        def tick(self) -> None:
            self.harness.engine.tick(0)

        @rule()
        def fail_over(self) -> None:
            self.harness.fail_over()
            self.clients = []
            self.sender = self.harness.client()

        def teardown(self) -> None:
            self.harness.turn()
            assert self.harness.counts["messages"] == self.harness.stored()
            held = {
                message.message.body.decode()
                for messages in self.harness.store._messages.values()
                for message in messages.values()
            }
            # AUTO ones first: they would acknowledge what the others give back.
            for client in sorted(self.clients, key=lambda each: not each.client.subscriptions["s"].is_auto):
                client.vanish()
            last = self.harness.consumer("s", ack=AckMode.AUTO)
            self.harness.turn()
            assert (set(last.bodies), len(last.bodies), self.harness.stored()) == (held, len(held), 0)
            counts = self.harness.counts
            assert (counts["messages"], counts["unacknowledged"], counts["memory_stored_bytes"]) == (0, 0, 0)

    return EngineMachine


@pytest.mark.timeout(60)
def test_any_interleaving_leaves_store_and_engine_of_one_mind(make_harness):
    run_state_machine_as_test(
        machine(make_harness),
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None, print_blob=True),
    )
