from localcloud.machines.nspawn import login_keys


def test_each_line_of_ssh_keys_names_a_user_and_a_key():
    keys = login_keys({"ssh-keys": "ada:ssh-ed25519 AAAA a@b\nbob:ssh-rsa BBBB\nada:ssh-rsa CCCC"})
    assert keys == {"ada": ["ssh-ed25519 AAAA a@b", "ssh-rsa CCCC"], "bob": ["ssh-rsa BBBB"]}


def test_a_name_that_is_no_unix_user_is_passed_over():
    assert login_keys({"ssh-keys": "../root:ssh-rsa A\n-x:ssh-rsa B\nno colon here\nada:"}) == {}


def test_metadata_without_keys_gives_no_users():
    assert login_keys({}) == {}
