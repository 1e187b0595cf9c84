"""Install PyTorch into the running environment: a CPU build where no NVIDIA GPU is seen.

On Linux the plain ``torch`` wheel depends on several gigabytes of CUDA packages and cannot be
imported without them, so leaving those out is no way to a CPU build: the build itself must differ.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NO_CPU_BUILD = """\
No CPU build of PyTorch {version} for Python {python} on {machine} could be found, and no NVIDIA GPU
is seen. Nothing else was installed. Do one of these, then run make again:

  - name the package index of PyTorch's CPU builds (the selector on PyTorch's web page shows it):
      PIP_EXTRA_INDEX_URL=<index of the CPU builds> make install
  - point to a folder that holds the CPU wheel:
      PIP_FIND_LINKS=<folder> make install
  - take another version of it, or another Python:
      make install TORCH_VERSION=<version>
      make clean install PYTHONS=python3.12
  - accept the CUDA packages (several gigabytes):
      make install TORCH=gpu
"""


def sees_nvidia_gpu() -> bool:
    """Tell whether the driver lists a GPU; the tool alone may be installed without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU" in listing.stdout


def installed_version() -> str | None:
    """Return the version of the torch that imports here, None where none does."""
    code = "import torch; print(torch.__version__)"
    # -P: the working directory is not searched.
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def fits(found: str, build: str, version: str) -> bool:
    """Whether an installed torch is of a version and a build; ``auto`` is any build."""
    number, _, label = found.partition("+")
    is_cpu_build = label == "cpu"
    # Elsewhere builds have no label.
    is_other_build = platform.system() == "Linux" and build != "auto" and is_cpu_build != (build == "cpu")
    return number == version and not is_other_build


def pip_install(*arguments: str, show_errors: bool = True) -> bool:
    """Run pip for this environment; its errors are shown unless a failure is expected."""
    command = [sys.executable, "-m", "pip", "install", "-qq", *arguments]
    errors = None if show_errors else subprocess.DEVNULL
    return subprocess.run(command, stderr=errors, check=False).returncode == 0


def uv_install(*arguments: str) -> bool:
    """Run uv for this environment: its own uv, that of the machine, else one for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="reason-spec-uv-") as folder:
        beside = Path(sys.executable).with_name("uv")
        uv = str(beside) if beside.is_file() else shutil.which("uv")
        if uv is None:
            if not pip_install("--target", folder, "uv", show_errors=False):
                return False
            uv = str(Path(folder, "bin", "uv"))
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, *arguments]
        environment = {"UV_HTTP_RETRIES": "1", **os.environ}
        return (
            subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False).returncode == 0
        )


def install_gpu_build(version: str) -> bool:
    """Install the plain build, also in the place of a CPU build, whose number pip would find to be right."""
    return pip_install("--force-reinstall", f"torch=={version}")


def install_cpu_build(version: str) -> bool:
    """Install a build without CUDA from wherever pip is set up to look, else from where uv knows it.

    uv also goes first where pip has a folder to look in: it unpacks a wheel once for all environments.
    """
    if platform.system() != "Linux":
        return pip_install(f"torch=={version}")
    # The local version label keeps both from taking the CUDA build of the same number.
    build = f"torch=={version}+cpu"
    places = os.environ.get("PIP_FIND_LINKS", "").split()
    folders = [f"--find-links={place}" for place in places]
    return (
        (bool(folders) and uv_install(*folders, build))
        or pip_install(build, show_errors=False)
        or uv_install("--torch-backend", "cpu", "--reinstall-package", "torch", f"torch=={version}")
    )


def explain_failure(build: str, version: str, installed: bool) -> str:
    """Print the fault and the remedy, below pip's own errors."""
    if installed:
        return f"PyTorch {version} was installed but cannot be imported: try `make clean install`."
    if build == "cpu" and platform.system() == "Linux":
        python = platform.python_version()
        return NO_CPU_BUILD.format(version=version, python=python, machine=platform.machine())
    return f"PyTorch {version} could not be installed."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument(
        "--replace", action="store_true", help="replace an installed torch of another version or build"
    )
    parser.add_argument("--version", default="2.13.0", help="version of torch (default: %(default)s)")
    options = parser.parse_args()

    build = options.build
    if build == "auto":
        build = "gpu" if sees_nvidia_gpu() else "cpu"
    found = installed_version()
    if found is not None and options.replace and not fits(found, options.build, options.version):
        found = None
    if found is None:
        print(f"Installing PyTorch {options.version} ({build} build)", flush=True)
        done = install_gpu_build(options.version) if build == "gpu" else install_cpu_build(options.version)
        found = installed_version() if done else None
        if found is None:
            print(explain_failure(build, options.version, installed=done), file=sys.stderr)
            return 1
    print(f"PyTorch {found}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
