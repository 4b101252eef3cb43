"""Status of a node and of its set for operators and other brokers. It decides nothing.

Any thread may read it, and gets the present values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tandemmq.broker.replication.directory import Entry
from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.leader import Leader
from tandemmq.broker.replication.peers import Known, Links, Twins
from tandemmq.broker.replication.quorum import NOWHERE
from tandemmq.broker.replication.repair import KNOWS_FETCH
from tandemmq.broker.replication.state import NodeState
from tandemmq.store.maintenance.scrubber import Scrubber


class StatusReport:
    def __init__(
        self,
        state: NodeState,
        links: Links,
        follower: Follower,
        leader: Leader,
        known: Known,
        twins: Twins,
        scrubber: Scrubber,
    ) -> None:
        self._state = state
        self._links = links
        self._follower = follower
        self._leader = leader
        self._known = known
        self._twins = twins
        self._scrubber = scrubber
        self._lags: dict[str, int] = {}  # of followers, in bytes

    def measure_lags(self) -> None:
        """Measure how far followers are behind. It reads files, so the replica's thread calls it at intervals."""
        term = self._state.term
        self._lags = (
            {} if term is None else {store: term.journal.lag(place) for store, place in term.marks.places().items()}
        )

    def leader(self) -> Entry | None:
        """Return the entry of the leading node, as far as this node knows."""
        master = self._follower.master
        if self._state.leads:
            return self._links.own_entry()
        if master is None:
            return None
        member = master.link.member
        known = {each.store: each for each in self._links.entries()}
        entry = known.get(member.store) or Entry(
            member.store, member.node, member.address, 1, member.set, True, "", True, 0, None, ()
        )
        return replace(entry, is_master=True, epoch=master.epoch)

    def others(self) -> list[Entry]:
        """Return the voters that are present and do not lead."""
        voters, leader = self._state.voters, self.leader()
        stores = () if voters is None else voters.ids
        return [
            each
            for each in self._links.entries()
            if each.store in stores and (leader is None or each.store != leader.store)
        ]

    def overview(self) -> Mapping[str, Any]:
        """Return the status of this node. ``members`` holds each known member and each node that could join, this node
        included: its entry in the directory, its vote, its last status."""
        own, voters, settings = self.status(), self._state.voters, self._state.settings
        store_here = self._state.store
        entries = {entry.store: entry for entry in self._links.entries()}
        links = {store: link.member for store, link in list(self._links.ours.items())}
        names = {} if voters is None else {store: voters.name(store) for store in voters.ids}
        names |= {store: entry.node for store, entry in entries.items()} | self._links.names()
        members = []
        for store, node in names.items():
            entry, heard = entries.get(store), self._known.of(store)
            status, age = (own, 0.0) if store == store_here else (None, None) if heard is None else heard
            members.append(
                {
                    "store": store,
                    "node": node,
                    "address": entry.address if entry else links[store].address if store in links else None,
                    "admin": None if entry is None else entry.admin,
                    "connectors": [] if entry is None else list(entry.connectors),
                    "is_linked": store == store_here or store in links,
                    "is_voter": voters is not None and store in voters,
                    "said": status,
                    "said_seconds_ago": None if age is None else round(age, 1),
                }
            )
        return {**own, "broker": settings.broker, "members": sorted(members, key=lambda each: str(each["node"]))}

    def status(self) -> Mapping[str, Any]:
        """Return the status for `tandemmq replication status`."""
        state, master = self._state, self._follower.master
        term, voters, header, leads = state.term, state.voters, state.header, state.leads
        followers = {}
        if term is not None:
            written = term.marks.written
            for store, stream in list(term.streams.items()):
                have = term.marks.places().get(store, NOWHERE)
                followers[store] = {
                    "node": stream.link.member.node,
                    "have": list(have),
                    "is_live": stream.is_live,
                    "is_voter": store in term.marks.voters,
                    "is_behind": have < written,
                    "lag_bytes": self._lags.get(store),
                }
        return {
            "node": state.settings.node,
            "was": state.promise.was,
            "store": state.store,
            "set": None if header is None else header.id,
            "role": "master" if leads else "elected" if term is not None else "follower" if master else "looking",
            "epoch": term.epoch if term is not None else 0 if master is None else master.epoch,
            "promised": state.promise.epoch,
            "position": list(state.position),
            "final": list(term.marks.final if term is not None else max(self._follower.final, self._leader.final)),
            # A master's final place may be on the disks of others alone.
            "final_here": list(self._follower.final if term is None else min(term.marks.final, term.marks.synced)),
            "voters": {} if voters is None else {each: voters.name(each) for each in voters.ids},
            "is_voter": state.is_voter,
            "is_whole": state.promise.is_whole,
            "master": None if master is None else master.link.member.node,
            "links": sorted(link.member.node for link in list(self._links.ours.values())),
            "followers": followers,
            "problem": state.problem or ("" if header is not None else state.waiting),
            "twins": self._twins.problem,
            "weight": state.settings.weight,
            "has_quorum": term.has_lease if leads and term is not None else master is not None,
            "elections": self._leader.elections,
            "quorum_losses": self._leader.quorum_losses,
            "zookeeper": self._links.problem,
            KNOWS_FETCH: self._scrubber.figures,
        }
