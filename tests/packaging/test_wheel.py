"""The wheel, built and installed bare into an empty environment, on every Python of this machine."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN = "{}.{}".format(*sys.version_info[:2])

USE = """
import sys
before = set(sys.modules)
import holdfast
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
print("from", holdfast.__file__)
print("asyncio", "asyncio" in loaded)
print("others", sorted(loaded - {"holdfast"} - sys.stdlib_module_names))
with holdfast.connect("sqlite://" + sys.argv[1]) as locks:
    for _ in range(2):
        with locks.lock("x") as lease:
            print("token", lease.token)
print("asyncio", "asyncio" in sys.modules)
"""

USE_ASYNCIO = """
import asyncio, sys
import holdfast
async def main():
    async with holdfast.aio.connect("sqlite://" + sys.argv[1]) as locks:
        async with locks.lock("x") as lease:
            print("token", lease.token)
asyncio.run(main())
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the Python and make settings of this session; return its output, or fail and show it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE", "MFLAGS"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=inherited,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    """The executables of the Python versions that this machine has, by version."""
    lines = run("make", "--silent", "find-pythons", cwd=ROOT).splitlines()
    return dict(line.split(" ", 1) for line in lines) | {OWN: sys.executable}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_package_and_nothing_else(wheel):
    package = ROOT / "src" / "holdfast"
    expected = {
        f"holdfast/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert names == expected
    assert "holdfast/py.typed" in names
    assert [name for name in names if name.startswith("holdfast/stores/sqlite/scripts/") and name.endswith(".sql")]
    # What overwrites the code of another process stays with the tests: users get the proxy alone.
    faults = {name for name in names if name.startswith("holdfast/testing/faults/")}
    assert faults == {"holdfast/testing/faults/__init__.py", "holdfast/testing/faults/proxy.py"}
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert required == []


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted({OWN, "3.11", "3.12", "3.13", "3.14"}))
def test_wheel_works_alone(wheel, pythons, version, tmp_path):
    if version not in pythons:
        pytest.skip(f"Python {version} is not on this machine")
    env = tmp_path / "env"
    used = env / "bin" / "python"
    # Our own pip installs into it: one of its own would take longer than everything else here.
    run(pythons[version], "-m", "venv", "--without-pip", env, cwd=tmp_path)
    run(sys.executable, "-m", "pip", "--python", used, "install", "-q", "--no-index", "--no-deps", wheel, cwd=tmp_path)

    database = tmp_path / "l.db"
    lines = [line.split(" ", 1) for line in run(used, "-W", "error", "-c", USE, database, cwd=tmp_path).splitlines()]
    assert lines[0][0] == "from"
    assert Path(lines[0][1]).is_relative_to(env)
    assert lines[1:3] == [["asyncio", "False"], ["others", "[]"]]
    assert [name for name, _ in lines[3:5]] == ["token", "token"]
    first, second = (int(value) for _, value in lines[3:5])
    assert 0 < first < second < 2**53
    assert lines[5] == ["asyncio", "False"]

    _, third = run(used, "-W", "error", "-c", USE_ASYNCIO, database, cwd=tmp_path).split()
    assert int(third) > second
