"""What the modules of setup take, in the words of AnsibleModule.

As for the daily verbs' (``worker_arguments``), the controller checks these arguments itself.
"""

from __future__ import annotations

CERTIFICATE = {
    "argument_spec": {
        "state": {"type": "str", "choices": ["checked", "granted"], "required": True},
        "roles": {"type": "list", "elements": "str", "default": []},
        "uncounted": {"type": "list", "elements": "str", "default": []},
        "content": {"type": "str", "default": ""},
        "void": {"type": "bool", "default": False},
        "files": {"type": "list", "elements": "str", "default": []},
        "packages": {"type": "list", "elements": "str", "default": []},
        "units": {"type": "list", "elements": "str", "default": []},
        "lock": {"type": "str", "default": ""},
        "device_glob": {"type": "str", "default": ""},
        "chips": {"type": "int", "default": 0},
        "root": {"type": "path", "default": "/opt/tpufleet"},
    },
}

DATA_DISK = {
    "argument_spec": {
        "name": {"type": "str", "required": True},
        "device": {"type": "path"},
        "path": {"type": "path", "required": True},
        "filesystem": {"type": "str", "choices": ["ext4"], "default": "ext4"},
        "owner": {"type": "int", "default": 0},
        "fstab": {"type": "path", "default": "/etc/fstab"},
    },
}

FIREWALL = {
    "argument_spec": {
        "state": {
            "type": "str",
            "choices": ["present", "loaded", "confirmed", "absent"],
            "required": True,
        },
        "peers": {"type": "list", "elements": "str", "default": []},
        "open_ports": {"type": "list", "elements": "str", "default": []},
        "seconds": {"type": "int", "default": 45},
        "path": {"type": "path", "default": "/etc/tpufleet/firewall.nft"},
    },
}

FLEET_SSH = {
    "argument_spec": {
        "part": {"type": "str", "choices": ["key", "leader", "worker"], "required": True},
        "keys": {"type": "dict", "default": {}, "no_log": False},
        "addresses": {"type": "list", "elements": "str", "default": []},
        "serves": {"type": "dict", "default": {}},
        "leader": {"type": "str", "default": ""},
        "host_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
        "folder": {"type": "path", "default": "/etc/tpufleet/peer"},
        "home": {"type": "path", "default": "/var/lib/tpufleet-peer"},
        "host_key_glob": {
            "type": "path",
            "default": "/etc/ssh/ssh_host_*_key.pub",
            "no_log": False,
        },
    },
}

HOST_SETTINGS = {
    "argument_spec": {
        "timezone": {"type": "str", "required": True},
        "sync": {"type": "bool", "default": True},
        "address": {"type": "str", "required": True},
        "hosts": {"type": "path", "default": "/etc/hosts"},
        "name": {"type": "str"},
    },
}

PACKAGES = {
    "argument_spec": {
        "names": {"type": "list", "elements": "str", "required": True},
        "lock_seconds": {"type": "int", "default": 600},
        "mend": {
            "type": "str",
            "default": "mend the list of packages or the way to the mirror",
        },
        "again": {"type": "str", "default": "try again"},
    },
}

_PERSON = {
    "name": {"type": "str", "required": True},
    "keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
    "sudo": {"type": "bool", "default": False},
    "shell": {"type": "path", "default": "/bin/bash"},
}

PEOPLE = {
    "argument_spec": {
        "people": {"type": "list", "elements": "dict", "default": [], "options": _PERSON},
        "group": {"type": "str", "default": "tpufleet-people"},
        "device_groups": {"type": "list", "elements": "str", "default": []},
    },
}

_DOWNLOADED = {
    "lock": {"type": "str", "required": True},
    "turn": {"type": "str", "choices": ["leader", "all"], "default": "all"},
    "source": {"type": "str", "choices": ["registry", "controller"], "default": "registry"},
    "pack": {"type": "path"},
    "cache": {"type": "path", "default": "~/.cache/tpufleet"},
    "env": {"type": "dict", "default": {}},
    "root": {"type": "path", "default": "/opt/tpufleet"},
}
"""Of what the leader downloads, and the others take from it."""

PYTHON_ENV = {
    "argument_spec": {
        **_DOWNLOADED,
        "keep": {"type": "int", "default": 2},
        "runs": {"type": "path", "default": "/etc/tpufleet/runs"},
        "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
        "devices": {"type": "int", "default": 1},
        "chips": {"type": "int", "default": 0},
        "device_glob": {"type": "str", "default": ""},
        "proof_seconds": {"type": "int", "default": 120},
        "user": {"type": "str", "default": "tpufleet"},
        "needed_mb": {"type": "int"},
    },
}

PYTHON_TOOLCHAIN = {
    "argument_spec": {
        **_DOWNLOADED,
        "minimum": {"type": "int", "default": 12},
        "wanted": {"type": "str", "default": "3.12"},
        "mirror": {"type": "str", "default": ""},
    },
}

SLICE_PROOF = {
    "argument_spec": {
        "lock": {"type": "str", "required": True},
        "coordinator": {"type": "str", "required": True},
        "processes": {"type": "int", "required": True},
        "process": {"type": "int", "required": True},
        "devices": {"type": "int", "default": 1},
        "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
        "device_glob": {"type": "str", "default": ""},
        "seconds": {"type": "int", "default": 120},
        "user": {"type": "str", "default": "tpufleet"},
        "root": {"type": "path", "default": "/opt/tpufleet"},
    },
}

SYSTEM_FILES = {
    "argument_spec": {
        "files": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "path": {"type": "path", "required": True},
                "content": {"type": "str", "required": True},
                "mode": {"type": "str", "default": "0644"},
            },
        },
        "directories": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "path": {"type": "path", "required": True},
                "owner": {"type": "int", "default": 0},
                "mode": {"type": "str", "default": "0755"},
            },
        },
        "owed": {"type": "path", "default": "/etc/tpufleet/owed"},
    },
}

BY_MODULE = {
    "certificate": CERTIFICATE,
    "data_disk": DATA_DISK,
    "firewall": FIREWALL,
    "fleet_ssh": FLEET_SSH,
    "host_settings": HOST_SETTINGS,
    "packages": PACKAGES,
    "people": PEOPLE,
    "python_env": PYTHON_ENV,
    "python_toolchain": PYTHON_TOOLCHAIN,
    "slice_proof": SLICE_PROOF,
    "system_files": SYSTEM_FILES,
}
