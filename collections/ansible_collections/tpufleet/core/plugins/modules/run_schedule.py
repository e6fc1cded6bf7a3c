#!/usr/bin/python
"""Module tpufleet.core.run_schedule: schedule a playbook on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_schedule
short_description: Schedule a playbook on the controller, at a time or at an interval
description:
  - Writes a systemd timer, which is a system unit for root and a user unit for other users. Without
    systemd, writes a line of the user's crontab.
  - While a scheduled playbook still runs, its timer does not start it again. Timers do not wait for
    each other.
  - A time O(at) that passes while the controller is off or asleep is skipped. A controller that
    wakes up at most five minutes late still starts the playbook. Timers with O(every) continue when
    the controller is on again.
  - A timer that deletes a TPU (O(verb=delete)) deletes only the TPU with this O(zone) and
    O(node_id), never a later one of the same name.
options:
  state:
    description: V(present) creates or changes the timer of O(verb), O(target) and O(zone), and
      fails if another inventory or O(project) has a timer of this name. V(absent) removes the timer
      O(name), V(list) changes nothing.
    type: str
    choices: [present, absent, list]
    default: list
  verb:
    description: The playbook to schedule, C(watch), C(report), C(kill), C(restart) or C(delete).
    type: str
    default: watch
  target:
    description: The name of the run to kill or restart, or of the TPU to delete. Empty for C(watch)
      and C(report).
    type: str
    default: ""
  zone:
    description: The zone of the TPU to delete.
    type: str
    default: ""
  node_id:
    description: The API's id of the TPU to delete. Another TPU of that name is left alone.
    type: str
    default: ""
  publish:
    description: The bucket object, such as C(gs://bucket/name.html), to which C(report) publishes
      the page. Empty to publish nothing.
    type: str
    default: ""
  name:
    description: The name of the timer to remove, one of RV(timers).
    type: str
    default: ""
  at:
    description: A time in the format of systemd.time(7) with a time of day, such as V(2026-12-31
      18:00). Needs systemd. Set either O(at) or O(every). C(kill) and C(delete) need O(at).
    type: str
    default: ""
  every:
    description: The interval between two starts of C(watch), C(report) or C(restart), such as V(1m)
      or V(6h). A playbook that takes longer delays the next start. Without systemd, only minutes
      that divide an hour, hours that divide a day, and V(1d) are accepted.
    type: str
    default: ""
  project:
    description: The directory of tpufleet on the controller, whose playbook is called.
    type: path
    required: true
  tool:
    description: The path of ansible-playbook.
    type: path
    required: true
  inventories:
    description: The inventories to use.
    type: list
    elements: str
    default: []
  environment:
    description: Environment variables that the playbook needs; empty ones are left out. They are
      readable to every user of the controller, so put no secret in them.
    type: dict
    default: {}
extends_documentation_fragment: tpufleet.core.diff_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Schedule a pass of the watch every minute
  tpufleet.core.run_schedule:
    state: present
    verb: watch
    every: 1m
    project: "{{ playbook_dir }}/.."
    tool: /usr/bin/ansible-playbook
"""

RETURN = r"""
timers:
  description: The names of all installed timers.
  returned: success
  type: list
  elements: str
lines:
  description: When each timer is due, as the lines of systemctl's table. Without systemd, a line
    for each timer with the time fields of its crontab line and its name.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.schedule.run_schedule import (
    ScheduleError,
    Timer,
    check,
    check_environment,
    check_origin,
    playbook_arguments,
)
from ..module_utils.schedule.timers import keeper
from ..module_utils.worker.os_errors import os_error_text


def requested_timer(params: dict) -> Timer:
    """Return the timer that the options describe. Raises ScheduleError."""
    verb, target = params["verb"], params["target"]
    at, every = check(verb, target, params["at"], params["every"])
    return Timer(
        verb=verb,
        target=target,
        at=at,
        every=every,
        project=str(Path(params["project"]).resolve()),
        tool=params["tool"],
        arguments=playbook_arguments(
            verb,
            target,
            params["inventories"],
            params["zone"],
            params["node_id"],
            params["publish"],
        ),
        environment=check_environment(
            [(str(name), str(value)) for name, value in params["environment"].items()]
        ),
        zone=params["zone"],
    )


def main() -> None:
    """Run the module: create, remove or list timers."""
    texts = ("target", "zone", "node_id", "publish", "name", "at", "every")
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "list"], "default": "list"},
            "verb": {"type": "str", "default": "watch"},
            **{name: {"type": "str", "default": ""} for name in texts},
            "project": {"type": "path", "required": True},
            "tool": {"type": "path", "required": True},
            "inventories": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params = module.params
    before = after = ""
    try:
        timers = keeper()
        if params["state"] == "present":
            timer = requested_timer(params)
            check_origin(timer, timers.origin(timer.name))
            before, after = timers.put(timer, module.check_mode)
        elif params["state"] == "absent":
            if params["name"] not in timers.names():
                timer_names = ", ".join(timers.names()) or "none"
                raise ScheduleError(f"there is no timer {params['name']!r}; timers: {timer_names}")
            before, after = timers.drop(params["name"], module.check_mode)
        names, lines = timers.names(), timers.lines()
    except ScheduleError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    module.exit_json(
        changed=before != after,
        timers=names,
        lines=lines,
        diff={"before": before, "after": after},
    )


if __name__ == "__main__":
    main()
