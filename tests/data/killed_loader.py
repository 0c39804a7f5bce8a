"""A training that is interrupted from the keyboard, goes on, and is then killed; run as a script in a process group of
its own.
"""

from __future__ import annotations

import os
import signal

from tests.data.tiny_buckets import settings_of, tiny_buckets

from hyperfuse.data.sampler import PairBatches, batch_loader


def train() -> None:
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    loader = batch_loader(PairBatches(tiny_buckets(), settings_of(), seed=0, batch_size=2), 0, 10_000, workers=1)
    for number, _ in enumerate(loader):
        if number == 5:
            os.killpg(0, signal.SIGINT)
        if number == 50:
            workers = [worker.pid for worker in loader._iterator._workers]
            print(len(interrupts), *workers, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    train()
