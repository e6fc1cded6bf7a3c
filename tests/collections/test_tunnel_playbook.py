"""tunnel.yml, as far as it goes without a worker."""

import json

from harness.playbooks import flat, play


def test_an_unknown_app_is_an_error_that_lists_the_known_ones(environment, tmp_path):
    inventory = tmp_path / "hosts.json"
    worker = {"demo-w0": {"ansible_connection": "local"}}
    inventory.write_text(json.dumps({"tpu": {"hosts": worker}}))
    done = play(environment, "playbooks/tunnel.yml", "-e", "open=zoo", inventory=str(inventory))
    assert done.returncode != 0
    assert "open=zoo: expected jupyter or tensorboard" in flat(done)
    assert "changed=0" in flat(done)
