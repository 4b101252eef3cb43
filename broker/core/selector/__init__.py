"""JMS selectors as ActiveMQ Classic writes them (SelectorParser): a condition on a message's header and properties.

``compile_selector`` is the whole door: text in, a Selector or a ClientError out. docs/selectors.md tells the language
and where it differs from Classic.
"""

from tandemmq.broker.core.selector.compiling import Selector, compile_selector, is_quick, prepare
from tandemmq.broker.core.selector.grammar import count_words

__all__ = ["Selector", "compile_selector", "count_words", "is_quick", "prepare"]
