"""torchrun that asks ncclflow before it ends workers.

    python -m ncclflow_torchrun --nproc-per-node 8 train.py        in place of torchrun, with its options

It asks when a worker has failed and others are left, when workers are left at a restart, and when it is ended itself
(SIGTERM, as by `scancel`). Workers get their signal after that: where they save something at a signal, or a SIGKILL
follows, set `NCCLFLOW_DUMP_SECONDS`. A script that starts Python must `exec` it: its process is looked at.

Checked with torch 2.15.0, in torch/distributed: all these call `PContext.close` (elastic/multiprocessing/api.py; the
first in `_poll`, before the agent knows), which calls `_close`; `launch_agent` (launcher/api.py) makes the agent.
"""

import logging

from ncclflow_dump import ask
from torch.distributed import run
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher import api

logger = logging.getLogger("torch.distributed.elastic." + __name__)


class Agent(LocalElasticAgent):
    def _start_workers(self, worker_group):
        workers = super()._start_workers(worker_group)
        context = self._pcontext
        close, asked = getattr(context, "_close", None), []
        if close is None:  # Another version of torch.
            return workers

        def ask_and_close(*args, **kwargs):
            # Once: a signal meanwhile raises here, and comes back.
            if not asked and any(map(runs, workers.values())):
                asked.append(True)
                # One that has failed is named, too: the verdict says whose rank is missing.
                ask(logger, workers.values())
            return close(*args, **kwargs)

        context._close = ask_and_close
        return workers


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


if __name__ == "__main__":
    api.LocalElasticAgent = Agent
    run.main()
