"""Builds the host part of NCCL by some compiler, as a shared library that is read and never run.

    build.py SOURCE CUDA OUT COMPILER OPTIONS...

SOURCE: a checkout of NCCL. CUDA: a folder in which the wheels nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12 and
nvidia-cuda-cccl-cu12 are unpacked (their headers). OUT: a folder, which gets `libnccl.so.2`. What the device's part
defines stays undefined.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# A program of its own, and a shim for a static CUDA runtime.
LEFT_OUT = {"client.cc", "enhcompat.cc"}


def version(source: Path) -> dict[str, str]:
    """The version that the checkout says."""
    return dict(re.findall(r"NCCL_(MAJOR|MINOR|PATCH)\s*:?=\s*(\d+)", (source / "makefiles/version.mk").read_text()))


def nccl_h(source: Path, numbers: dict[str, str]) -> str:
    """`nccl.h`, made as NCCL's Makefile does."""
    text = (source / "src/nccl.h.in").read_text()
    whole = f"{int(numbers['MAJOR'])}{int(numbers['MINOR']):02}{int(numbers['PATCH']):02}"
    values = {"Major": numbers["MAJOR"], "Minor": numbers["MINOR"], "Patch": numbers["PATCH"], "Suffix": "", "Version": whole}
    for name, value in values.items():
        text = text.replace("${nccl:%s}" % name, value)
    return text


def sources(folder: Path) -> list[Path]:
    """The files of the host's part."""
    found = (path.relative_to(folder) for path in folder.rglob("*.cc"))
    return sorted(path for path in found if path.parts[0] not in ("device", "include") and path.name not in LEFT_OUT)


def main() -> None:
    source, cuda, out = (Path(word).resolve() for word in sys.argv[1:4])
    compiler, options = sys.argv[4], sys.argv[5:]
    numbers, folder = version(source), source / "src"
    (out / "include").mkdir(parents=True, exist_ok=True)
    (out / "include/nccl.h").write_text(nccl_h(source, numbers))
    standard = "c++14" if int(numbers["MINOR"]) < 28 else "c++17"
    headers = [f"-I{cuda}/nvidia/{part}/include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")]
    headers += [f"-I{path}" for path in (folder, out / "include", folder / "include", folder / "include/plugin")]
    # As NCCL's makefiles/common.mk has them.
    flags = ["-DCUDA_MAJOR=12", "-DCUDA_MINOR=8", "-fPIC", "-fvisibility=hidden", "-w", "-DPROFAPI", f"-std={standard}"]
    flags += ["-DNCCL_NET_MAX_PLUGINS=16", *headers, *options]

    def compiled(path: Path) -> Path:
        made = out / ("_".join(path.parts) + ".o")
        subprocess.run([compiler, *flags, "-c", folder / path, "-o", made], check=True)
        return made

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compiled, sources(folder)))
    linked = [option for option in options if option.startswith(("-f", "-g", "-O", "-W"))]
    library = out / "libnccl.so.2"
    subprocess.run(
        [compiler, "-shared", "-fPIC", *linked, "-Wl,-soname,libnccl.so.2", "-o", library, *objects, "-lpthread", "-ldl"],
        check=True,
    )
    print(library)


if __name__ == "__main__":
    main()
