"""Fetches the files of other projects that dist/integrations hooks into: pure Python, out of their wheels.

usage: fetch_hooks.py FOLDER

The wheels have some 600 MB, of which these files are 0.8: they are taken out by HTTP ranges. Files that are not those of
these versions are refused. What they import beside is stood in for (stand_ins.py).
"""

import hashlib
import io
import pathlib
import sys
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "exports"))
from fetch_torch_analyser import WHEEL as TORCH, Remote

PACKAGES = "https://files.pythonhosted.org/packages/"
# A wheel, beginnings of the names of its files, and the digest of those.
WHEELS = [
    (
        TORCH,
        ["torch/distributed/elastic/", "torch/distributed/launcher/", "torch/distributed/run.py", "torch/numa/"]
        + ["torch/distributed/argparse_util.py"],
        "90cb84b3c468d3c42f33da987a5ebe613fd0cec437e8f897c98f2e358278950b",
    ),
    (
        PACKAGES + "8b/a8/92e278093df40fde4c4bfd6572704bb8f398d6a2280d8c82cb5efaf12047/"
        "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        ["vllm/v1/executor/abstract.py", "vllm/v1/executor/multiproc_executor.py", "vllm/plugins/__init__.py"],
        "6cfea2753f7a269e3bb1f5bc5c2a29da83ace7b66af28ffcab0c145960128988",
    ),
    (
        PACKAGES + "57/dd/0206d00b2ea5b163bbdd216e91cc4f23ea90fde8620db0a6272d4236b68e/"
        "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl",
        ["sglang/srt/plugins/", "sglang/srt/environ.py", "sglang/srt/utils/watchdog.py"]
        + ["sglang/srt/utils/cudacore_pyspy_dump_utils.py"],
        "4813ecdd40e372eb2923349edb0c14f7635d6b618dad4bf5c76d0f08907c6cf7",
    ),
    (
        PACKAGES + "cc/36/99ab211a4eb44b1254e6ca8c41d0c9fab23c0bc818f20d3360ccb734fe7a/"
        "ray-2.60.0-cp311-cp311-manylinux2014_x86_64.whl",
        [
            "ray/train/v2/_internal/callbacks/env_callback.py",
            "ray/train/v2/_internal/execution/callback.py",
            "ray/train/v2/_internal/execution/worker_group/execution_group.py",
            "ray/train/v2/_internal/execution/worker_group/poll.py",
            "ray/train/v2/_internal/execution/worker_group/worker_group.py",
            "ray/train/v2/api/callback.py",
            "ray/util/annotations.py",
        ],
        "e52ee2dda7d2efe44914f678497da6f1352cce68686c5f6b875c9f65f0dfd8c0",
    ),
]


def main():
    folder = pathlib.Path(sys.argv[1])
    for url, beginnings, expected in WHEELS:
        wheel = zipfile.ZipFile(io.BufferedReader(Remote(url), 1 << 18))
        names = [name for name in wheel.namelist() if name.startswith(tuple(beginnings)) and name.endswith(".py")]
        # By their places: what lies beside each other comes with one range.
        found = {name: wheel.read(name) for name in sorted(names, key=lambda name: wheel.getinfo(name).header_offset)}
        digest = hashlib.sha256()
        for name in sorted(found):
            digest.update(b"%s %d\n" % (name.encode(), len(found[name])) + found[name])
        if digest.hexdigest() != expected:
            sys.exit("of %s the files have the checksum %s" % (url.rpartition("/")[2], digest.hexdigest()))
        for name, data in found.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
