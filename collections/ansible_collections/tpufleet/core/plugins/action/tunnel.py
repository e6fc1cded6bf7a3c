"""The whole of tpufleet.core.tunnel: ssh as this host's connection uses it, on loopback only."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

HIGHEST_PORT = 65535


class ActionModule(ActionBase):
    """Opens or closes a forwarding that stays when the playbook is through."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Ask ssh's own control socket whether the tunnel is there, then open or close it."""
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "port": {"type": "int", "required": True},
                "local_port": {"type": "int"},
                "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            }
        )
        if self._connection.transport != "ssh":
            raise AnsibleActionFail("a tunnel leads through ssh: this host is not reached by it")
        if options["local_port"] is None:
            options["local_port"] = options["port"]
        for name in ("port", "local_port"):
            if not 0 < options[name] <= HIGHEST_PORT:
                raise AnsibleActionFail(
                    f"{name.replace('_', ' ')} {options[name]} is no port: TensorBoard's is 6006, "
                    "ansible-playbook playbooks/tunnel.yml -e worker_port=6006"
                )
        host = str((task_vars or {}).get("inventory_hostname", ""))
        socket = self._socket(host, options)
        here, port = (
            f"http://127.0.0.1:{options['local_port']}",
            f"port {options['port']} of {host}",
        )
        there = self._ssh(["-S", socket, "-O", "check"]).returncode == 0
        wanted = options["state"] == "present"
        if there == wanted or self._task.check_mode:
            said = f"{here} is {port}" if wanted else f"there is no tunnel to {port}"
            return result | {"changed": there != wanted, "msg": said}
        if not wanted:
            self._must(["-S", socket, "-O", "exit"])
            return result | {"changed": True, "msg": f"closed: {here} was {port}"}
        forward = f"127.0.0.1:{options['local_port']}:127.0.0.1:{options['port']}"
        own = ["ControlMaster=yes", "ControlPersist=no", "ExitOnForwardFailure=yes"]
        settings = [word for setting in own for word in ("-o", setting)]
        self._must(["-S", socket, *settings, "-f", "-N", "-L", forward])
        return result | {"changed": True, "msg": f"{here} is {port}; -e close=true closes it"}

    def _socket(self, host: str, options: dict) -> str:
        folder = Path.home() / ".ansible/cp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = f"{host} {options['port']} {options['local_port']}"
        return str(folder / f"tunnel-{hashlib.sha256(text.encode()).hexdigest()[:12]}")

    def _ssh(self, words: list[str]) -> subprocess.CompletedProcess[bytes]:
        connection = self._connection
        ssh = connection._build_command(connection.get_option("ssh_executable"), "ssh")
        command = [os.fsdecode(part) for part in ssh]
        # ssh takes the first value of an option: the tunnel has a control socket of its own.
        whole = [command[0], *words, *command[1:], connection.get_option("host")]
        return subprocess.run(
            whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if "-f" not in words else subprocess.DEVNULL,
            check=False,
        )

    def _must(self, words: list[str]) -> None:
        done = self._ssh(words)
        if done.returncode != 0:
            said = (done.stderr or b"").decode(errors="replace").strip().splitlines()
            raise AnsibleConnectionFailure(
                said[-1] if said else "ssh opened no tunnel: is the local port free, the worker up?"
            )
