"""How the role jax chooses the proof that an environment works: by env_proof or the lock file."""

import pytest

from harness.playbooks import ROOT, flat
from tests.collections.role_templates import run_tasks

LOCKS = ROOT / "requirements"


def test_the_lock_file_determines_the_proof_of_the_environment(tmp_path):
    (tmp_path / "unsorted.lock").write_text("torch-xla==2.9.0\njax==0.7.1\n")
    (tmp_path / "similar.lock").write_text("jax-cuda==1\ntorch==2\n    jax==1\n")
    (tmp_path / "extra.lock").write_text("jax[tpu]==0.7.1\n")
    (tmp_path / "frozen.lock").write_text("torch_xla[tpu,pallas]==2.9.0\n")
    cases = [
        ({"jax_lock": f"{tmp_path}/extra.lock"}, "jax"),
        ({"jax_lock": f"{tmp_path}/frozen.lock"}, "torch_xla"),
        ({"jax_lock": f"{LOCKS}/worker-cpu.lock"}, "jax"),
        ({"jax_lock": f"{LOCKS}/worker-tpu.lock"}, "jax"),
        ({"jax_lock": f"{LOCKS}/worker-torch-xla.lock"}, "torch_xla"),
        ({"jax_lock": f"{LOCKS}/worker-torch-tpu.lock"}, "torch_tpu"),
        ({"jax_lock": f"{LOCKS}/controller.lock"}, "none"),
        ({"jax_lock": f"{tmp_path}/unsorted.lock"}, "torch_xla"),
        ({"jax_lock": f"{tmp_path}/similar.lock"}, "none"),
        ({"jax_lock": f"{LOCKS}/worker-tpu.lock", "env_proof": "none"}, "none"),
        ({"jax_lock": f"{LOCKS}/worker-tpu.lock", "env_proof": "python a.py"}, "python a.py"),
    ]
    tasks = [
        {"ansible.builtin.assert": {"that": f"jax_proof == '{expected}'"}, "vars": variables}
        for variables, expected in cases
    ]

    result = run_tasks(tmp_path, tasks, vars_files=[str(ROOT / "roles/jax/defaults/main.yml")])

    assert result.returncode == 0, flat(result)
    assert f"ok={len(cases)} " in result.stdout


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"env_proof": "torchxla"}, "expected jax, torch_xla, torch_tpu, none, or a command"),
        ({"env_proof": "none", "verify": "slice"}, "only env_proof=jax shows that the workers"),
        ({"env_proof": "python a.py", "verify": "slice"}, "checks each worker alone"),
    ],
)
def test_an_invalid_or_insufficient_proof_is_refused_before_the_installation(
    tmp_path, variables, message
):
    role = {"ansible.builtin.import_role": {"name": str(ROOT / "roles/jax")}}
    lock = {"jax_lock": f"{LOCKS}/worker-cpu.lock"}

    result = run_tasks(tmp_path, [role], vars=variables | lock)

    assert result.returncode == 2
    assert message in flat(result)
    assert "python_env" not in result.stdout
