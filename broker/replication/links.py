"""Links to the members that the directory, their own reports, and the links show."""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.broker.replication.messages import Message
from tandemmq.broker.replication.network import Directory, Entry, Link, Listener, Network
from tandemmq.broker.replication.quorum import BEFORE_ALL
from tandemmq.broker.replication.state import NodeState

#: Fields of an entry that change: set, has_journal, is_master, epoch.
Changing = tuple[str | None, bool, bool, int]


class Links:
    """Links of this node. ``ours``: the links that this node dialed, by store; requests go out on them."""

    def __init__(self, state: NodeState, network: Network, directory: Directory) -> None:
        self.address = ""  # of this node, as advertised to the others
        self.ours: dict[str, Link] = {}
        self._state = state
        self._network = network
        self._directory = directory
        self._heard: dict[str, str] = {}  # addresses that members reported, by store
        self._published: Changing | None = None

    def bind(self, listener: Listener) -> None:
        """Bind and listen. Raises OSError."""
        self.address = self._network.start(listener)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Begin to watch the directory. ``on_change`` is called on any thread; then ``dial`` must be called."""
        self._directory.start(on_change)

    def end(self) -> None:
        self._directory.end()
        self._network.end()

    def up(self, link: Link) -> None:
        member = link.member
        if link.is_ours:
            self.ours[member.store] = link
        if self._heard.get(member.store) != member.address:
            self._heard[member.store] = member.address
            self.dial()

    def down(self, link: Link) -> None:
        if self.ours.get(link.member.store) is link:
            del self.ours[link.member.store]

    def names(self) -> dict[str, str]:
        """Return the present names of the nodes by store: this node, and those that it has a link to. Any thread."""
        linked = {store: link.member.node for store, link in list(self.ours.items())}
        return linked | {self._state.store: self._state.settings.node}

    def dial(self) -> None:
        """Dial every node that may be present."""
        own, voters = self._state.store, self._state.voters
        listed = {each.store: each.address for each in self.entries() if each.store != own}
        # A node that the directory has forgotten, or cannot name now, may still be present: the voters and the links
        # show it.
        kept = {*self.ours, *(() if voters is None else voters.ids)}
        self._heard = {store: address for store, address in self._heard.items() if store in kept}
        taken = set(listed.values())
        heard = {store: address for store, address in self._heard.items() if store in listed or address not in taken}
        self._network.dial({**listed, **heard} if self.problem else {**heard, **listed})

    def tell(self, message: Message) -> None:
        """Send the message to every linked member."""
        for link in self.ours.values():
            link.send(message)

    # ---- the directory

    def entries(self) -> tuple[Entry, ...]:
        """Return the members that the directory lists."""
        return self._directory.entries()

    @property
    def problem(self) -> str | None:
        """Reason for which the directory cannot be reached now; None: it can."""
        return self._directory.problem

    def _changing(self) -> Changing:
        state = self._state
        term, leads = state.term, state.leads
        return state.set, state.position > BEFORE_ALL, leads, term.epoch if term is not None and leads else 0

    def own_entry(self) -> Entry:
        """Return the entry of this node."""
        state, settings = self._state, self._state.settings
        set_id, has_journal, leads, epoch = self._changing()
        return Entry(
            state.store,
            settings.node,
            self.address,
            settings.weight,
            set_id,
            has_journal,
            settings.version,
            leads,
            epoch,
            settings.admin,
            settings.connectors,
        )

    def publish(self) -> None:
        """Publish the entry of this node in the directory, if it has changed."""
        if (changing := self._changing()) != self._published:
            self._published = changing
            self._directory.publish(self.own_entry())
