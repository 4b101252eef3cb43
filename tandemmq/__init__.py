"""The front door of TandemMQ: makes the rooms importable, and knows nothing else. ``tandemmq.disk`` is under them all.

In a source tree and an editable install the rooms (``broker``, ``store``, ...) are top-level packages.
In a wheel they live under ``tandemmq/_app/``, because other distributions own those generic names;
putting that folder first on the path makes ``import broker`` mean ours in both cases.
"""

import sys
from pathlib import Path

_APP = Path(__file__).parent / "_app"
if _APP.is_dir() and str(_APP) not in sys.path:
    sys.path.insert(0, str(_APP))

__version__ = "0.1.0"
