"""Cases of bad input to the cloud: project, zone, type, credentials and unreachable API."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet

from harness.playbooks import environment_of, play
from harness.scripted_api import Reply, error
from localcloud import cloud as local_cloud
from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud
from tests.collections.error_lines.bad import (
    Bad,
    case,
    failed,
    nowhere,
    printed_error,
    refused,
    refused_tpu,
)
from tests.collections.running_modules import run_module
from tests.collections.test_bad_input import refusing
from tests.collections.test_fleet import DEMO


@case("mine")
def wrong_project(bad: Bad) -> str:
    message = "Permission denied on resource project mine"
    bad.scripted.handler = refusing(403, message, may_list_zones=False, zone_exists=False)
    return failed(run_module("tpu_node", api=bad.scripted.api, **DEMO))


@case("YOUR-PROJECT")
def project_not_filled_in(bad: Bad) -> str:
    return failed(run_module("tpu_node", api={"project": "YOUR-PROJECT"}, **DEMO))


refused_tpu("wrong zone", zone="us-east9-z")
refused_tpu("wrong type", accelerator_type="v4-17")
refused_tpu("wrong runtime", runtime_version="ubuntu")
refused("region instead of a zone", "us-central2", parse_fleet, [DEMO | {"zone": "us-central2"}])
refused("wrong name", "'Demo'", parse_fleet, [DEMO | {"name": "Demo"}])
refused(
    "unknown key of the fleet", "acelerator_type", parse_fleet, [DEMO | {"acelerator_type": "v4-8"}]
)


@case("credentials")
def expired_credentials(bad: Bad) -> str:
    bad.scripted.handler = lambda asked: error(401, "expired")
    return failed(run_module("tpu_node", api=bad.scripted.api, **DEMO))


@case("none.json")
def missing_credentials(bad: Bad) -> str:
    api = bad.scripted.api | {"credentials_file": str(bad.folder / "none.json")}
    return failed(run_module("tpu_node", api=api, **DEMO))


@case("no answer from")
def api_that_is_down(bad: Bad) -> str:
    environment = environment_of(bad.cloud)
    (bad.cloud.state / "endpoint").write_text(nowhere())
    output = play(environment, "playbooks/plan.yml").stderr
    return "\n".join(line for line in output.splitlines() if line.strip())


@case("us-east1-d")
def zone_that_does_not_answer(bad: Bad) -> str:
    bad.scripted.script = [Reply({"nodes": [], "unreachable": ["us-east1-d"]})]
    return printed_error(TpuApi(ApiSettings.of(bad.scripted.api)).list_nodes)


@case("root")
def local_cloud_without_root(bad: Bad) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 65534)
        with pytest.raises(CloudError) as caught:
            local_cloud.up(LocalCloud.of("nobody-s"), report=print)
    return str(caught.value)
