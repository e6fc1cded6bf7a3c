"""A hosts file's text (hosts(5)), and the one line in it that the fleet cares for."""

from __future__ import annotations


def with_own_name(text: str, name: str, address: str) -> str:
    """Give the text with ``name`` leading to ``address`` alone; comments and other names stay.

    A text that is right already comes back as it was, to the byte.
    """
    names = [name] if "." not in name else [name, name.partition(".")[0]]
    kept, right = [], False
    for line in text.splitlines(keepends=True):
        words = line.partition("#")[0].split()
        if len(words) < 2 or not set(words[1:]) & set(names):
            kept.append(line)
        elif words[0] == address and set(names) <= set(words[1:]):
            kept.append(line)
            right = True
        else:
            others = [word for word in words[1:] if word not in names]
            if others:
                kept.append(f"{words[0]} {' '.join(others)}\n")
    if right:
        return "".join(kept)
    body = "".join(kept)
    if body and not body.endswith("\n"):
        body += "\n"
    return f"{body}{address} {' '.join(names)}\n"
