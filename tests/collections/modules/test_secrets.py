"""Secrets that a module is given are in none of its answers."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import check_secrets
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError

from tests.collections.running_modules import run_module

SECRETS = {"HF_TOKEN": "planted-hub-93be26d4", "WANDB_API_KEY": "planted-wandb-5f1c0a77"}
TOKEN = "planted-token-5f1c0a77"
HIDDEN = (*SECRETS.values(), TOKEN)


def test_an_error_masks_the_secrets_of_its_arguments():
    told = run_module("run", run="/".join(HIDDEN), state="stopped", secrets=SECRETS, token=TOKEN)

    assert told["failed"]
    assert "********/********/********" in told["msg"]
    assert not [secret for secret in HIDDEN if secret in told["process_output"]]


def test_each_long_line_of_a_secret_is_masked():
    key = {"KEY": f"{SECRETS['HF_TOKEN']}\nshort\n  {SECRETS['WANDB_API_KEY']}"}

    told = run_module("run", run="/".join(SECRETS.values()), state="stopped", secrets=key)

    assert told["failed"]
    assert not [line for line in SECRETS.values() if line in told["process_output"]]


def test_the_error_about_a_rejected_argument_shows_no_secret():
    told = run_module("run", run="pod", state="never", secrets=SECRETS, token=TOKEN)

    assert told["failed"]
    assert "value of state must be one of" in told["msg"]
    assert not [secret for secret in HIDDEN if secret in told["process_output"]]


def test_a_short_secret_which_would_mask_other_text_is_rejected():
    check_secrets({**SECRETS, "EMPTY": ""})

    with pytest.raises(RunError, match="A, B has fewer than 8 characters"):
        check_secrets({**SECRETS, "A": "on", "B": 1})
