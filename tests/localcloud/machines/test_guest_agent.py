"""The guest agent: accounts and keys follow the metadata, and a person's own keys stay."""

import getpass
import http.server
import json
import threading

import pytest

from localcloud.machines.guest import agent, install


def told(node: str = "", project: str = "", **attributes: str) -> dict:
    """Return metadata as the server tells them."""
    return {
        "instance": {"attributes": {"ssh-keys": node, **attributes}},
        "project": {"attributes": {"ssh-keys": project}},
    }


def test_each_line_of_ssh_keys_names_a_user_and_a_key():
    keys = agent.login_keys("ada:ssh-ed25519 AAAA a@b\nbob:ssh-rsa BBBB\nada:ssh-rsa CCCC")
    assert keys == {"ada": ["ssh-ed25519 AAAA a@b", "ssh-rsa CCCC"], "bob": ["ssh-rsa BBBB"]}


def test_a_name_that_is_no_unix_user_is_passed_over():
    assert agent.login_keys("../root:ssh-rsa A\n-x:ssh-rsa B\nno colon here\nada:") == {}


def test_metadata_without_keys_gives_no_users():
    assert agent.wanted_keys({"instance": {"attributes": {}}, "project": {"attributes": {}}}) == {}


def test_keys_of_the_project_count_unless_the_node_blocks_them():
    both = told("ada:a", "ada:p\nbob:b")
    assert agent.wanted_keys(both) == {"ada": ["a", "p"], "bob": ["b"]}
    blocked = told("ada:a", "bob:b", **{"block-project-ssh-keys": "TRUE"})
    assert agent.wanted_keys(blocked) == {"ada": ["a"]}


def test_a_person_s_own_keys_stay_and_the_metadata_s_are_replaced():
    before = ["ssh-rsa own", agent.MARK, "ssh-rsa old", "# mine", agent.MARK, "ssh-rsa older"]
    after = agent.merged(before, ["ssh-rsa new"])
    assert after == ["ssh-rsa own", "# mine", agent.MARK, "ssh-rsa new"]
    assert agent.merged(after, ["ssh-rsa new"]) == after


@pytest.fixture
def home(tmp_path):
    """A directory of homes with that of whoever runs this."""
    (tmp_path / getpass.getuser()).mkdir()
    return tmp_path


def test_a_user_s_keys_are_written_once_and_taken_away_with_the_metadata_s(home):
    me = getpass.getuser()
    file = home / me / ".ssh/authorized_keys"

    assert agent.apply({me: ["ssh-rsa A"]}, home) == [me]
    assert file.read_text() == f"{agent.MARK}\nssh-rsa A\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert agent.apply({me: ["ssh-rsa A"]}, home) == []
    assert agent.apply({}, home) == [me]
    assert file.read_text() == ""


def test_a_link_in_the_user_s_directory_leads_the_agent_nowhere(home, tmp_path):
    me = getpass.getuser()
    (home / me / ".ssh").mkdir()
    target = tmp_path / "target"
    target.write_text("theirs\n")
    (home / me / ".ssh/.authorized_keys.partial").symlink_to(target)

    agent.apply({me: ["ssh-rsa A"]}, home)

    assert target.read_text() == "theirs\n"


@pytest.fixture
def asked():
    """A server that answers what is set and keeps what it was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            content = json.dumps(told("ada:a")).encode()
            self.send_response(server.code)
            self.send_header("ETag", "e1")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    asked = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.code = 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, asked
    server.shutdown()
    server.server_close()


def test_the_agent_waits_for_metadata_other_than_those_it_knows(asked):
    server, requests = asked
    place = f"127.0.0.1:{server.server_port}"

    metadata, etag = agent.next_metadata("e0", place)

    assert agent.wanted_keys(metadata) == {"ada": ["a"]}
    assert etag == "e1"
    [(path, flavor)] = requests
    assert flavor == "Google"
    assert "wait_for_change=true" in path
    assert "last_etag=e0" in path


def test_a_refusal_is_an_error_and_no_answer(asked):
    server, _ = asked
    server.code = 403
    with pytest.raises(agent.http.client.HTTPException, match="403"):
        agent.next_metadata("0", f"127.0.0.1:{server.server_port}")


def test_every_file_of_the_guest_s_part_is_installed_and_its_units_start_at_boot(tmp_path):
    install.install(tmp_path)
    install.install(tmp_path)

    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    for unit in wants.iterdir():
        text = (tmp_path / str(unit.readlink())[1:]).read_text()
        for line in text.splitlines():
            if "tpufleet-guest" in line:
                program = next(
                    word for word in line.split() if word.endswith(("agent.py", "script"))
                )
                program = program.partition("=")[2] or program
                assert (tmp_path / program[1:]).stat().st_mode & 0o111
    assert len(list(wants.iterdir())) == 3
