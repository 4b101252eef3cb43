"""The authority of a set for its store (store.authority.Authority): the elected epoch, and the quorum behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tandemmq.broker.replication.replica import Replica
from tandemmq.broker.replication.term import Term
from tandemmq.journal.errors import Deposed
from tandemmq.store.records.headers import SetHeader


class SetAuthority:
    """The authority for one life as standby and master. Another life has another one, so a call that hangs in this one
    writes into no later epoch."""

    leaves_end_markers = False

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._term: Term | None = None

    @property
    def horizon(self) -> tuple[int, int]:
        return self._replica.final

    def first_file(self, last: int) -> int:
        term = self._replica.term
        if term is None or term.is_over or term.has_begun:  # prove: an-epoch-has-one-writer
            raise Deposed(last, "this node is not elected")
        if term.epoch <= last:
            raise Deposed(term.epoch, f"db-{last}.log is there")
        self._term = term
        return term.epoch

    def check_promotion(self) -> None:
        term = self._elected
        if not term.has_lease:
            raise Deposed(term.epoch, "another node was promised a later epoch, or may have been")

    def mend(self, file: int) -> Future[bool]:
        return self._replica.scrubber.check(file)

    def damaged(self, files: Sequence[int]) -> None:
        term = self._elected
        if len(term.marks.voters.ids) > 1:
            damaged = ", ".join(map(str, files))
            raise Deposed(term.epoch, f"no member that answers has sound copies of files {damaged}")

    @property
    def free_bytes(self) -> int | None:
        return None if self._term is None else self._term.free_bytes

    def set_header(self) -> SetHeader:
        return self._elected.said_next()

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        self._elected.begin(files)

    def wrote(self, file: int, offset: int, data: bytes | bytearray, end: int) -> None:
        self._elected.wrote(file, offset, data, end)

    def synced(self, file: int, end: int) -> None:
        self._elected.synced(file, end)

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        self._elected.settle((file, end), must_be_final=must_be_final, alive=alive)

    def sealed(self, file: int, end: int) -> None:
        self._elected.sealed(file, end)

    def end(self) -> None:
        if self._term is not None:
            self._term.end()

    @property
    def _elected(self) -> Term:
        assert self._term is not None, "first_file comes before all else"
        return self._term
