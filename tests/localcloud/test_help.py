"""The help of ``python -m localcloud``: each verb and each fault has valid examples."""

import re
import shlex

import pytest

from localcloud import cli, demo, faults_cli

VERBS = [*([verb] for verb in cli.VERBS), *(["fault", kind] for kind in faults_cli.EXAMPLES)]


def help_of(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], *VERBS], ids=" ".join)
def test_the_examples_of_a_verb_are_accepted(arguments, capsys):
    text = help_of(*arguments, capsys=capsys)
    examples = re.findall(r"^  python -m localcloud (.+)$", text, re.MULTILINE)
    assert examples
    for example in examples:
        assert cli.parser().parse_args(shlex.split(example)).verb in cli.VERBS


def test_each_fault_is_documented(capsys):
    listed = re.findall(r"^    ([a-z-]+)(?:  |$)", help_of("fault", capsys=capsys), re.MULTILINE)
    assert listed == list(faults_cli.EXAMPLES)


def test_the_help_of_the_demo_starts_nothing(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["demo", "--help"])
    monkeypatch.setattr(demo, "run", lambda *_: pytest.fail("it started the demo"))
    with pytest.raises(SystemExit):
        demo.main()
    assert "make demo" in capsys.readouterr().out
