"""Documentation of tpufleet.core.run_judge for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_judge
short_description: Decide what comes next in a launch, from the answers of all workers
description:
  - Each run of the play is judged by itself. If one of its workers fails, none of them starts.
    What is decided is recorded. Works on the controller alone.
options:
  plan:
    description: The answer of tpufleet.core.run_plan.
    type: dict
    required: true
  stage:
    description:
      - V(answers) decides from O(started) which runs start, which are refused and which need no
        launch.
      - V(start) decides which runs have started on all their workers.
      - V(outcome) decides from O(waited) which runs have failed or are done.
    type: str
    choices: [answers, start, outcome]
    required: true
  started:
    description: By host the answer of tpufleet.core.run.
    type: dict
    default: {}
  pushed:
    description: By host the answer of tpufleet.core.release.
    type: dict
    default: {}
  restarted:
    description: By host the answer of the second tpufleet.core.run.
    type: dict
    default: {}
  waited:
    description: By host the answer of tpufleet.core.run_wait.
    type: dict
    default: {}
  verdict:
    description: The answer of the stage before.
    type: dict
    default: {}
  relaunch:
    description: Whether only a run that is still wanted may be recorded.
    type: bool
    default: false
  fence:
    description: The number of the lease under which the watch relaunches. A record that a later
      lease has changed is left alone.
    type: int
    default: 0
extends_documentation_fragment: tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Judge the answers
  tpufleet.core.run_judge:
    plan: "{{ plan }}"
    stage: answers
    started: "{{ hostvars | tpufleet.core.by_host(ansible_play_hosts_all, 'started') }}"
    fleet_state: ~/fleet
  run_once: true
"""

RETURN = r"""
launches:
  description: The launch of each run that starts.
  returned: stage is answers
  type: dict
notes:
  description: A line for each run that needs no launch.
  returned: stage is answers
  type: list
  elements: str
failures:
  description: Why nothing of a run was started, by the host of its process 0.
  returned: stage is answers
  type: dict
push:
  description: The hosts that need the release.
  returned: stage is answers
  type: list
  elements: str
start:
  description: The hosts that are started after that.
  returned: stage is answers
  type: list
  elements: str
stop:
  description: The hosts on which the run is stopped.
  returned: stage is answers or outcome
  type: list
  elements: str
wait:
  description: The hosts of runs that have started on all their workers.
  returned: stage is start
  type: list
  elements: str
failed_runs:
  description: Each run that failed, by the host of its process 0.
  returned: stage is outcome
  type: dict
outcomes:
  description: Each run's C(problems), and whether its attempt has to be stopped.
  returned: stage is outcome
  type: dict
logs:
  description: The last log lines of a failed run, by the host of its process 0.
  returned: stage is outcome
  type: dict
"""
