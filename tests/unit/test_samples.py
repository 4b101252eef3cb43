"""CI tries a part of a table, the same for the same seed, and a proof all of it."""

from __future__ import annotations

from tests.support.samples import sampled


def test_of_a_table_so_many_cases_are_chosen_and_the_others_are_for_a_proof() -> None:
    def chosen(name: str, count: int) -> set[int]:
        cases = sampled(name, range(20), count)
        assert [case.values for case in cases] == [(number,) for number in range(20)]
        assert all("prove" in [mark.name for mark in case.marks] for case in cases)
        return {case.values[0] for case in cases if "proof_only" not in [mark.name for mark in case.marks]}

    assert len(chosen("a", 5)) == 5
    assert chosen("a", 5) < chosen("a", 6)
    assert chosen("a", 5) != chosen("b", 5)
    assert chosen("a", 30) == set(range(20))
