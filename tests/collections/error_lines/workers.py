"""Cases of bad input to setup: packages, disks, Python, mounts, tunnels, unreachable workers."""

import json
import sys
from pathlib import Path

import yaml
from ansible_collections.tpufleet.core.plugins.module_utils.worker.env_install import (
    install_from_index,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import (
    check_free_space,
)
from ansible_collections.tpufleet.core.plugins.modules.python_toolchain import install_python

from harness.playbooks import ROOT
from tests.collections.error_lines.bad import Bad, case, nowhere, printed_error, viewed
from tests.collections.view.conftest import Stage


@case("apple==1.0")
def requirement_that_does_not_exist(bad: Bad) -> str:
    (bad.folder / "apple").mkdir()
    (bad.folder / "apple/index.html").write_text("")
    return environment(bad, f"file://{bad.folder}")


@case("apple")
def index_that_is_down(bad: Bad) -> str:
    return environment(bad, f"{nowhere()}/simple")


def environment(bad: Bad, index: str) -> str:
    lock = f"apple==1.0 --hash=sha256:{'0' * 64}\n"
    uv, python = Path(sys.prefix) / "bin/uv", Path(sys.executable)
    variables = {"UV_DEFAULT_INDEX": index, "UV_HTTP_RETRIES": "0"}
    return printed_error(
        install_from_index, bad.folder / "env", lock, python, uv, variables, bad.folder / "cache"
    )


@case("/")
def disk_without_free_space(bad: Bad) -> str:
    return printed_error(check_free_space, Path("/nowhere"), 10**12)


@case("Python")
def old_python_and_unreachable_mirror(bad: Bad) -> str:
    uv = Path(sys.prefix) / "bin/uv"
    return printed_error(
        install_python, uv, bad.folder, "3.12", nowhere(), {"UV_HTTP_RETRIES": "0"}
    )


@case("gs://data")
def mount_of_a_bucket_with_gs_scheme(bad: Bad) -> str:
    entry = {"kind": "gcsfuse", "path": "/mnt/data", "bucket": "gs://data"}
    show = "'{{ [entry] | tpufleet.core.mount_units(inventory_hostname, hostvars, 64042) }}'"
    task = f"- ansible.builtin.debug: {{msg: {show}}}\n  vars: {{entry: {json.dumps(entry)}}}\n"
    return viewed(Stage(bad.folder).play(task, "--limit", "pod-w1").text)


@case("name the port")
def tunnel_without_a_port(bad: Bad) -> str:
    _, play = yaml.safe_load((ROOT / "playbooks/tunnel.yml").read_text())
    block, *_ = [task["block"] for task in play["tasks"] if "block" in task]
    check = block[0] | {"vars": play["vars"]}
    first = yaml.safe_dump([check], width=1000)
    return viewed(Stage(bad.folder).play(first, "--limit", "pod-w1").text)


@case("pod-w1")
def worker_that_is_down(bad: Bad) -> str:
    stage = Stage(bad.folder)
    port = nowhere().rpartition(":")[2]
    hosts = f"pod-w1 ansible_host=127.0.0.1 ansible_port={port} tpu_name=pod\n"
    (bad.folder / "hosts.ini").write_text(hosts)
    return viewed(stage.play("- name: Ask\n  ansible.builtin.ping:\n").text)
