"""Interactive work on a worker: Python, Jupyter, TensorBoard, and processes that hold devices."""

import json
import re
import socket
import urllib.error
import urllib.request

import pytest

from harness.fleet import Fleet, fleet_entry, fleet_set_up, write_inventory

pytestmark = [pytest.mark.machines, pytest.mark.long]
WORKER = "solo-w0"
AS_OTHER = "su daemon -s /bin/sh -c"
HOLD = "import time; held = open('/dev/accel0'); time.sleep(600)"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One worker, set up with the project's lock file."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("inventory"), tpu_fleet=[fleet_entry("solo", 1)]
    )
    with fleet_set_up("interactive", inventory) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def with_apps(fleet) -> Fleet:
    """The same worker with Jupyter and TensorBoard, as in docs/verbs/tunnel.md."""
    extras = json.dumps({"worker_extras": ["jupyterlab", "tensorboard"]})
    fleet.must_play("setup.yml", "-e", extras)
    return fleet


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def shell(fleet: Fleet, command: str) -> str:
    return fleet.on(WORKER, "sh", "-c", command).strip()


def page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - http
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_a_missing_package_of_an_app_is_an_error_with_its_fix(fleet, port):
    options = ("-e", "open=jupyter", "-e", f"local_port={port}")
    played = fleet.play("playbooks/tunnel.yml", *options)
    assert played.code != 0
    assert "jupyterlab is not in the Python environment" in played.output
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_tpufleet_python_imports_from_the_release_pushed_last(fleet, tmp_path):
    for text in ("first", "second"):
        code = tmp_path / text
        code.mkdir()
        (code / "mine.py").write_text(f"print({text!r})\n")
        fleet.must_play("playbooks/push.yml", "-e", f"code={code}")
        assert shell(fleet, f"{AS_OTHER} 'tpufleet-python -m mine'") == text


def test_a_tpu_without_an_active_run_is_stopped_and_started(fleet, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "wait.py").write_text("import time\ntime.sleep(600)\n")
    options = ("-e", f"code={code}", "-e", "run=busy", "-e", "wait=started")
    command = json.dumps({"command": "python3 wait.py"})
    fleet.must_play("train.yml", *options, "-e", command)
    stop = ("playbooks/stop_tpu.yml", "-e", "tpu=solo", "-e", "yes=true")

    refused = fleet.play(*stop)
    assert refused.code != 0
    assert "run busy is active on the TPU solo" in " ".join(refused.output.split())
    fleet.must_play("playbooks/kill.yml", "-e", "run=busy")
    fleet.must_play(*stop)
    assert "state_STOPPED" in fleet.groups()
    fleet.must_play("playbooks/start_tpu.yml", "-e", "tpu=solo")

    assert shell(fleet, "test -e /opt/tpufleet/ready.json && echo there") == "there"


def test_jupyter_requires_a_token_and_ends_when_its_tunnel_is_closed(with_apps, port):
    fleet, options = with_apps, ("-e", "open=jupyter", "-e", f"local_port={port}")
    opened = fleet.must_play("playbooks/tunnel.yml", *options)
    [token] = set(re.findall(r"/lab\?token=(\w+)", opened.output))
    address = f"http://127.0.0.1:{port}/api/kernelspecs"

    assert page(address)[0] == 403
    code, text = page(f"{address}?token={token}")
    assert (code, "python3" in json.loads(text)["kernelspecs"]) == (200, True)
    assert token not in shell(fleet, "journalctl; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert (
        shell(fleet, f"{AS_OTHER} 'cat /run/tpufleet-jupyter/token 2>/dev/null' || echo no") == "no"
    )
    assert shell(fleet, "ss -Hltn sport = :8888 | awk '{print $4}'") == "127.0.0.1:8888"
    main_pid = "systemctl show --value --property=MainPID tpufleet-jupyter"
    assert shell(fleet, f"ps -o user= -p $({main_pid})") == "tpufleet"

    again = fleet.must_play("playbooks/tunnel.yml", *options)
    assert again.changed() == 0
    assert token in again.output
    closed = fleet.must_play("playbooks/tunnel.yml", *options, "-e", "close=true")
    assert closed.changed() == 2
    assert shell(fleet, "systemctl is-active tpufleet-jupyter || true") == "inactive"
    assert shell(fleet, "test -e /run/tpufleet-jupyter || echo gone") == "gone"


def test_tensorboard_shows_the_runs_of_the_worker(with_apps, port):
    fleet, options = with_apps, ("-e", "open=tensorboard", "-e", f"local_port={port}")
    events = "/var/lib/tpufleet/runs/shown/tensorboard"
    write = "import tensorboardX as t; w = t.SummaryWriter('.'); w.add_scalar('a', 1, 1); w.close()"
    shell(fleet, f'mkdir -p {events} && cd {events} && tpufleet-python -c "{write}"')
    try:
        fleet.must_play("playbooks/tunnel.yml", *options)
        code, text = page(f"http://127.0.0.1:{port}/data/runs")
        assert (code, json.loads(text)) == (200, ["shown/tensorboard"])
    finally:
        fleet.must_play("playbooks/tunnel.yml", *options, "-e", "close=true")
        shell(fleet, "rm -r /var/lib/tpufleet/runs/shown")
    assert shell(fleet, "ss -Hltn sport = :6006") == ""


def test_another_program_on_the_port_of_jupyter_gets_no_token(with_apps, port):
    fleet, options = with_apps, ("-e", "open=jupyter", "-e", f"local_port={port}")
    shell(
        fleet, "systemd-run --collect --unit=squatter python3 -m http.server --bind 127.0.0.1 8888"
    )
    try:
        played = fleet.play("playbooks/tunnel.yml", *options)
    finally:
        shell(fleet, "systemctl stop squatter")
    assert played.code != 0
    assert "tpufleet-jupyter.service has ended" in played.output
    assert "token=" not in played.output


def test_strays_are_ended_after_confirmation_and_the_lock_file_is_removed(fleet):
    unit = "systemd-run --collect --unit=stray"
    shell(fleet, f'touch /dev/accel0 /tmp/libtpu_lockfile && {unit} python3 -c "{HOLD}"')
    shell(
        fleet, "until ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q /dev/accel0; do sleep 0.2; done"
    )
    try:
        unconfirmed = fleet.play("playbooks/kill.yml", "-e", "strays=true")
        assert unconfirmed.code != 0
        assert re.search(
            r"solo-w0: pid \d+ of root, since \S+, holds /dev/accel0: \S*python3",
            unconfirmed.output,
        )
        shell(fleet, "systemctl is-active stray")

        ended = fleet.must_play("playbooks/kill.yml", "-e", "strays=true", "-e", "yes=true")
        assert ended.changed() == 1
        shell(fleet, "! systemctl is-active stray && ! test -e /tmp/libtpu_lockfile")
        again = fleet.must_play("playbooks/kill.yml", "-e", "strays=true")
        assert again.changed() == 0
    finally:
        shell(fleet, "systemctl stop stray || true; rm /dev/accel0")
