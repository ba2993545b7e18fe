"""SGLang's own watchdog and plugins, in a process that makes no step; its parent is the server."""

import logging
import os
import signal
import subprocess
import sys
import types

import stand_ins


class Process:
    """Of psutil."""

    pid = os.getpid()

    def parent(self):
        return types.SimpleNamespace(send_signal=lambda number: os.kill(os.getppid(), number))


def scheduler():
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    stand_ins.use("sglang")
    stand_ins.module("psutil", Process=Process, Error=Exception)
    stand_ins.installed()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.utils.watchdog import WatchdogRaw

    WatchdogRaw("Scheduler", get_counter=lambda: 7, is_active=lambda: True, watchdog_timeout=0.4)
    signal.pause()


def server():
    def end(*_):
        stand_ins.note("the server ends")
        process.kill()

    signal.signal(signal.SIGQUIT, end)
    process = subprocess.Popen([sys.executable, __file__, "scheduler"])
    process.wait()


scheduler() if sys.argv[1:] else server()
