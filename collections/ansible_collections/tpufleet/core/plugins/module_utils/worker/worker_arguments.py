"""What the modules of the daily verbs take, in the words of AnsibleModule.

Apart from the modules, since the controller reads it as well: it checks these arguments itself, so
that workers need not import what does (``worker_module``).
"""

from __future__ import annotations

_LAUNCH = {
    "attempt": {"type": "int", "default": 0},
    "release": {"type": "str", "required": True},
    "lock_digest": {"type": "str", "required": True},
    "config": {"type": "str"},
    "command": {"type": "list", "elements": "str", "required": True},
    "coordinator": {"type": "str", "required": True},
    "num_processes": {"type": "int", "default": 1},
    "process_id": {"type": "int", "default": 0},
    "peers": {"type": "list", "elements": "str", "default": []},
    "meet_seconds": {"type": "int", "default": 120},
    "checkpoints": {"type": "str", "required": True},
    "compile_cache": {"type": "str", "default": ""},
    "chip": {"type": "int", "default": -1},
    "volatile_checkpoints": {"type": "bool", "default": False},
    "finished_attempt": {"type": "int", "default": 0},
}

RUN = {
    "argument_spec": {
        "run": {"type": "str", "required": True},
        "state": {
            "type": "str",
            "choices": ["ready", "launched", "started", "stopped"],
            "required": True,
        },
        "launch": {"type": "dict", "options": _LAUNCH},
        "env": {"type": "dict", "default": {}},
        "secrets": {"type": "dict", "default": {}, "no_log": True},
        "token": {"type": "str", "no_log": True},
        "mortal": {"type": "bool", "default": False},
        "device_glob": {"type": "str", "default": ""},
        "root": {"type": "path", "default": "/opt/tpufleet"},
        "state_dir": {"type": "path", "default": "/var/lib/tpufleet"},
        "etc": {"type": "path", "default": "/etc/tpufleet"},
    },
    "required_if": [("state", state, ["launch"]) for state in ("ready", "launched", "started")],
}

RUN_INFO = {
    "argument_spec": {
        "run": {"type": "str"},
        "lines": {"type": "int", "default": 0},
        "until": {"type": "str", "choices": ["now", "first_step", "done"], "default": "now"},
        "wait": {"type": "int", "default": 8},
        "since": {"type": "int"},
        "progress": {"type": "bool", "default": False},
        "device_glob": {"type": "str", "default": ""},
        "state_dir": {"type": "path", "default": "/var/lib/tpufleet"},
        "etc": {"type": "path", "default": "/etc/tpufleet"},
    },
    "required_by": {"since": "run"},
}

RELEASE = {
    "argument_spec": {
        "code": {"type": "path", "required": True},
        "code_paths": {"type": "list", "elements": "str", "default": []},
        "name": {"type": "str"},
        "keep": {"type": "path"},
        "root": {"type": "path", "default": "/opt/tpufleet"},
        "release": {"type": "str"},
        "incoming": {"type": "path"},
        "from_leader": {"type": "bool", "default": False},
        "kept": {"type": "int", "default": 5},
    },
}

BY_MODULE = {"run": RUN, "run_info": RUN_INFO, "release": RELEASE}
