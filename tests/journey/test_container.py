"""A trainer in a container image: the image is pulled, the run killed, resumed and fetched.

The registry is Debian's docker-registry on a separate machine. It has one of Google's host names,
so that the workers log in with the token of their service account. podman and docker are Debian's.
"""

import json
import re
import shlex
import tarfile
import time

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.error_line import last_attempt

from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_or_existing_cloud
from localcloud import client
from localcloud.local_cloud import PROJECT_ROOT

pytestmark = [pytest.mark.machines, pytest.mark.long]
REGISTRY = "europe-docker.pkg.dev:5000"
NAME = f"{REGISTRY}/project/repository/trainer"
TOKEN = (
    "curl -s -H 'Metadata-Flavor: Google' "
    "http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token"
)
# podman's default storage driver does not work here: the machines' root is an overlay.
ENGINE = """
echo '{address} {host}' >> /etc/hosts
mkdir -p /etc/containers/registries.conf.d /etc/docker
printf '[storage]\\ndriver="vfs"\\nrunroot="/run/containers"\\ngraphroot="/var/lib/containers"\\n' \
  > /etc/containers/storage.conf
printf '[[registry]]\\nlocation="{registry}"\\ninsecure=true\\n' \
  > /etc/containers/registries.conf.d/test.conf
echo '{{"insecure-registries": ["{registry}"], "bridge": "none", "iptables": false}}' \
  > /etc/docker/daemon.json
"""
START_REGISTRY = """
set -e
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
  podman docker-registry apache2-utils >/dev/null
sed -i 's/addr: :5000/addr: {address}:5000/' /etc/docker/registry/config.yml
token=$({token} | python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])')
printf %s "$token" | htpasswd -iBc /etc/docker/registry/htpasswd oauth2accesstoken
systemctl restart docker-registry
"""
# The image contains the machine's Python, a shell, id, and the libraries that they need.
PUSH = """
set -e
root=/root/rootfs python=$(readlink -f /usr/bin/python3)
rm -rf $root
mkdir -p $root/app $root/usr/bin $root/usr/lib $root/usr/lib64 $root/usr/local/bin $root/tmp
for link in bin lib lib64; do ln -s usr/$link $root/$link; done
for program in /usr/bin/dash /usr/bin/id $python; do cp -aL $program $root$program; done
ln -s dash $root/usr/bin/sh
ln -s $python $root/usr/local/bin/python
for lib in $(ldd $python /usr/bin/dash /usr/bin/id | grep -o '=> /[^ ]*' | cut -c4- | sort -u); do
  mkdir -p $root/usr$(dirname $lib); cp -L $lib $root/usr$lib; done
cp -aL /lib64/ld-linux-x86-64.so.2 $root/usr/lib64/
cp -a /usr/lib/$(basename $python) $root/usr/lib/
echo 'the image' > $root/app/who
printf '%s' {trainer} > $root/app/train.py
chmod 0600 $root/app/*
chmod u+s $root/usr/bin/id
mkfifo $root/app/pipe
tar -C $root -c . | podman import --quiet --change WORKDIR=/app --change ENV=FROM_IMAGE=indeed \
  --change ENV=PATH=/usr/local/bin:/usr/bin - trainer >/dev/null
{token} | python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])' \
  | podman login --username oauth2accesstoken --password-stdin {registry}
podman push --quiet --digestfile /root/digest trainer {name}
"""
RUNS = "/var/lib/tpufleet/runs"
NO_UNIT = "! systemctl --quiet is-active 'tpufleet-run@*'"
NO_PROCESS = "! ls -l /proc/[0-9]*/root 2>/dev/null | grep /opt/tpufleet/images"
NO_DEVICE = "! ls -l /proc/[0-9]*/fd 2>/dev/null | grep accel0"
TRAIN = "python train.py {checkpoints} /dev/accel0"
STUBBORN = "python -c 'import signal, time; signal.signal(15, 1); time.sleep(999)'"
WORKERS = ("pod-w0", "pod-w1")
SOON = 300


def script(fleet: Fleet, worker: str, text: str) -> str:
    """Run a shell script as root on a worker; return its output without surrounding whitespace."""
    return fleet.on(worker, "sh", "-c", text).strip()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inventory")
    inventory = write_inventory(folder, tpu_fleet=[fleet_entry("hub", 1)])
    with own_or_existing_cloud("container") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        address = script(fleet, "hub-w0", "hostname -I").split()[0]
        engine = ENGINE.format(address=address, host=REGISTRY.partition(":")[0], registry=REGISTRY)
        script(fleet, "hub-w0", engine + START_REGISTRY.format(address=address, token=TOKEN))
        startup = f"#!/bin/sh\n{engine}touch /dev/accel0\n"  # a fake TPU device
        packages = ["ca-certificates", "e2fsprogs", "logrotate", "nftables", "podman"]
        variables = {
            "tpu_fleet": [
                fleet_entry("hub", 1),
                fleet_entry("pod", 2, metadata={"startup-script": startup}),
            ],
            "base_packages": [*packages, "python3-venv", "rsync", "tzdata"],
            "run_device_glob": "/dev/accel*",
            "run_stop_seconds": 8,
        }
        (folder / "group_vars/all/own.yml").write_text(json.dumps(variables))
        fleet.must_play("playbooks/create.yml")
        fleet.must_play("setup.yml", "-e", "tpu=pod")
        yield fleet


@pytest.fixture(scope="module")
def image(fleet, tmp_path_factory) -> str:
    """The pushed image: its name in the registry and its digest."""
    trainer = shlex.quote((PROJECT_ROOT / "examples/counting.py").read_text())
    file = tmp_path_factory.mktemp("push") / "push.sh"
    file.write_text(PUSH.format(trainer=trainer, token=TOKEN, registry=REGISTRY, name=NAME))
    play = ("ansible", "hub-w0", "-b", "-m", "ansible.builtin.script")
    fleet.must_run(*play, "-a", f"{file} executable=/bin/sh")
    return f"{NAME}@{fleet.on('hub-w0', 'cat', '/root/digest').strip()}"


def launch(run: str, image: str, command: str = TRAIN, **options: str) -> tuple[str, ...]:
    """Return the arguments of ansible-playbook that launch a command in an image."""
    variables = {"tpu": "pod", "run": run, "image": image, "command": command, **options}
    return ("train.yml", "-e", json.dumps(variables))


def log(fleet: Fleet, run: str) -> str:
    """Return the log of the last attempt, or "" if there is none."""
    text = script(fleet, "pod-w0", f"cat {RUNS}/{run}/log 2>/dev/null || true")
    return "\n".join(last_attempt(text.split("\n")))


def resumed_from(fleet: Fleet, run: str) -> int:
    """Wait for the trainer's first line; return the step from which it started."""
    deadline = time.monotonic() + SOON
    while not (match := re.search(r"the image: from step (\d+), indeed", log(fleet, run))):
        assert time.monotonic() < deadline, log(fleet, run)[-3000:]
        time.sleep(1)
    return int(match[1])


def wait_for_steps(fleet: Fleet, run: str) -> None:
    """Wait for ten more steps."""
    file = f"{RUNS}/{run}/heartbeat.json"
    before = int(json.loads(script(fleet, "pod-w0", f"cat {file}"))["step"])
    deadline = time.monotonic() + SOON
    while int(json.loads(script(fleet, "pod-w0", f"cat {file}"))["step"]) < before + 10:
        assert time.monotonic() < deadline, log(fleet, run)[-3000:]


def kill(fleet: Fleet, run: str) -> list[dict]:
    """Kill a run, check that no process is left, and return ``exit.json`` of each worker."""
    fleet.must_play("playbooks/kill.yml", "-e", f"run={run}")
    for worker in WORKERS:
        script(fleet, worker, f"{NO_UNIT} && {NO_PROCESS} && {NO_DEVICE}")
    return [json.loads(fleet.on(worker, "cat", f"{RUNS}/{run}/exit.json")) for worker in WORKERS]


def test_an_image_trains_on_two_workers_is_killed_and_resumes(fleet, image):
    boxed = ("-e", "tpu=pod", "-e", "run=boxed", "-e", f"image={image}")
    fleet.must_play("train.yml", *boxed, "-e", 'command="python train.py {checkpoints}"')
    assert resumed_from(fleet, "boxed") == 0
    wait_for_steps(fleet, "boxed")

    assert [end["status"] for end in kill(fleet, "boxed")] == ["75", "75"]

    fleet.must_play(*launch("boxed", image))
    assert resumed_from(fleet, "boxed") >= 10
    assert "user 64042, holds /dev/accel0" in log(fleet, "boxed")


def test_only_the_leader_pulls_the_image_and_no_file_of_it_grants_privileges(fleet, image):
    pulls = fleet.on("hub-w0", "journalctl", "--no-pager", "-u", "docker-registry")
    leader, other = (script(fleet, worker, "hostname -I").split()[0] for worker in WORKERS)

    assert f"{leader}:" in pulls
    assert f"{other}:" not in pulls
    for worker in WORKERS:
        unsafe = "find /opt/tpufleet/images -perm /6022 ! -type l -o -type p -o ! -user root"
        assert script(fleet, worker, unsafe) == ""
    assert script(fleet, "pod-w0", "podman images --quiet; podman ps --all --quiet") == ""


def test_the_token_is_in_no_file_or_log_of_the_workers(fleet, image):
    token = json.loads(script(fleet, "pod-w0", TOKEN))["access_token"]
    # The command reads the token on the worker: a token in its arguments would be in Ansible's log.
    find = f"$({TOKEN} | cut -d '\"' -f 4) /etc /opt /root /run /tmp /var/lib/tpufleet /var/log"

    for worker in WORKERS:
        script(fleet, worker, f"{TOKEN} | cut -d '\"' -f 4 | grep -q .")
        script(fleet, worker, f"! grep -rlsF -e {find}")
    records = (fleet.cloud.directory / "fleet").rglob("*")
    assert not any(token in file.read_text() for file in records if file.is_file())


def test_a_preempted_run_pulls_the_image_again_and_its_checkpoint_is_fetched(
    fleet, image, tmp_path
):
    client.request(fleet.cloud, "POST", "/_localcloud/nodes/pod:preempt")
    for _ in range(4):
        fleet.must_play("playbooks/watch.yml")
        if "READY" in fleet.must_run("ansible-inventory", "--host", "pod-w0"):
            break
    assert resumed_from(fleet, "boxed") >= 10
    wait_for_steps(fleet, "boxed")
    assert [end["status"] for end in kill(fleet, "boxed")] == ["75", "75"]

    options = ("-e", "run=boxed", "-e", f"to={tmp_path}", "-e", "checkpoints=newest")
    fleet.must_play("playbooks/fetch.yml", *options)

    with tarfile.open(tmp_path / "pod-w0.tar.gz") as pack:
        assert any(re.search(r"/\d+/state$", name) for name in pack.getnames())


def test_a_trainer_in_an_image_that_ignores_term_is_killed(fleet, image):
    fleet.must_play(*launch("stubborn", image, STUBBORN))

    assert [end["status"] for end in kill(fleet, "stubborn")] == ["KILL", "KILL"]


def test_an_unknown_digest_and_an_unknown_program_start_nothing(fleet, image):
    unknown = fleet.play(*launch("unknown", f"{NAME}@sha256:{'0' * 64}"))
    assert unknown.code != 0
    assert "podman cannot pull it" in unknown.output
    assert "roles/artifactregistry.reader" in unknown.output

    missing = fleet.play(*launch("missing", image, "no-such-program", wait="done"))
    assert missing.code != 0
    assert "no-such-program: No such file or directory: is it in the release" in missing.output


def test_docker_pulls_the_image_if_podman_is_missing(fleet, image):
    install = "DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends"
    script(fleet, "pod-w0", f"{install} docker.io docker-cli >/dev/null")
    for worker in WORKERS:
        script(fleet, worker, "rm -rf /opt/tpufleet/images && mv /usr/bin/podman /root/podman")

    fleet.must_play(*launch("docked", image))

    assert resumed_from(fleet, "docked") == 0
    assert script(fleet, "pod-w0", "docker images --quiet; docker ps --all --quiet") == ""
    assert [end["status"] for end in kill(fleet, "docked")] == ["75", "75"]
