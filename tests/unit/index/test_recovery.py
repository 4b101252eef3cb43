"""Free pages found in the background when db.free is lost."""

# proves: free-list-before-root, index, replaced-pages-wait, root-sync

import os
import random

import pytest


@pytest.fixture
def bereft(directory, opened, tools):
    """An index with many free pages whose db.free was lost, and what it holds."""
    source = random.Random(2)
    with opened(page_size=256) as index:
        for n in range(6):
            tools.write(index, {tools.key(source.randrange(5000)): b"%d" % n for _ in range(300)})
        keys = [key for key, _ in index.scan()]
        tools.write(index, dict.fromkeys(keys[:400]))
        tools.write(index, {keys[500]: b"x"})
        state = dict(index.scan())
    os.unlink(os.path.join(directory, "db.free"))
    return opened(), state


def test_until_the_free_pages_are_found_new_ones_come_from_the_end(bereft, tools):
    index, state = bereft
    pages = index.statistics().pages
    assert index.needs_free_page_recovery
    tools.write(index, {b"a": b"1"})
    assert index.statistics().pages > pages
    assert dict(index.scan()) == {**state, b"a": b"1"}


def test_found_pages_are_used_and_none_is_missing(bereft, directory, tools):
    index, _ = bereft
    tools.recover(index)
    assert not index.needs_free_page_recovery
    tools.write(index, {b"a": b"1"})
    figures = index.statistics()
    assert figures.free_pages > 50
    assert not figures.is_recovering_free_pages
    index.close()
    tools.assert_sound(directory, without_notes=True)


@pytest.mark.parametrize("pace", [1, 2, 5])
def test_checkpoints_during_the_search_spoil_nothing(bereft, directory, opened, tools, pace, tmp_path):
    """AMQ-7082: pages that were found free had been used again meanwhile."""
    index, state = bereft
    source = random.Random(pace)
    search = index.recover_free_pages()
    n = 0
    while True:
        if next(search, "found") == "found":
            break
        n += 1
        if n % pace == 0:
            key = tools.key(source.randrange(5000))
            changes = {key: b"later %d" % n, source.choice(sorted(state)): None}
            state = {key: value for key, value in {**state, **changes}.items() if value is not None}
            tools.write(index, changes)
            tools.assert_sound_as_it_stands(directory, str(tmp_path / "seen"))
    assert n > 5
    for _ in range(3):
        tools.write(index, {b"last": b""})
        tools.assert_sound_as_it_stands(directory, str(tmp_path / "seen"))
    assert dict(index.scan()) == {**state, b"last": b""}
    index.close()
    tools.assert_sound(directory, without_notes=True)
    assert not opened().needs_free_page_recovery


def test_pages_that_the_search_walks_are_not_written_on(bereft, tools):
    index, _ = bereft
    search = index.recover_free_pages()
    next(search)
    for n in range(8):  # replaces every page there was, more than twice
        tools.write(index, {key: b"%d" % n for key, _ in index.scan()})
    index._data.cache = type(index._data.cache)(2)
    for _ in search:
        pass
    tools.write(index, {})


def test_a_search_given_up_is_begun_anew_after_the_next_start(bereft, directory, opened, tools):
    index, _ = bereft
    search = index.recover_free_pages()
    next(search)
    search.close()
    tools.write(index, {b"a": b"1"})
    index.close()
    index = opened()
    assert index.needs_free_page_recovery
    tools.recover(index)
    tools.write(index, {})
    index.close()
    tools.assert_sound(directory, without_notes=True)


def test_a_search_that_finds_nothing_is_over_all_the_same(directory, opened, tools):
    """AMQ-7163: an empty result left the flag standing for ever."""
    with opened() as index:
        tools.write(index, {b"a": b"1"})
    os.unlink(os.path.join(directory, "db.free"))
    with opened() as index:
        tools.recover(index)
        tools.write(index, {})
    with opened() as index:
        assert not index.needs_free_page_recovery


def test_there_is_nothing_to_search_for_when_the_list_was_good(opened, tools):
    with opened() as index:
        tools.write(index, {b"a": b"1"})
    with opened() as index:
        assert list(index.recover_free_pages()) == []
