"""What is written down is true: examples in docstrings run, the README shows the example, the stubs name what is there."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mori
from mori import _mori

ROOT = Path(__file__).parent.parent
MODULES = ["mori", "mori.aio", "mori.cpp", "mori.engine", "mori.io"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert module.__doc__
    result = doctest.testmod(module)
    assert result.failed == 0 and (result.attempted > 0 or name == "mori.aio")


def test_the_example_runs():
    script = ROOT / "examples" / "two_processes.py"
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "every byte is right" in ended.stdout, ended.stderr


def test_the_readme_shows_the_example():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "two_processes.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```" in readme


@pytest.mark.parametrize("name", MODULES)
def test_everything_exported_is_documented(name):
    module = importlib.import_module(name)
    for exported in module.__all__:
        value = getattr(module, exported)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, f"{name}.{exported}"
    assert {exported for exported in module.__all__ if hasattr(module, exported)} == set(module.__all__)


def stub_names(body):
    """The names that a list of definitions gives, without special ones."""
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def test_the_stubs_name_what_is_there():
    stub = Path(mori.__file__).with_name("_mori.pyi")
    assert stub.exists() and stub.with_name("py.typed").exists()
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    assert stub_names(tree.body) == {name for name in dir(_mori) if not name.startswith("_")}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            there = {name for name in dir(getattr(_mori, node.name)) if not name.startswith("_")}
            assert stub_names(node.body) == there, node.name


def test_errors_are_exceptions_with_kind_code_and_cause():
    import pickle

    error = mori.MoriError("words", "peer lost", mori.cpp.StatusCode.ERR_PEER_LOST, ("errno", 104))
    assert str(error) == "peer lost: words" and isinstance(error, RuntimeError)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.message, copy.kind, copy.code, copy.cause) == (error.message, error.kind, error.code, error.cause)
    assert issubclass(mori.InvalidArgumentError, ValueError) and issubclass(mori.InvalidArgumentError, mori.MoriError)
