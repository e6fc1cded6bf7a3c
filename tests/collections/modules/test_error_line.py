"""The line of a log that says why a trainer crashed, for output of Python, JAX and others."""

import os
import subprocess
import sys

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.error_line import error_line
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_unit import observe
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import wait_outcome
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import parse_process
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status import process_line
from hypothesis import given
from hypothesis import strategies as st

PLAIN = "def f():\n    raise ValueError('no such layer: 7')\nf()"
FROM = "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('bad config') from e"
DURING = "try:\n    {}['a']\nexcept KeyError:\n    raise RuntimeError('bad config')"
NOTES = "e = ValueError('no such layer: 7')\ne.add_note('a note\\nof two lines')\nraise e"
LINES = "raise ValueError('no such layer: 7\\nthere are 6')"
NO_TEXT = "raise KeyboardInterrupt"
GROUP = (
    "def one():\n    raise ValueError('no such layer: 7')\n"
    "try:\n    one()\nexcept ValueError as e:\n    raise ExceptionGroup('two', [e])"
)
SYNTAX = "exec('x = = 1')"
LATER = "import atexit\natexit.register(print, 'wandb: run finished')\n" + PLAIN
IGNORED = (
    "class Late:\n    def __del__(self):\n        raise OSError('cannot close')\n"
    "late = Late()\n" + PLAIN
)
CAUGHT = "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
FATAL = "import faulthandler, os, signal\nfaulthandler.enable()\nos.kill(os.getpid(), 11)"
THREADS = (
    "import numpy, threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n" + FATAL
)
JAX = (
    "import jax\n@jax.jit\ndef step(x):\n    return x + jax.numpy.ones(3)\nstep(jax.numpy.ones(2))"
)


def written(program: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    return result.stdout.splitlines()


LAYER = "ValueError: no such layer: 7"
PROGRAMS = {
    "plain": (PLAIN, LAYER),
    "raised from": (FROM, "RuntimeError: bad config"),
    "raised during": (DURING, "RuntimeError: bad config"),
    "notes": (NOTES, LAYER),
    "several lines": (LINES, LAYER),
    "no text": (NO_TEXT, "KeyboardInterrupt"),
    "group": (GROUP, LAYER),
    "syntax": (SYNTAX, "SyntaxError: invalid syntax"),
    "output after it": (LATER, LAYER),
    "ignored in __del__": (IGNORED, LAYER),
    "an earlier one": (CAUGHT + PLAIN, LAYER),
    "fatal": (FATAL, "Fatal Python error: Segmentation fault"),
    "fatal with threads and extension modules": (THREADS, "Fatal Python error: Segmentation fault"),
    "exit": ("import sys\nsys.exit('config.yml is missing')", "config.yml is missing"),
}


@pytest.mark.parametrize(("program", "expected"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_line_of_the_exception_is_found_in_the_output_of_python(program, expected):
    assert error_line(written(program)) == expected


@pytest.fixture(scope="module")
def jax_output() -> list[str]:
    return written(JAX)


def test_the_line_of_the_exception_is_found_before_jaxs_note_on_its_frames(jax_output):
    note = "For simplicity, JAX has removed its internal frames"

    assert any(note in line for line in jax_output)
    assert error_line(jax_output).startswith("TypeError: add got incompatible shapes")


@pytest.mark.parametrize("cut", [1, 3])
def test_a_traceback_whose_beginning_is_missing_is_read_too(cut):
    assert error_line(written(PLAIN)[cut:]) == "ValueError: no such layer: 7"


def test_the_prefix_of_torchrun_is_left_out():
    lines = [f"[rank0]: {line}" for line in written(PLAIN)]

    assert error_line([*lines, "[rank0]:W1123 process group was not destroyed"]) == (
        "ValueError: no such layer: 7"
    )


CHECK = "F0120 12:29:23.305308   34355 fusion_emitter.cc:6694] Check failed: IsFusible(user)"
ABORT = "*** SIGABRT received by PID 28601 (TID 34285) on cpu 134 from PID 28601; stack trace: ***"
STACK = [
    "PC: @     0x7f651c696a7c  (unknown)  pthread_kill",
    "    @     0x7f4b2365e441  944  (unknown)",
]
HANDLER = [
    "https://symbolize.stripped_domain/r/?trace=7f47cc096a7c,7f460c65e440&map=",
    "E0531 07:47:31.003927   10044 coredump_hook.cc:470] RAW: Remote crash hook invoked.",
    "E0531 07:47:31.525030   10044 process_state.cc:771] RAW: Raising signal 6",
]
THREAD = ["Thread 0x00007f79 (most recent call first):", '  File "x.py", line 3 in wait']
C_STACK = [
    "Current thread's C stack trace (most recent call first):",
    '  Binary file "python", at _Py_DumpStack+0x42 [0x5b27f7d7147e]',
]
ABORTED = "Fatal Python error: Aborted"
TERMINATED = "terminate called after throwing an exception"
TORCH = "frame #0: c10::Error::Error() + 0x57 (0x7f0e6c38a617 in libc10.so)"


STACKS = {
    "check": ([CHECK, "*** Check failure stack trace: ***", STACK[1].strip()], CHECK),
    "check and signal": ([CHECK, *STACK, *HANDLER, ABORT, *STACK], CHECK),
    "signal": (["step 7/9", HANDLER[0], ABORT, *STACK, *HANDLER], ABORT),
    "torch": ([TERMINATED, TORCH], TERMINATED),
    "prefix": (["[rank0]: failed", "[rank0]:     @     0x7f651c696a7c  raise"], "[rank0]: failed"),
    "threads": (["no step for 9 s", *THREAD, "", *THREAD], "no step for 9 s"),
    "C stack of Python 3.14": ([ABORTED, "", *THREAD, "", *C_STACK], ABORTED),
    "text about a thread": (["no devices", "Thread 0x12 waits"], "Thread 0x12 waits"),
    "nothing else": (STACK, STACK[1].strip()),
    "other text": (["mail me @ 0x7f651c696a7c"], "mail me @ 0x7f651c696a7c"),
}


@pytest.mark.parametrize(("lines", "expected"), STACKS.values(), ids=STACKS)
def test_a_line_of_a_stack_trace_is_not_the_error_if_there_is_a_better_line(lines, expected):
    assert error_line(lines) == expected


def test_an_exception_is_the_error_even_if_native_code_fails_after_it():
    assert error_line([*written(PLAIN), CHECK, *STACK]) == "ValueError: no such layer: 7"


@given(st.lists(st.text(max_size=30) | st.just('  File "x.py", line 3, in f')))
def test_any_log_gives_one_short_line_without_control_characters(lines):
    line = error_line(lines)

    assert len(line) <= 300
    assert line.isprintable() or not any(ord(char) < 32 for char in line)


def test_train_and_watch_show_the_exception_of_a_jax_trainer(paths, jax_output):
    folder = paths.run_dir("mine")
    text = "\n".join(["--- 2026-11-23T06:00:00Z attempt 3", *jax_output]) + "\n"
    (folder / "log").write_text(text)
    (folder / "exit.json").write_text('{"attempt": 3, "code": "exited", "status": "1", "time": 1}')

    observed = observe("mine", paths, lines=20, unit={"ActiveState": "failed"})

    [problem] = wait_outcome({"pod-w0": {"info": observed}})["problems"]
    assert problem.startswith("pod-w0: crashed (exit 1): TypeError: add got incompatible shapes")
    assert process_line(parse_process("pod-w0", observed)) == problem
