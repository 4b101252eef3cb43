"""Status, health and metrics of a running broker over HTTP, and its word to systemd.

The one door for tools to a running broker, open on master and standby alike. It only asks: whoever starts it hands
in a callable that says how things are, and this package knows nothing of engines, stores and locks.
"""
