"""Google's gcloud with the local cloud, with a separate home and configuration."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.gcloud_ssh import environment
from harness.own_cloud import own_cloud
from localcloud import settings
from tests.localcloud.api.compute_caller import Compute
from tests.localcloud.api.local_api import LocalApi

GCLOUD = shutil.which("gcloud")
pytestmark = pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")
TPUS = ("compute", "tpus")
ZONE = "--zone=us-central2-b"
KIND = ("--accelerator-type=v4-8", "--version=tpu-ubuntu2204-base")
QUEUED_KIND = ("--accelerator-type=v4-8", "--runtime-version=tpu-ubuntu2204-base")
Gcloud = Callable[..., str]


def gcloud_for(home: Path, endpoint: str, credentials: Path) -> Gcloud:
    """Return a function that runs gcloud with the credentials of one local cloud."""
    variables = environment(home, endpoint)

    def gcloud(*arguments: str) -> str:
        result = subprocess.run(
            ["gcloud", *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, f"{arguments}: {result.stderr}"
        return result.stdout

    gcloud("auth", "activate-service-account", f"--key-file={credentials}")
    return gcloud


@pytest.fixture(scope="module")
def gcloud(shared_api, tmp_path_factory) -> Gcloud:
    """Return a function that runs gcloud, authenticated once for all tests to save time."""
    home = tmp_path_factory.mktemp("home")
    return gcloud_for(home, shared_api.endpoint, shared_api.credentials_file)


@pytest.fixture
def local_api(shared_api) -> Iterator[LocalApi]:
    """Return the shared API; delete the test's queued resources and TPUs at the end."""
    yield shared_api
    for kind, force in (("queuedResources", {"force": "true"}), ("nodes", {})):
        for resource in shared_api.get(f"locations/-/{kind}").get(kind, []):
            response = shared_api.call("DELETE", f"/v2/{resource['name']}", **force)
            shared_api.ended(response.json())


def test_gcloud_creates_lists_stops_starts_and_deletes_a_tpu(gcloud, local_api):
    tpus = (*TPUS, "tpu-vm")

    gcloud(*tpus, "create", "one", ZONE, *KIND)
    listed = gcloud(*tpus, "list", ZONE, "--format=value(name,state)")
    gcloud(*tpus, "stop", "one", ZONE)
    stopped = local_api.node("one")["state"]
    gcloud(*tpus, "start", "one", ZONE)
    started = local_api.node("one")["state"]
    gcloud(*tpus, "delete", "one", ZONE)

    assert listed.split() == ["one", "READY"]
    assert (stopped, started) == ("STOPPED", "READY")
    assert local_api.get("locations/-/nodes") == {}


def test_gcloud_alpha_attaches_and_detaches_a_disk(gcloud, local_api):
    Compute(local_api).done("POST", "zones/us-central2-b/disks", {"name": "data"})
    tpus = ("alpha", *TPUS, "tpu-vm")

    local_api.ready("one")
    gcloud(*tpus, "attach-disk", "one", ZONE, "--disk=data", "--mode=read-only")
    attached = local_api.node("one")["dataDisks"]
    gcloud(*tpus, "detach-disk", "one", ZONE, "--disk=data")
    detached = local_api.node("one")

    source = "projects/local-fleet/zones/us-central2-b/disks/data"
    assert attached == [{"sourceDisk": source, "mode": "READ_ONLY"}]
    assert "dataDisks" not in detached


def test_gcloud_creates_and_deletes_queued_resources(gcloud, local_api):
    queue = (*TPUS, "queued-resources")

    gcloud(*queue, "create", "qr", "--node-id=one", *QUEUED_KIND, "--spot", ZONE)
    local_api.state_is("one", "READY")
    listed = gcloud(*queue, "list", ZONE, "--format=value(name.basename())")
    parent = gcloud(*queue, "describe", "qr", ZONE, "--format=value(tpu.nodeSpec[0].nodeId)")
    gcloud(*queue, "delete", "qr", ZONE, "--force")

    assert (listed.strip(), parent.strip()) == ("qr", "one")
    assert local_api.get("locations/-/queuedResources") == {}


def test_gcloud_alpha_creates_queued_resources_with_flex_start(gcloud, local_api):
    queue = ("alpha", *TPUS, "queued-resources")
    tier = ("--provisioning-model=flex-start", "--max-run-duration=1h")

    gcloud(*queue, "create", "qr", "--node-id=one", *QUEUED_KIND, *tier, ZONE)

    path = "/v2alpha1/projects/local-fleet/locations/us-central2-b/queuedResources/qr"
    expected = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"}}
    assert local_api.get(path).items() >= expected.items()


def test_gcloud_creates_enlarges_labels_lists_and_deletes_a_disk(gcloud):
    disks = ("compute", "disks")

    gcloud(*disks, "create", "own", ZONE, "--size=10GB", "--type=pd-balanced", "--labels=team=a")
    gcloud(*disks, "resize", "own", ZONE, "--size=20GB")
    gcloud(*disks, "add-labels", "own", ZONE, "--labels=cost=1")
    listed = gcloud(*disks, "list", "--filter=name=own", "--format=value(sizeGb,type,labels)")
    gcloud(*disks, "delete", "own", ZONE)

    assert listed.split() == ["20", "pd-balanced", "cost=1;team=a"]


def test_gcloud_creates_updates_lists_and_deletes_a_firewall_rule(gcloud):
    rules = ("compute", "firewall-rules")

    gcloud(*rules, "create", "mine", "--allow=tcp:22", "--source-ranges=203.0.113.0/24")
    gcloud(*rules, "update", "mine", "--source-ranges=203.0.113.7/32")
    listed = gcloud(*rules, "list", "--filter=name=mine", "--format=value(sourceRanges.list())")
    gcloud(*rules, "delete", "mine")

    assert listed.split() == ["203.0.113.7/32"]


def test_gcloud_adds_to_the_projects_metadata(gcloud, local_api):
    gcloud("compute", "project-info", "add-metadata", "--metadata=a=b")

    metadata = Compute(local_api).get("")["commonInstanceMetadata"]
    assert metadata["items"] == [{"key": "a", "value": "b"}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["networks", "list"], "default"),
        (["networks", "subnets", "list", "--filter=region=us-central2"], "default"),
        (["machine-types", "list", "--zones=us-central2-b"], "ct6e-standard-4t"),
        (["tpus", "locations", "list"], "us-central2-b"),
        (["tpus", "accelerator-types", "list", ZONE], "v4-8"),
        (["tpus", "versions", "list", ZONE], "tpu-ubuntu2204-base"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_gcloud_lists_what_a_zone_offers(gcloud, arguments, expected):
    listed = gcloud("compute", *arguments, "--format=value(name.basename())")

    assert expected in listed.split()


def test_gcloud_lists_and_describes_tpus_through_v1(gcloud, local_api):
    local_api.ready("one")

    listed = gcloud(*TPUS, "list", ZONE, "--format=value(name.basename(),state)")
    described = gcloud(*TPUS, "describe", "one", ZONE, "--format=value(acceleratorType)")

    assert listed.split() == ["one", "READY"]
    assert described.strip() == "v4-16"


def test_gcloud_commands_of_maxtexts_scripts_succeed(gcloud, local_api, tmp_path):
    """MaxText's scripts call gcloud with these arguments."""
    script = tmp_path / "startup_script.txt"
    script.write_text("#!/bin/bash\necho here\n")
    location = ("--project=local-fleet", ZONE)
    queue = ("alpha", *TPUS, "queued-resources")
    kind = ("--accelerator-type=v4-16", "--runtime-version=tpu-ubuntu2204-base")
    slices = ("--node-prefix=job", "--node-count=2", "--autocheckpoint-enabled")

    gcloud(
        *(*queue, "create", "job", *kind, *location, *slices),
        f"--metadata-from-file=startup-script={script}",
    )
    for name in ("job-0", "job-1"):
        local_api.state_is(name, "READY")
    listed = gcloud(
        *("alpha", *TPUS, "tpu-vm", "list", "--filter=name~job"),
        *("--format=csv(name,accelerator_type)", *location),
    )
    workers = gcloud(
        *(*TPUS, "tpu-vm", "describe", "job-0", "--flatten=networkEndpoints[]"),
        *("--format=csv[no-heading](networkEndpoints.ipAddress)", *location),
    )
    specs = list(local_api.machines.specs.values())
    gcloud(*queue, "delete", "job", "--force", "--quiet", *location)

    assert sorted(listed.split()[1:]) == ["job-0,v4-16", "job-1,v4-16"]
    assert len(workers.split()) == 2
    assert [spec.metadata["startup-script"] for spec in specs] == [script.read_text()] * 4
    assert local_api.get("locations/-/nodes") == {}


def test_gcloud_shows_the_clouds_error_message(gcloud):
    with pytest.raises(AssertionError, match=r'accelerator "v9-8" was not found in the zone'):
        gcloud(*TPUS, "tpu-vm", "create", "one", ZONE, "--accelerator-type=v9-8", KIND[1])


@pytest.mark.machines
def test_gcloud_runs_commands_and_copies_files_on_all_workers(tmp_path):
    with own_cloud("gcloud") as local_cloud:
        endpoint = settings.read(local_cloud).endpoint
        gcloud = gcloud_for(tmp_path, endpoint, local_cloud.directory / "service-account.json")
        tpus = (*TPUS, "tpu-vm")
        gcloud(*tpus, "create", "pod", ZONE, "--accelerator-type=v4-16", KIND[1])
        (tmp_path / "file").write_text("from here\n")

        file = str(tmp_path / "file")
        gcloud(*tpus, "scp", file, "me@pod:there", ZONE, "--worker=all")
        output = gcloud(*tpus, "ssh", "me@pod", ZONE, "--worker=all", "--command=whoami; cat there")

    assert sorted(output.splitlines()) == ["from here"] * 2 + ["me"] * 2
