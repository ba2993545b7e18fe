"""torchrun itself, by `python -m ncclflow_torchrun`, without torch: its stores are C++.

usage: with_torchrun.py SCRIPT: two workers run the script.
"""

import runpy
import sys

import stand_ins


class Store:
    """What torchrun of one host asks of torch's stores."""

    def __init__(self, *_, **__):
        self.values, self.timeout = {}, None

    def set_timeout(self, timeout):
        pass

    def set(self, key, value):
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key):
        return self.values[key]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values):
            self.set(key, value)

    def multi_get(self, keys):
        return [self.values[key] for key in keys]

    def add(self, key, number):
        self.set(key, str(int(self.values.get(key, b"0")) + number))
        return int(self.values[key])

    def wait(self, keys, *_):
        pass


stand_ins.use("torch")
stores = {"Store": Store, "TCPStore": Store, "PrefixStore": lambda prefix, store: store}
stand_ins.module("torch.distributed", __path__=[str(stand_ins.HOOKS / "torch/distributed")], **stores)
quiet = {"justknobs_check": lambda *_, **__: False, "get_default_numa_options": lambda: None}
stand_ins.module("torch._utils_internal", **quiet)
options = ["--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=static", "--master-port=1", "--node-rank=0"]
sys.argv = ["torchrun", *options, *sys.argv[1:]]
runpy.run_module("ncclflow_torchrun", run_name="__main__")
