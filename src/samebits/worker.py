"""The process in which an experiment runs: `python -m samebits.worker`, driven by runner.py.

Requests come as JSON lines on standard input; answers leave as JSON lines on a private copy of standard
output, so that whatever a library prints (it goes to standard error) cannot break the protocol:

    {"do": "warm", "framework": "torch"}                        no answer
    {"do": "run", "experiment": …, "settings": …, "repeats": 20, "budget": 60, "until_different": false}
                                                                → {"wait": sentence} if preparing takes seconds,
                                                                  {"prepared": …}, {"observation": …} …, {"done": why}
    {"do": "call", "function": "samebits.kernels:judge", "arguments": {…}} → {"result": …}
    {"do": "stop"}                                              ends the run after its current observation

Anything that goes wrong is answered by {"error": sentence, "detail": traceback}. The process ends when its
standard input does, that is, when the kernel that started it is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import IO, Any

from samebits.experiment import BadSetting


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    # A loader's forked workers close sys.stdin, and would wait for ever for a lock that the listening thread holds.
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _die_with_lifeline()
    requests: queue.Queue[dict] = queue.Queue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(asked, requests, stop), daemon=True).start()

    def send(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")

    handlers = {"warm": _warm, "run": _run, "call": _call}
    while True:
        request = requests.get()
        try:
            handlers[request["do"]](request, send, stop)
        except Exception as error:
            send(
                error=_sentence(error), detail="" if isinstance(error, BadSetting) else traceback.format_exc()
            )


def _warm(request: dict, send, stop) -> None:
    """Import what the experiments will need; creates no CUDA context. A fault shows in the run that follows."""
    with contextlib.suppress(ImportError):
        if request["framework"]:
            importlib.import_module(request["framework"])


def _run(request: dict, send, stop: threading.Event) -> None:
    from samebits import experiments

    experiment = experiments.find(request["experiment"])
    if sentence := experiment.waiting():
        send(wait=sentence)
    prepared = experiment.prepare(request["settings"])
    source = dataclasses.asdict(prepared.source())
    send(prepared={"seen": dict(prepared.seen), "source": source})

    end = time.monotonic() + request["budget"]
    fingerprints = set(request.get("known", []))
    done = 0
    reason = "repeats"
    while reason == "repeats":
        wanted = request["repeats"] - done if done < request["repeats"] else 1
        before = done
        for observation in experiment.observe(prepared.state, wanted):
            send(observation=dataclasses.asdict(observation))
            fingerprints.add(observation.fingerprint)
            done += 1
            if stop.is_set():
                reason = "cancelled"
            elif time.monotonic() > end:
                reason = "budget"
            if reason != "repeats":
                break
        if done == before:
            raise RuntimeError(f"{request['experiment']} gave no observation.")
        if reason == "repeats" and done >= request["repeats"]:
            if not request["until_different"]:
                break
            if len(fingerprints) > 1:
                reason = "different"
    stop.clear()
    send(done=reason)


def _call(request: dict, send, stop) -> None:
    module, function = request["function"].split(":")
    send(result=getattr(importlib.import_module(module), function)(**request["arguments"]))


def _listen(asked: IO[str], requests: queue.Queue, stop: threading.Event) -> None:
    for line in asked:
        request = json.loads(line)
        if request["do"] == "stop":
            stop.set()
        else:
            stop.clear()
            requests.put(request)
    _end_group()


def _end_group() -> None:
    """End this process and whatever it started (loader processes, compilers)."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _die_with_lifeline() -> None:
    """Let the operating system end this process group when the kernel's end of the lifeline closes.

    The thread that reads standard input would notice too, but not while compiled code holds Python's global
    lock. A pipe in asynchronous mode signals SIGIO when its other end closes, and SIGIO's default is to end
    the process: no Python has to run.
    """
    lifeline = os.environ.pop("SAMEBITS_LIFELINE", "")
    if not lifeline or os.name != "posix":
        return
    import fcntl

    descriptor = int(lifeline)
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(
        descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK
    )
    try:
        gone = os.read(descriptor, 1) == b""  # the kernel ended before the signal was armed
    except BlockingIOError:
        gone = False
    if gone:
        _end_group()


def _sentence(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    if isinstance(error, BadSetting):
        return text
    if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
        return f"There is no TensorFlow in {sys.executable}; ./course tensorflow makes an environment that has it."
    if (
        isinstance(error, MemoryError)
        or "out of memory" in text.lower()
        or "can't allocate memory" in text.lower()
    ):
        return f"There was not enough memory for this run ({text or 'no details'}). Choose smaller sizes and run again."
    return f"The run stopped with {type(error).__name__}: {text or 'no message'}"


if __name__ == "__main__":
    main()
