"""Documentation of tpufleet.core.run_judge for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_judge
short_description: Decide how a launch continues, from the results of all workers
description:
  - Runs on the controller only. Decides for each run of the play separately, and writes the
    decision to the run's record. If a run cannot start on one of its workers, it starts on none.
    RV(stop) has the hosts on which the caller must stop it.
options:
  plan:
    description: The result of M(tpufleet.core.run_plan).
    type: dict
    required: true
  stage:
    description:
      - V(answers) decides from O(started) which runs start, which are refused and which need no
        launch.
      - V(start) decides from O(started), O(pushed) and O(restarted) which runs have started on all
        their workers.
      - V(outcome) decides from O(waited) which runs have failed or are done.
    type: str
    choices: [answers, start, outcome]
    required: true
  started:
    description: The results of the first call of M(tpufleet.core.run) in the launch, by host.
    type: dict
    default: {}
  pushed:
    description: The results of M(tpufleet.core.release), by host.
    type: dict
    default: {}
  restarted:
    description: The results of the second call of M(tpufleet.core.run), which follows the
      installation of the release, by host.
    type: dict
    default: {}
  waited:
    description: The results of M(tpufleet.core.run_wait), by host.
    type: dict
    default: {}
  verdict:
    description: The result of this module in the previous stage.
    type: dict
    default: {}
  relaunch:
    description: Whether this is a relaunch. A run that is no longer wanted is then refused.
    type: bool
    default: false
  fence:
    description: The number of the lease that the watch holds during a relaunch. A run whose record
      the holder of a later lease has changed is refused. V(0) without a lease.
    type: int
    default: 0
extends_documentation_fragment:
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Decide which runs can start
  tpufleet.core.run_judge:
    plan: "{{ plan }}"
    stage: answers
    started: "{{ hostvars | tpufleet.core.by_host(ansible_play_hosts_all, 'started') }}"
    fleet_state: ~/fleet
  run_once: true
"""

RETURN = r"""
launches:
  description: The launch of each run that starts, by the run's name.
  returned: stage is answers
  type: dict
was_wanted:
  description: Whether each of these runs was wanted before, by name. For the next stage.
  returned: stage is answers
  type: dict
notes:
  description: One line of text for each run that needs no launch.
  returned: stage is answers
  type: list
  elements: str
failures:
  description: The error for each run that was not started, by the host of its process 0.
  returned: stage is answers
  type: dict
push:
  description: The hosts on which the release must be installed before the start.
  returned: stage is answers
  type: list
  elements: str
start:
  description: The hosts on which the run must be started after the release is installed.
  returned: stage is answers
  type: list
  elements: str
stop:
  description: The hosts on which the run must be stopped.
  returned: stage is answers or outcome
  type: list
  elements: str
runs:
  description: The outcome and the attempt of each run, by name. For the next stage.
  returned: stage is start
  type: dict
wait:
  description: The hosts of runs that have started on all their workers.
  returned: stage is start
  type: list
  elements: str
failed_runs:
  description: The name of each run that failed, by the host of its process 0.
  returned: stage is outcome
  type: dict
hosts:
  description: The hosts of each failed run, by the run's name.
  returned: stage is outcome
  type: dict
outcomes:
  description: A dictionary for each run, by name. C(problems) has a line for each problem.
    C(launch_failed) says whether the run failed before its first step, C(stop) whether its attempt
    must be stopped.
  returned: stage is outcome
  type: dict
logs:
  description: The last log lines of each failed run, by the host of its process 0.
  returned: stage is outcome
  type: dict
"""
