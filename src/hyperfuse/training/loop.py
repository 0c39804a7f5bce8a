"""The training loop: one loop for a laptop, one GPU, many GPUs and many machines (Lightning Fabric).

Every batch is a pure function of (seed, draw), so a run can be broken off anywhere and continued to the same weights,
bit for bit on a CPU, and several processes see together what one would see alone.

How many processes a training has, and where they run: one on a laptop, many on many machines (Lightning Fabric).

Ctrl-C and a scheduler's SIGTERM end a training between two steps, with a checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from hyperfuse.data.batches import batch_loader, process_slots
from hyperfuse.errors import TrainingError
from hyperfuse.models.baselines.catalogue import AnyNetwork, build_any_network
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.progress import progress
from hyperfuse.training.checkpoint import (
    Checkpoint,
    optimiser_state,
    read_checkpoint,
    restore_optimiser,
    write_checkpoint,
)
from hyperfuse.training.experiment import Experiment, learning_rate, total_steps
from hyperfuse.training.gain_fitting import fit_gains
from hyperfuse.training.objective import BaseMaker, NetworkOnBatch, TrainingBatch, run_network, training_loss
from hyperfuse.training.run_folder import BEST, CHECKPOINT, WEIGHTS, RunFolder
from hyperfuse.training.scene_sets import GatheredScenes
from hyperfuse.training.validation import Score, validate


def expected_processes(experiment: Experiment) -> int:
    """How many there will be, as far as it is known before they are started."""
    started = os.environ.get("WORLD_SIZE")
    return int(started) if started else (experiment.loop.devices or 1) * experiment.loop.nodes


def make_fabric(experiment: Experiment) -> Any:
    from lightning_fabric import Fabric

    loop = experiment.loop
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun, which knows better how many processes there are
        devices, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    else:
        devices, nodes = loop.devices or 1, loop.nodes
    # Apple's accelerator has no double precision, which the components are found in: it is left to those who ask for it
    # by code.
    accelerator = ("cuda" if torch.cuda.is_available() else "cpu") if loop.accelerator == "auto" else loop.accelerator
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
    )


@contextmanager
def interruption_noticed() -> Iterator[Callable[[], bool]]:
    """Within the block, SIGINT and SIGTERM only set a flag, which the yielded function reads."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread can hear signals
        return
    names = (signal.SIGINT, signal.SIGTERM)

    def note(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, earlier[signal.Signals(number)])  # who asks a second time does not want to wait

    earlier = {number: signal.getsignal(number) for number in names}
    for number in names:
        signal.signal(number, note)
    try:
        yield asked.is_set
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@dataclass
class Progress:
    """What a checkpoint keeps beside tensors."""

    step: int = 0
    best_psnr_db: float | None = None
    loss_sum: float = 0.0
    loss_count: int = 0


@dataclass
class StepTimer:
    """Where the time went since the last line of the log."""

    waiting: float = 0.0
    steps: int = 0
    started: float = field(default_factory=time.perf_counter)

    def summary(self) -> dict[str, float]:
        passed = max(time.perf_counter() - self.started, 1e-9)
        return {"steps_per_second": round(self.steps / passed, 4), "waiting_for_data": round(self.waiting / passed, 4)}


class Trainer:
    """One run of one experiment in one folder."""

    def __init__(self, experiment: Experiment, scenes: GatheredScenes, folder: RunFolder, network: AnyNetwork) -> None:
        self.experiment, self.scenes, self.folder = experiment, scenes, folder
        self.fabric = make_fabric(experiment)
        if os.environ.get("LT_CLI_USED") != "1":  # `fabric run` has started the processes already
            self.fabric.launch()
        process_slots(
            experiment.loop.batch_size, 0, self.fabric.world_size
        )  # refuses a batch that cannot be shared out
        settings = experiment.optimiser
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        optimiser = torch.optim.AdamW(
            parameters, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self.plain_network = network
        module = NetworkOnBatch(network, bfloat16=experiment.loop.precision == "bfloat16")
        self.module, self.optimiser = self.fabric.setup(module, optimiser)
        self.averaged = (
            {name: tensor.detach().clone() for name, tensor in network.state_dict().items()} if self._averages else {}
        )
        self.progress = Progress()
        self.steps = total_steps(experiment, scenes.patches)

    def train(self, *, resume: bool) -> Progress:
        """To the end, or to an interruption, after which `progress.step` is less than `steps`."""
        if resume:
            self._restore(read_checkpoint(self.folder.path / CHECKPOINT))
        log = self.folder.open_log(self.progress.step if resume else None) if self.fabric.is_global_zero else None
        try:
            with interruption_noticed() as interrupted:
                with progress("Training", total=self.steps) as advance:
                    advance(self.progress.step)
                    self._run(log, interrupted, advance)
                done = resume and (self.folder.path / WEIGHTS).exists()
                if self.progress.step == self.steps and self.fabric.is_global_zero and not done:
                    self._finish(log, interrupted)
        finally:
            if log is not None:
                log.close()
        return self.progress

    def told_by_first_process(self, answer: bool) -> bool:
        return bool(self.fabric.broadcast(answer)) if self.fabric.world_size > 1 else answer

    def _run(self, log: Any, interrupted: Any, advance: Any) -> None:
        loop, timer = self.experiment.loop, StepTimer()
        batches = self._batches()
        while self.progress.step < self.steps:
            loss, stop = self._step(batches, timer, interrupted())
            state = self.progress
            state.step += 1
            state.loss_sum += loss
            state.loss_count += 1
            advance(1)
            last = state.step == self.steps
            if state.step % loop.log_every == 0 or last:
                if log is not None:
                    rate = learning_rate(self.experiment, state.step - 1, self.steps)
                    log.event(
                        "train",
                        state.step,
                        loss=state.loss_sum / state.loss_count,
                        learning_rate=rate,
                        **timer.summary(),
                    )
                state.loss_sum, state.loss_count, timer = 0.0, 0, StepTimer()
            if state.step % self.experiment.validation.every == 0 or last:
                self._validate(log)
                timer = StepTimer()
            if state.step % loop.checkpoint_every == 0 or last or stop:
                self._write_checkpoint()
            if stop:
                return

    def _step(self, batches: Iterator[TrainingBatch], timer: StepTimer, interrupted: bool) -> tuple[float, bool]:
        """One step of the optimiser; the mean loss over all processes, and whether any of them was asked to stop."""
        loop, optimiser = self.experiment.loop, self.optimiser
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(self.experiment, self.progress.step, self.steps)
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for part in range(loop.accumulate):
            before = time.perf_counter()
            batch = _next(batches)
            timer.waiting += time.perf_counter() - before
            with self.fabric.no_backward_sync(self.module, enabled=part < loop.accumulate - 1):
                loss = training_loss(run_network(self.module, batch), batch.reference, loop) / loop.accumulate
                self.fabric.backward(loss)
            total += float(loss.detach())
        # A rank that sees NaN must not leave the others waiting, nor one that was interrupted: all learn of it
        # together.
        signals = torch.tensor([total, float(interrupted)], dtype=torch.float64, device=self.fabric.device)
        mean_loss, stop = (float(each) for each in self._mean_over_processes(signals))
        if not math.isfinite(mean_loss):
            raise self._diverged("loss", mean_loss)
        norm = self.fabric.clip_gradients(
            self.module, optimiser, max_norm=self.experiment.optimiser.clip_norm or math.inf, error_if_nonfinite=False
        )
        if norm is None or not bool(torch.isfinite(norm)):
            raise self._diverged("gradient", math.nan if norm is None else float(norm))
        optimiser.step()
        self._average()
        timer.steps += 1
        return mean_loss, stop > 0

    def _batches(self) -> Iterator[TrainingBatch]:
        """From the draw that comes next. Each process takes its share of the slots of every batch."""
        loop, fabric = self.experiment.loop, self.fabric
        loader = batch_loader(
            self.scenes.buckets,
            self.experiment.simulation,
            seed=self.experiment.seed,
            start=self.progress.step * loop.accumulate,
            end=self.steps * loop.accumulate,
            batch_size=loop.batch_size,
            slots=process_slots(loop.batch_size, fabric.global_rank, fabric.world_size),
            workers=loop.workers,
            finish=BaseMaker(None if isinstance(self.plain_network, PriorNetwork) else self.experiment.network.base),
            pin_memory=fabric.device.type == "cuda",
        )
        for batch in loader:
            assert isinstance(batch, TrainingBatch)
            yield batch.to(fabric.device, non_blocking=True)

    def _validate(self, log: Any) -> None:
        """On the first process; the others wait for it."""
        if self.fabric.is_global_zero and self.scenes.cases:
            network = self._network_with_averaged_weights()
            mean = self._score(network, log, "validation")
            if self.progress.best_psnr_db is None or mean > self.progress.best_psnr_db:
                self.progress.best_psnr_db = mean
                self._save_weights(BEST, network)
        self.fabric.barrier()

    @torch.no_grad()
    def _score(self, network: AnyNetwork, log: Any, event: str) -> float:
        """The mean PSNR on the test scenes, which the log is told of."""
        cases, scores = self.scenes.cases, list[Score]()
        for case in cases:
            score, fused = validate(network, case)
            scores.append(score)
            if case is cases[0]:
                log.picture("fused", self.folder.write_sample(self.progress.step, case, fused), self.progress.step)
        mean = sum(score.psnr_db for score in scores) / len(scores)
        base = sum(case.base_psnr_db for case in cases) / len(scores)
        scored = list(zip(cases, scores, strict=True))
        log.event(
            event,
            self.progress.step,
            mean_psnr_db=mean,
            mean_gain_db=mean - base,
            psnr_db={case.name: score.psnr_db for case, score in scored},
            spectral_angle_degrees={case.name: score.spectral_angle_degrees for case, score in scored},
            split=self.scenes.label,
            overlapping=self.scenes.overlapping,
        )
        return mean

    def _network_with_averaged_weights(self) -> AnyNetwork:
        network = build_any_network(self.experiment.network).to(self.fabric.device)
        network.load_state_dict(self.averaged or self.plain_network.state_dict())
        return network.eval()

    def _finish(self, log: Any, interrupted: Callable[[], bool]) -> None:
        network = self._network_with_averaged_weights().cpu()
        if isinstance(network, PriorNetwork) and self.experiment.gains is not None:
            first_draw = self.steps * self.experiment.loop.accumulate
            if not fit_gains(network, self.experiment, self.scenes.buckets, first_draw, interrupted):
                return
            if self.scenes.cases:
                self._score(network, log, "fitted")
        self._save_weights(WEIGHTS, network)

    def _save_weights(self, name: str, network: AnyNetwork) -> None:
        network.cpu().save_pretrained(
            self.folder.path / name, self.folder.provenance(self.experiment, self.scenes, self.progress.step)
        )

    def _write_checkpoint(self) -> None:
        if self.fabric.is_global_zero:
            kept = asdict(self.progress) | {"steps": self.steps, "scenes": self.scenes.summary()}
            checkpoint = Checkpoint(
                self.plain_network.state_dict(), self.averaged, optimiser_state(self.optimiser), kept
            )
            write_checkpoint(self.folder.path / CHECKPOINT, checkpoint)
        self.fabric.barrier()

    def _restore(self, checkpoint: Checkpoint) -> None:
        kept = dict(checkpoint.progress)
        same = json.loads(json.dumps([self.steps, self.scenes.summary()]))
        if [kept.pop("steps", None), kept.pop("scenes", None)] != same:
            raise TrainingError(
                f"{self.folder.path} was begun with other scenes or another length",
                "the same scenes to continue",
                "bring back the scenes it was begun with, or choose another --output",
            )
        self.plain_network.load_state_dict(checkpoint.network)
        self.averaged = {name: tensor.to(self.fabric.device) for name, tensor in checkpoint.averaged.items()}
        restore_optimiser(self.optimiser, checkpoint.optimiser)
        self.progress = Progress(**kept)

    @property
    def _averages(self) -> bool:
        return self.experiment.loop.ema > 0

    @torch.no_grad()
    def _average(self) -> None:
        if self._averages:
            # Young averages follow quickly, or the random start would stay in them for long.
            step = self.progress.step
            decay = min(self.experiment.loop.ema, (1 + step) / (10 + step))
            for name, tensor in self.plain_network.state_dict().items():
                self.averaged[name].lerp_(tensor, 1 - decay)

    def _mean_over_processes(self, values: Tensor) -> Tensor:
        mean: Tensor = self.fabric.all_reduce(values, reduce_op="mean") if self.fabric.world_size > 1 else values
        return mean

    def _diverged(self, what: str, value: float) -> TrainingError:
        kept = (self.folder.path / CHECKPOINT).exists()
        return TrainingError(
            f"the {what} became {value} at step {self.progress.step + 1}",
            f"a finite {what}",
            "lower optimiser.learning_rate or set optimiser.clip_norm; "
            + ("the last good checkpoint is kept" if kept else "no checkpoint had been written yet"),
        )


def _next(batches: Iterator[TrainingBatch]) -> TrainingBatch:
    try:
        return next(batches)
    except (RuntimeError, ConnectionError, EOFError) as error:
        raise TrainingError(
            f"a loader's worker ended ({error})",
            "workers that live",
            "free memory or set loop.workers=0, and go on with --resume",
        ) from error
