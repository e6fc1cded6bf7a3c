"""Secrets in a module's arguments never appear in its output."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import (
    check_no_secrets,
    check_secrets,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError

from tests.collections.running_modules import run_module

SECRETS = {"HF_TOKEN": "planted-hub-93be26d4", "WANDB_API_KEY": "planted-wandb-5f1c0a77"}
TOKEN = "planted-token-5f1c0a77"
HIDDEN = (*SECRETS.values(), TOKEN)


def test_an_error_masks_each_long_line_of_the_secrets_in_its_arguments():
    hub, wandb = SECRETS.values()
    secrets = {"HF_TOKEN": hub, "KEY": f"short\n  {wandb}"}

    result = run_module("run", run="/".join(HIDDEN), state="stopped", secrets=secrets, token=TOKEN)

    assert result["failed"]
    assert "********/********/********" in result["msg"]
    assert not [secret for secret in HIDDEN if secret in result["process_output"]]


def test_the_error_about_a_rejected_argument_shows_no_secret():
    result = run_module("run", run="pod", state="never", secrets=SECRETS, token=TOKEN)

    assert result["failed"]
    assert "value of state must be one of" in result["msg"]
    assert not [secret for secret in HIDDEN if secret in result["process_output"]]


def test_a_short_secret_which_would_mask_other_text_is_rejected():
    check_secrets({**SECRETS, "EMPTY": ""})

    with pytest.raises(RunError, match="A, B has fewer than 8 characters"):
        check_secrets({**SECRETS, "A": "on", "B": 1})


@pytest.mark.parametrize(
    "value",
    ["12345678", 12345678, "-1.2345678", ".12345678", "12345678\n", "key\n12345678"],
)
def test_a_secret_which_would_mask_parts_of_numbers_is_rejected_without_its_value(value):
    with pytest.raises(
        RunError, match=r"^secrets: PIN is a number, or has a line that is one"
    ) as error:
        check_secrets({**SECRETS, "PIN": value})

    assert str(value).split()[-1] not in str(error.value)


@pytest.mark.parametrize(
    "value", ["1234567a", "1234-5678", "1234 5678", "10.0.0.123", "0123456789abcdef", "1" * 21]
)
def test_a_secret_that_no_number_contains_is_accepted(value):
    check_secrets({"PIN": value})


@pytest.mark.parametrize(
    "name",
    [
        *(*SECRETS, "AWS_SECRET_ACCESS_KEY", "KAGGLE_KEY", "PGPASSWORD", "client_secret"),
        *("X_APIKEY", "DB_PASS", "GH_PAT", "NPM_AUTH", "AWS_ACCESS_KEY_ID", "TOKEN_OF_MINE"),
    ],
)
def test_a_secret_in_plain_text_is_rejected_without_its_value(name):
    with pytest.raises(RunError, match=rf"env: .*\({name}\).* ansible-vault create ") as error:
        check_no_secrets({"TZ": "UTC", name: TOKEN}, "env")

    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "HF_TOKEN_PATH", "MONKEY", "SECRETARY"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SSH_KEY_FILE", "PATH", "PATTERN", "BYPASS", "AUTHOR"),
    ],
)
def test_a_name_that_only_resembles_a_secret_is_accepted(name):
    check_no_secrets({name: TOKEN}, "env")


@pytest.mark.parametrize("value", ["<eos>", "12345678"], ids=["short", "a number"])
def test_a_value_that_secrets_rejects_is_accepted_in_plain_text(value):
    """The error about such a value in ``secrets`` tells users to set the variable in ``env``."""
    with pytest.raises(RunError):
        check_secrets({"EOS_TOKEN": value})

    check_no_secrets({"EOS_TOKEN": value}, "env")


def test_a_value_that_is_no_secret_is_accepted_if_its_name_is_listed():
    variables = {"EOS_TOKEN": "<|endoftext|>", "SORT_KEY": "timestamp"}
    with pytest.raises(RunError, match=r"EOS_TOKEN, SORT_KEY.* TPUFLEET_NOT_SECRET in env"):
        check_no_secrets(variables, "env")

    check_no_secrets({**variables, "TPUFLEET_NOT_SECRET": "EOS_TOKEN,SORT_KEY"}, "env")
    with pytest.raises(RunError, match=r"\(SORT_KEY\)"):
        check_no_secrets({**variables, "TPUFLEET_NOT_SECRET": "EOS_TOKEN"}, "env")
