"""gcloud on a local cloud, for benchmarks that compare the speed of playbooks with gcloud's."""

import os
import shutil
import subprocess
from pathlib import Path

from localcloud.local_cloud import LocalCloud

ZONE = "us-central2-b"
TRIES = 8


def environment(home: Path, endpoint: str) -> dict[str, str]:
    """Return environment variables with which gcloud uses the local cloud at ``endpoint``.

    ``home`` is the directory for gcloud's files.
    """
    return {
        **os.environ,
        "HOME": str(home),
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": "local-fleet",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{endpoint}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{endpoint}/compute/v1/",
    }


class Gcloud:
    """gcloud for the workers of one TPU of a local cloud."""

    def __init__(self, cloud: str, tpu: str, home: Path, proxy: str) -> None:
        """Authenticate, and make gcloud copy its ssh key now, so that no measurement includes this.

        ``cloud`` is the local cloud's name, ``home`` a new directory for gcloud's files, ``proxy``
        the ssh ProxyCommand of delayed connections.
        """
        local_cloud = LocalCloud.of(cloud)
        endpoint = (local_cloud.directory / "endpoint").read_text(encoding="ascii").strip()
        self._tpu, self._config = tpu, home / "ssh_config"
        home.mkdir()
        self._config.write_text(f"Host *\n  ProxyCommand {proxy}\n", encoding="utf-8")
        self._environment = environment(home, endpoint)
        key = local_cloud.directory / "service-account.json"
        self._run("auth", "activate-service-account", f"--key-file={key}")
        print("gcloud copies its ssh key to the workers; this can take minutes", flush=True)
        for attempt in range(TRIES):
            try:
                self.on_all("true")
                break
            except subprocess.CalledProcessError as error:
                if attempt == TRIES - 1:
                    raise SystemExit(f"gcloud ssh: {error.stderr[-2000:]}") from None

    @staticmethod
    def is_installed() -> bool:
        """Return whether gcloud is installed."""
        return shutil.which("gcloud") is not None

    def on_all(self, command: str, delayed: bool = False) -> None:
        """Run a command on all workers of the TPU; with ``delayed``, ssh goes via ``proxy``."""
        delay_options = [f"--ssh-flag=-F{self._config}"] if delayed else []
        ssh = ("compute", "tpus", "tpu-vm", "ssh", f"bench@{self._tpu}", f"--zone={ZONE}")
        self._run(*ssh, "--worker=all", f"--command={command}", *delay_options)

    def _run(self, *arguments: str) -> None:
        subprocess.run(
            ["gcloud", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
