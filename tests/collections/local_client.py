"""A client of a local cloud's API, and the changes that its server saw."""

import time

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.http import Polling
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi

from tests.localcloud.api.local_api import PROJECT, LocalApi


def cloud_of(local_api: LocalApi) -> TpuApi:
    """Return a client with the cloud's credentials, whose waits take a twentieth of the time."""
    settings = ApiSettings(PROJECT, local_api.endpoint, str(local_api.credentials_file))
    return TpuApi(settings, polling=Polling(lambda seconds: time.sleep(seconds / 20)))


def changes(local_api: LocalApi, kind: str) -> list[str]:
    """Return the requests that change resources of a kind, as the server logged them."""
    lines = [line.split("request ", 1)[-1] for line in local_api.log().splitlines()]
    verbs = ("POST", "PATCH", "DELETE")
    return [line for line in lines if line.startswith(verbs) and f"/{kind}" in line]
