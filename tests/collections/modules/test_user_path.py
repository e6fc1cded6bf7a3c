"""Paths that users give, and the variables by which uv and pip find wheels in directories."""

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.user_path import (
    find_links,
    user_path,
)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A directory with ``here``, the current directory, and ``project``; each has one file."""
    for name in ("here", "project"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.in").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "found"),
    [("here.in", "here/here.in"), ("project.in", "project/project.in"), ("x.in", "here/x.in")],
    ids=["here", "in the project", "nowhere"],
)
def test_a_relative_path_is_found_here_or_in_the_project(folders, path, found):
    assert user_path(path, str(folders / "project")) == f"{folders}/{found}"


def test_an_empty_path_stays_empty(folders):
    assert user_path("", str(folders)) == ""


def test_wheels_are_added_to_the_directories_that_uv_and_pip_search_already(monkeypatch, folders):
    monkeypatch.setenv("UV_FIND_LINKS", "/of-the-shell")
    variables = {"UV_FIND_LINKS": "/a,/b", "PIP_FIND_LINKS": "/a /b"}

    on_worker = find_links(variables, "/wheels", "/copied")
    assert on_worker == {"UV_FIND_LINKS": "/a,/b,/copied", "PIP_FIND_LINKS": "/a /b /wheels"}
    assert find_links({}, "/wheels")["UV_FIND_LINKS"] == "/of-the-shell,/wheels"
    assert find_links({}, "/wheels", "/copied")["UV_FIND_LINKS"] == "/copied"


def test_without_wheels_no_variable_changes(monkeypatch):
    monkeypatch.setenv("UV_FIND_LINKS", "/of-the-shell")

    assert find_links({"A": "1"}, "") == {"A": "1"}
