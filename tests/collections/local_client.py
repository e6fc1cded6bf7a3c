"""A client of a local cloud's API whose waits take a twentieth of the time."""

import time

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.http import Polling
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi

from tests.localcloud.api.local_api import PROJECT, LocalApi


def cloud_of(local_api: LocalApi) -> TpuApi:
    """Return a client with the cloud's credentials."""
    settings = ApiSettings(PROJECT, local_api.endpoint, str(local_api.credentials_file))
    return TpuApi(settings, polling=Polling(lambda seconds: time.sleep(seconds / 20)))
