"""Takes the headers of a torch release out of its wheel, without the libraries of some 800 MB beside them.

Arguments: the release, and a folder. pip finds the wheel, with the user's own configuration, and reads parts of it by ranges (its
`fast-deps`, pip 20.2 and later).
"""

import json
import os
import subprocess
import sys
import zipfile

try:
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._internal.network.session import PipSession
except ImportError as error:
    sys.exit(f"this pip cannot read parts of wheels ({error}): pip 20.2 to 25 can")

OTHERS = ("torch/version.py", "torch/share/cmake/Torch/TorchConfig.cmake")


def address_of(release):
    """Where the wheel for x86-64 is."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--target", "nowhere"]
    for platform in ("manylinux1", "manylinux2014", "manylinux_2_28"):
        command += ["--platform", f"{platform}_x86_64"]
    found = subprocess.run([*command, f"torch=={release}"], capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"pip does not find torch {release}: {found.stderr.strip()[-400:]}")
    return json.loads(found.stdout)["install"][0]["download_info"]["url"]


def main():
    release, folder = sys.argv[1:]
    remote = LazyZipOverHTTP(address_of(release), PipSession())
    wheel = zipfile.ZipFile(remote)
    headers = [entry for entry in wheel.infolist() if entry.filename.startswith("torch/include/") and not entry.is_dir()]
    # They lie side by side: one range instead of ten thousand.
    first = min(entry.header_offset for entry in headers)
    last = max(entry.header_offset + entry.compress_size for entry in headers)
    remote._download(first, last + 4096)
    for name in [entry.filename for entry in headers] + list(OTHERS):
        wheel.extract(name, folder)


if __name__ == "__main__":
    main()
