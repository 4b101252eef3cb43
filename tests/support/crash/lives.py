"""All short lives whose every crash is judged, by name."""

from __future__ import annotations

from tests.support.crash.promotion_lives import PROMOTION_LIVES
from tests.support.crash.several_lives import SEVERAL_LIVES
from tests.support.crash.short_lives import LIVES as LIVES_OF_ONE_OR_TWO
from tests.support.crash.short_lives import ShortLife
from tests.support.crash.takeover_lives import TAKEOVER_LIVES

LIVES: dict[str, ShortLife] = {**LIVES_OF_ONE_OR_TWO, **PROMOTION_LIVES, **TAKEOVER_LIVES, **SEVERAL_LIVES}
