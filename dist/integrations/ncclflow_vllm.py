"""vLLM asks ncclflow before it gives up a model that does not answer.

A plugin of vLLM: `pip install` a copy of this folder where vLLM is installed (`VLLM_PLUGINS`, if it is set, must name
`ncclflow`). Or, with the folder in `PYTHONPATH`: `vllm serve --distributed-executor-backend ncclflow_vllm.Executor`,
which vLLM does not take with --nnodes or --pipeline-parallel-size.

When a call of the workers takes longer than `VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS` (300), the engine fails and ends the
workers. It asks before that.

Checked with vLLM 0.33.0, in vllm/v1/executor: `MultiprocExecutor.collective_rpc` (multiproc_executor.py) raises
TimeoutError, with `non_block` in the future that it returns; `Executor.get_class` (abstract.py) imports the class.
"""

from concurrent.futures import Future
import logging

from ncclflow_dump import ask
from vllm.v1.executor import multiproc_executor

logger = logging.getLogger("vllm." + __name__)


class Executor(multiproc_executor.MultiprocExecutor):
    def collective_rpc(self, *args, **kwargs):
        try:
            answer = super().collective_rpc(*args, **kwargs)
        except TimeoutError:
            self._ask()
            raise
        if isinstance(answer, Future):
            # Called before the engine learns of it.
            answer.add_done_callback(self._ask_if_late)
        return answer

    def _ask_if_late(self, answer):
        if not answer.cancelled() and isinstance(answer.exception(), TimeoutError):
            self._ask()

    def _ask(self):
        try:
            pids = [worker.proc.pid for worker in self.workers]
            # Engines that wait for each other's workers: all of the host, once.
            is_one = self.parallel_config.data_parallel_size == 1
        except Exception:  # Another version of vLLM.
            pids, is_one = None, False
        ask(logger, pids if is_one else None)


def register():
    """What vLLM calls in each of its processes, by the entry point in pyproject.toml."""
    multiproc_executor.MultiprocExecutor = Executor
