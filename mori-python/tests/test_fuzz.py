"""No call ends the process, whatever it is given: every method with arguments of every kind, in random order.

The calls run in a process of their own, so that one that dies is seen; it prints the call before it makes it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 20000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_wrong_arguments_never_end_the_process(seed):
    script = str(Path(__file__).parent / "fuzz.py")
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", script, str(seed), str(ROUNDS)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stdout.startswith("made ")
