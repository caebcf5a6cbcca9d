"""Install the wheel as strangers will: every Python that is here, every extra alone.

    python -m tools.dist_check [--python python3.12]… [--extra cli]… [WHEEL]

Each environment is new and gets nothing but the wheel and what pip resolves for it. The check uses
what the extra enables, sees every other extra asked for by name, runs `limpet --help` and, for the
core and the command line, the demo. It needs the package index and takes many minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("wheel", nargs="?", type=Path)
    asked.add_argument("--python", action="append", default=[])
    asked.add_argument("--extra", action="append", default=[])
    args = asked.parse_args()
    wheel = args.wheel or max((ROOT / "dist").glob("*.whl"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = args.extra or ["", *project["optional-dependencies"]]
    pythons = {each: found for each in args.python or PYTHONS if (found := interpreter(each))}
    if absent := [each for each in args.python or PYTHONS if each not in pythons]:
        print("not here:", *absent)
    results = [check(python, wheel, extra) for python in pythons.values() for extra in extras]
    print(f"{sum(results)} of {len(results)} environments work")
    return 0 if pythons and all(results) else 1


def interpreter(name: str) -> str | None:
    """Return the first interpreter of that name that starts; a shim may have none behind it.

    Those that pyenv has installed are found too, whichever of them is chosen now.
    """
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob("*/bin")
    for folder in [*os.get_exec_path(), *sorted(kept, reverse=True)]:
        found = Path(folder, name)
        if found.is_file() and not subprocess.run([found, "-V"], capture_output=True).returncode:
            return str(found)
    return None


def check(python: str, wheel: Path, extra: str) -> bool:
    """Make an environment, install into it, try it."""
    with tempfile.TemporaryDirectory(prefix="limpet-dist-") as folder:
        problem = _problem(python, f"{wheel.absolute()}{named(extra)}", extra, Path(folder))
    print(f"{Path(python).name} limpet{named(extra)}: {problem or 'works'}", flush=True)
    return not problem


def named(extra: str) -> str:
    return f"[{extra}]" if extra else ""


def _problem(python: str, requirement: str, extra: str, folder: Path) -> str:
    """Return what does not work, or nothing."""
    home = folder / "venv"
    inside = home / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    whole = project["optional-dependencies"]["all"][0].partition("[")[2].rstrip("]").split(",")
    extras = {"all": whole, "parquet": ["analytics", "parquet"], "server": ["client", "server"]}
    brought = [each for each in extras.get(extra, [extra]) if each and each != "cli"]
    steps = {
        "venv": [python, "-m", "venv", str(home)],
        "pip": [str(inside), "-m", "pip", "install", "--quiet", "--no-input", requirement],
        "extras": [str(inside), str(ROOT / "tools" / "installed.py"), *brought],
        "help": [str(home / "bin" / "limpet"), "--help"],
        "demo": [str(inside), str(ROOT / "examples" / "demo.py")],
    }
    for step, command in steps.items():
        if step == "demo" and extra not in ("", "cli", "all"):
            continue
        if step == "demo" and not extra:  # the demo draws with rich
            subprocess.run([*steps["pip"][:-1], "rich"], check=True)
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=1_800
        )
        if step == "help" and not (home / "bin" / "typer").exists():
            if done.returncode != 4 or "limpet[cli]" not in done.stderr:
                return f"limpet --help does not name limpet[cli]: {done.stderr}"
        elif done.returncode:
            return f"{step} failed: {(done.stdout + done.stderr).strip()[-600:]}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
