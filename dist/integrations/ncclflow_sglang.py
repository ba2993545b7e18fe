"""SGLang asks ncclflow before its watchdog ends the server.

A plugin of SGLang: `pip install` a copy of this folder where SGLang is installed (`SGLANG_PLUGINS`, if it is set, must
name `ncclflow`).

A scheduler that has made no step for `--watchdog-timeout` seconds (300) writes its Python stacks to the log and ends
the server (SIGQUIT). It asks before that. So does each process with `--soft-watchdog-timeout`, which ends nothing.

Checked with SGLang 0.5.23: `WatchdogRaw._watchdog_once` (sglang/srt/utils/watchdog.py) calls `pyspy_dump_schedulers`,
waits for 5 seconds and sends the signal; `load_plugins` (srt/plugins/__init__.py) runs in each of its processes.
"""

import logging

from ncclflow_dump import ask

logger = logging.getLogger(__name__)

# What the watchdog calls first. The server calls it before a crash, too.
HOOKED = "sglang.srt.utils.watchdog.pyspy_dump_schedulers"


def before_stacks(*_, **__):
    # Each rank of the host has a watchdog: those that ask at one time have one answer, of all ranks.
    ask(logger)


def register():
    """What SGLang calls, by the entry point in pyproject.toml."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HOOKED, before_stacks, HookType.BEFORE)
