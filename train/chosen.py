"""Parameters chosen by name or pattern, and a mistake in one named with what there is."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from train.strict import ConfigError


def by_patterns(patterns: Iterable[str], names: Iterable[str], key: str) -> list[str]:
    """Give the names that match any of the patterns (``*``, ``?``, ``[…]``), sorted.

    Raises ConfigError, in the name of the config's ``key``, for a pattern that matches none.
    """
    names = sorted(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"{key}: {pattern!r} matches nothing; allowed: {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, p) for p in patterns)]
