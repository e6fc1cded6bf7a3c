#!/usr/bin/python
"""Have Debian packages, by one apt-get, on a machine as bare as it came."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Have Debian packages, by one apt-get, on a machine as bare as it came
description:
  - One look at dpkg; where nothing is missing that is all. Else apt's lists are read anew and what
    is missing comes, without what is only recommended. Beside apt-get and dpkg nothing is needed
    (M(ansible.builtin.apt) would install python3-apt first, and can't tell in check mode without).
  - A dpkg that was interrupted is brought to its end.
options:
  names:
    description: The packages; C(name=version) wants that very version.
    type: list
    elements: str
    required: true
  lock_seconds:
    description: How long to wait for another apt, such as the one of a first boot, to finish.
    type: int
    default: 600
  mend:
    description: What to do if they can't be had, for the error's words.
    type: str
    default: mend the list of packages or the way to the mirror
  again:
    description: What to do then, or once another apt has finished, as the error's last words.
    type: str
    default: try again
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have what files are sent with
  tpufleet.core.packages:
    names: [rsync]
  become: true
"""

RETURN = r"""
missing:
  description: What was not there before.
  returned: success
  type: list
"""

import os
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.apt_words import QUERY, missing, reason

OPTIONS = {
    "Acquire::Languages": "none",  # descriptions in other languages are nobody's need here
    "Acquire::Retries": "2",
    "APT::Install-Recommends": "false",
    "Dpkg::Use-Pty": "0",
    "Dpkg::Options::": "--force-confold",
    # One cache of the lists, made by who needs it: of 3.3 s of a worker's processor 0.6 less.
    "Dir::Cache::srcpkgcache": "",
}
NO_CACHE = ("-o", "pkgCacheFile::Generate=false")
STATUS = Path("/var/lib/dpkg/status")
POLL_S = 2
LOCKED = "Could not get lock"


class AptError(Exception):
    """apt or dpkg failed; the text is one line of theirs."""


class HeldError(AptError):
    """Another apt did not finish in time; the text is apt's line on who it is."""


def told(words: list) -> subprocess.CompletedProcess:
    """Run a tool that asks nothing and speaks English. Raises OSError."""
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def query(names: list) -> str:
    """Let dpkg say how the packages stand, a line each; none for those that it doesn't know."""
    words = ["dpkg-query", "--show", f"--showformat={QUERY}"]
    return told([*words, *(name.partition("=")[0] for name in names)]).stdout


def apt_get(until: float, *words: str) -> subprocess.CompletedProcess:
    """Run apt-get; while another one holds its locks, again and again.

    apt's own DPkg::Lock::Timeout doesn't wait for the lock of the lists (apt.conf(5)).
    """
    options = [part for name, value in OPTIONS.items() for part in ("-o", f"{name}={value}")]
    while True:
        done = told(["apt-get", "--quiet", "--yes", *options, *words])
        held = done.returncode and LOCKED in done.stderr
        if not held or time.monotonic() >= until:
            return done
        time.sleep(POLL_S)


def install(names: list, until: float) -> None:
    """Read the lists anew and install. Raises AptError, OSError.

    That a list can't be read is an error only if a package can't be had: a machine may name
    a source that is gone and that nobody needs.
    """
    read = apt_get(until, "update", *NO_CACHE)
    words = ("install", "--fix-broken", "--", *names)
    done = apt_get(until, *words)
    if done.returncode and "dpkg was interrupted" in done.stderr:
        told(["dpkg", "--force-confold", "--configure", "-a"])
        done = apt_get(until, *words)
    if done.returncode:
        for said in (read, done):
            if LOCKED in said.stderr:
                raise HeldError(reason("", said.stderr))
        raise AptError(reason(read.stderr, done.stderr))


def main() -> None:
    """Look, then install."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "lock_seconds": {"type": "int", "default": 600},
            "mend": {
                "type": "str",
                "default": "mend the list of packages or the way to the mirror",
            },
            "again": {"type": "str", "default": "try again"},
        },
        supports_check_mode=True,
    )
    names = module.params["names"]
    try:
        lacking = missing(names, query(names))
        changed = bool(lacking)
        if lacking and not module.check_mode:
            before = STATUS.read_bytes() if STATUS.exists() else b""
            install(lacking, time.monotonic() + module.params["lock_seconds"])
            changed = not STATUS.exists() or STATUS.read_bytes() != before
    except HeldError as error:
        waited = f"{error}, for {module.params['lock_seconds']} s"
        module.fail_json(msg=f"{waited}: let it finish, then {module.params['again']}")
    except AptError as error:
        module.fail_json(msg=f"{error}: {module.params['mend']}, then {module.params['again']}")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}: is this Debian or Ubuntu?")
    diff = {"before": "", "after": "".join(f"{name}\n" for name in lacking)} if changed else {}
    module.exit_json(changed=changed, missing=lacking, diff=diff)


if __name__ == "__main__":
    main()
