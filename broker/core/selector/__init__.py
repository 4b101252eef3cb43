"""JMS selectors in ActiveMQ Classic's syntax (SelectorParser): conditions on a message's header and properties.

``compile_selector`` is the main entry: it returns a Selector or raises ClientError. docs/selectors.md describes the
language and its differences from Classic.
"""

from tandemmq.broker.core.selector.compiling import Selector, compile_selector, is_quick, postpone, prepare
from tandemmq.broker.core.selector.words import count_words

__all__ = ["Selector", "compile_selector", "count_words", "is_quick", "postpone", "prepare"]
