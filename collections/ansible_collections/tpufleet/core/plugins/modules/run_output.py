#!/usr/bin/python
"""Module tpufleet.core.run_output: return the output of runs that is not stored yet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_output
short_description: Return the output of a worker's runs that the controller has not stored yet
description:
  - Returns the log, the metrics, the start and the end of each attempt as files to store, for a
    controller that collects the output of runs. Output that the workers store in a bucket
    themselves is left out.
  - Changes nothing on the worker. The controller stores RV(state) and passes it to the next call.
options:
  state:
    description: The RV(state) that the last call on this worker returned. It says what is stored
      already, and everything else is returned.
    type: dict
    default: {}
  runs:
    description: The names of the runs whose output to return. By default all runs with files on the
      worker.
    type: list
    elements: str
    default: []
  max_bytes:
    description: After how many bytes of content, counted before the encoding in base64, the module
      returns no further file. The last file may exceed this number.
    type: int
    default: 2097152
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Collect the output of all runs
  tpufleet.core.run_output:
    state: "{{ collected_before | default({}) }}"
  become: true
  register: collected
"""

RETURN = r"""
files:
  description:
    - The files to write, in this order, each a dictionary with C(name), a path such as
      C(RUN/ATTEMPT/PROCESS/log/000000000000), and C(content), encoded in base64. A file that
      exists is replaced.
  returned: success
  type: list
  elements: dict
state:
  description: The value of O(state) for the next call. Store it after the files are written.
  returned: success
  type: dict
more:
  description: Whether there is more output than O(max_bytes). Call the module again for the rest.
  returned: success
  type: bool
"""

from base64 import b64encode
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import RUN_NAME, STATE_DIR
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.output_stream import (
    parse_state,
    read_attempts,
    read_end,
    state_to_json,
    uploads_of,
)
from ..module_utils.worker.run import RunError, check_name


class Collection:
    """The files that the module returns, collected run by run, up to ``max_bytes``.

    ``state`` is the module's option of this name, which says what is stored already.
    """

    def __init__(self, state: dict, max_bytes: int) -> None:
        self.stored, self.remaining_bytes = state, max_bytes
        self.files: list[dict[str, str]] = []
        self.more = False

    def add_run(self, folder: Path) -> dict[str, dict]:
        """Add a run's output that is not stored yet.

        Returns the new value of the option ``state`` for this run. For each attempt number, it says
        what is stored once the caller has stored the added output.
        """
        states, attempts = {}, read_attempts(folder)
        stored_states = self.stored.get(folder.name)
        for attempt, following in zip(attempts, [*attempts[1:], None]):  # noqa: B905 - Python 3.9
            start, number = attempt.start, str(attempt.start.attempt)
            value = stored_states.get(number) if isinstance(stored_states, dict) else None
            is_stored = value == {"began": start.began, "is_complete": True}
            if attempt.location or is_stored:
                states.update({number: value} if is_stored else {})
                continue
            end, state = read_end(folder, start.attempt), parse_state(value, attempt)
            for upload in uploads_of(folder, attempt, state, end, following):
                if self.remaining_bytes <= 0:
                    self.more = True
                    break
                if upload.content:
                    name = f"{start.run}/{number}/{start.process_id}/{upload.name}"
                    self.files.append({"name": name, "content": b64encode(upload.content).decode()})
                    self.remaining_bytes -= len(upload.content)
                state = upload.state
            is_complete = not self.more and (end is not None or following is not None)
            states[number] = (
                {"began": start.began, "is_complete": True} if is_complete else state_to_json(state)
            )
        return states


def main() -> None:
    """Run the module: collect the output of the runs, at most ``max_bytes``."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "dict", "default": {}},
            "runs": {"type": "list", "elements": "str", "default": []},
            "max_bytes": {"type": "int", "default": 1 << 21},
        },
        supports_check_mode=True,
    )
    params = module.params
    folder = Path(STATE_DIR) / "runs"
    collection = Collection(params["state"], params["max_bytes"])
    try:
        requested = [check_name(run) for run in params["runs"]]
        # Before the worker is set up, it has no directory of runs.
        paths = folder.iterdir() if folder.is_dir() else ()
        present = [path.name for path in paths if RUN_NAME.fullmatch(path.name)]
    except RunError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    state = {}
    for run in sorted(present):
        if requested and run not in requested:
            state.update({run: params["state"][run]} if run in params["state"] else {})
        elif states := collection.add_run(folder / run):
            state[run] = states
    module.exit_json(changed=False, files=collection.files, state=state, more=collection.more)


if __name__ == "__main__":
    main()
