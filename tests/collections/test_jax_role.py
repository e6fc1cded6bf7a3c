"""How the role jax chooses the proof that an environment works: by env_proof or the lock file."""

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

    assert f"ok={len(cases)} " in result.stdout


def test_an_invalid_or_insufficient_proof_is_refused_before_the_installation(tmp_path):
    cases = [
        ({"env_proof": "torchxla"}, "expected jax, torch_xla, torch_tpu, none, or a command"),
        ({"env_proof": "none", "verify": "slice"}, "only env_proof=jax shows that the workers"),
        (
            {"env_proof": "python a.py", "verify": "slice"},
            "(env_proof is python a.py, which checks",
        ),
    ]
    role = {"ansible.builtin.include_role": {"name": str(ROOT / "roles/jax")}}
    lock = {"jax_lock": f"{LOCKS}/worker-cpu.lock"}
    refused = [{"ansible.builtin.debug": {"msg": "refused"}}]
    tasks = [
        {"block": [role], "rescue": refused, "vars": variables | lock} for variables, _ in cases
    ]

    result = run_tasks(tmp_path, tasks)

    assert result.stdout.count("msg: refused") == len(cases)
    for _, message in cases:
        assert message in flat(result)
    assert "python_env" not in result.stdout
