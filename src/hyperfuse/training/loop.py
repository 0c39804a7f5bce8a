"""The training loop, the same for one process, several GPUs and several machines (Lightning Fabric).

Every batch is a pure function of (seed, draw), so a run can be interrupted anywhere and resumed to the same weights,
bit for bit on a CPU, and several processes together draw what one would draw alone.
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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import PairBatches, batch_loader, process_slots
from hyperfuse.errors import TrainingError
from hyperfuse.models.catalogue import AnyNetwork, build_network
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import SSA
from hyperfuse.models.weights import BICUBIC
from hyperfuse.progress import Advance, progress
from hyperfuse.training.experiment import Experiment
from hyperfuse.training.gain_fitting import fit_gains
from hyperfuse.training.objective import NetworkOnBatch, add_base, training_loss
from hyperfuse.training.run_folder import BEST, WEIGHTS, Checkpoint, RunFolder, RunLog, read_log
from hyperfuse.training.scene_sets import GatheredScenes, Score, validate

# Share of the newest loss in the smoothed one that is shown while training.
NEWEST_LOSS = 0.05


def expected_processes(experiment: Experiment) -> int:
    """Return the number of processes, as far as it is known before they are started."""
    started = os.environ.get("WORLD_SIZE")
    return int(started) if started else (experiment.loop.devices or 1) * experiment.loop.nodes


def make_fabric(experiment: Experiment) -> Any:
    """Set up Lightning Fabric for the devices of an experiment, or of torchrun."""
    from lightning_fabric import Fabric

    loop = experiment.loop
    devices, nodes = loop.devices or 1, loop.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun, which sets the number of processes
        devices, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    # Not Apple's accelerator: it has no double precision, in which the components are computed.
    accelerator = ("cuda" if torch.cuda.is_available() else "cpu") if loop.accelerator == "auto" else loop.accelerator
    strategy = "ddp" if devices * nodes > 1 else "auto"
    return Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy)


@contextmanager
def catch_interrupts() -> Iterator[Callable[[], bool]]:
    """Within the block, SIGINT and SIGTERM only set a flag, which the yielded function reads."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted.is_set  # only the main thread receives signals
        return

    def handle(number: int, frame: object) -> None:
        interrupted.set()
        signal.signal(number, earlier[number])  # a second signal ends the process at once

    earlier: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in earlier:
        signal.signal(number, handle)
    try:
        yield interrupted.is_set
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@dataclass
class Progress:
    """What a checkpoint keeps besides tensors."""

    step: int = 0
    best_psnr_db: float | None = None
    loss_sum: float = 0.0
    loss_count: int = 0


@dataclass
class StepTimer:
    """Time since the last line of the log."""

    waiting: float = 0.0
    steps: int = 0
    started: float = field(default_factory=time.perf_counter)

    def summary(self) -> dict[str, float]:
        passed = max(time.perf_counter() - self.started, 1e-9)
        return {"steps_per_second": round(self.steps / passed, 4), "waiting_for_data": round(self.waiting / passed, 4)}


class Trainer:
    """One run of one experiment in one folder."""

    def __init__(self, experiment: Experiment, scenes: GatheredScenes, folder: RunFolder, network: AnyNetwork) -> None:
        self.experiment, self.scenes, self.folder, self.network = experiment, scenes, folder, network
        self.fabric = make_fabric(experiment)
        if os.environ.get("LT_CLI_USED") != "1":  # `fabric run` has started the processes already
            self.fabric.launch()
        batch_size = experiment.loop.batch_size
        self.slots = process_slots(batch_size, self.fabric.global_rank, self.fabric.world_size)
        settings = experiment.optimiser
        optimiser = torch.optim.AdamW(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        module = NetworkOnBatch(network, bfloat16=experiment.loop.precision == "bfloat16")
        self.module, self.optimiser = self.fabric.setup(module, optimiser)
        self.averaged: dict[str, Tensor] = {}
        if experiment.loop.ema > 0:
            self.averaged = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        self.progress = Progress()
        self.gain_db: float | None = None  # of the last validation, over the base
        self.steps = experiment.total_steps(scenes.patches)

    def train(self, *, resume: bool) -> Progress:
        """Train to the end or to an interruption, after which `progress.step` is less than `steps`."""
        if self.fabric.world_size > 1:  # only the first process knows the folder
            resume = bool(self.fabric.broadcast(resume))
        if resume:
            self._restore(Checkpoint.read(self.folder.checkpoint))
            gains = [line["mean_gain_db"] for line in read_log(self.folder.path) if "mean_gain_db" in line]
            self.gain_db = gains[-1] if gains else None
        log = RunLog(self.folder.path, self.progress.step if resume else None) if self.fabric.is_global_zero else None
        try:
            with catch_interrupts() as interrupted:
                with progress("Training", total=self.steps, done=self.progress.step) as advance:
                    self._run(log, interrupted, advance)
                done = resume and (self.folder.path / WEIGHTS).exists()
                if self.progress.step == self.steps and log is not None and not done:
                    self._finish(log, interrupted)
        finally:
            if log is not None:
                log.close()
        return self.progress

    def _run(self, log: RunLog | None, interrupted: Callable[[], bool], advance: Advance) -> None:
        loop, timer, state = self.experiment.loop, StepTimer(), self.progress
        batches = self._batches()
        stop, shown_loss = False, math.nan
        while state.step < self.steps and not stop:
            loss, stop = self._step(batches, timer, interrupted())
            state.step += 1
            state.loss_sum += loss
            state.loss_count += 1
            shown_loss = loss if math.isnan(shown_loss) else shown_loss + NEWEST_LOSS * (loss - shown_loss)
            advance(1, note=self._note(shown_loss))
            last = state.step == self.steps
            if state.step % loop.log_every == 0 or last:
                if log is not None:
                    rate = self.experiment.optimiser.rate_at(state.step - 1, self.steps)
                    mean = state.loss_sum / state.loss_count
                    log.event("train", state.step, loss=mean, learning_rate=rate, **timer.summary())
                state.loss_sum, state.loss_count, timer = 0.0, 0, StepTimer()
            if state.step % self.experiment.validation.every == 0 or last:
                self._validate(log)
                timer = StepTimer()
            if state.step % loop.checkpoint_every == 0 or last or stop:
                self._write_checkpoint()

    def _note(self, loss: float) -> str:
        """What the progress bar shows."""
        gain = "" if self.gain_db is None else f" {self.gain_db:+.2f} dB over {self.experiment.network.base}"
        return f"loss {loss:.3g}{gain}"

    def _step(self, batches: Iterator[PairBatch], timer: StepTimer, interrupted: bool) -> tuple[float, bool]:
        """One step of the optimiser; the mean loss over all processes, and whether any of them was interrupted."""
        loop, settings, optimiser = self.experiment.loop, self.experiment.optimiser, self.optimiser
        for group in optimiser.param_groups:
            group["lr"] = settings.rate_at(self.progress.step, self.steps)
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for part in range(loop.accumulate):
            before = time.perf_counter()
            batch = next(batches)
            timer.waiting += time.perf_counter() - before
            with self.fabric.no_backward_sync(self.module, enabled=part < loop.accumulate - 1):
                loss = training_loss(self.module(batch), batch, loop) / loop.accumulate
                self.fabric.backward(loss)
            total += float(loss.detach())
        # A NaN or an interrupt in one process must not leave the others waiting: all of them learn of it.
        signals = torch.tensor([total, float(interrupted)], dtype=torch.float64, device=self.fabric.device)
        if self.fabric.world_size > 1:
            signals = self.fabric.all_reduce(signals, reduce_op="mean")
        mean_loss, stop = signals.tolist()
        self._require_finite("loss", mean_loss)
        norm = self.fabric.clip_gradients(
            self.module, optimiser, max_norm=settings.clip_norm or math.inf, error_if_nonfinite=False
        )
        self._require_finite("gradient", math.nan if norm is None else float(norm))
        optimiser.step()
        self._average()
        timer.steps += 1
        return mean_loss, stop > 0

    def _batches(self) -> Iterator[PairBatch]:
        """Batches from the next step on; each process draws its share of the slots of every batch."""
        loop, fabric = self.experiment.loop, self.fabric
        # The prior network runs inside its base.
        base = BICUBIC if isinstance(self.network, PriorNetwork) else self.network.config.base
        expected_error = isinstance(self.network, SSA) and self.network.config.expected_error
        batches = PairBatches(
            self.scenes.buckets,
            self.experiment.simulation,
            seed=self.experiment.seed,
            batch_size=loop.batch_size,
            slots=self.slots,
            finish=partial(add_base, method=base, expected_error=expected_error),
        )
        start, end = (step * loop.accumulate for step in (self.progress.step, self.steps))
        loader = batch_loader(batches, start, end, workers=loop.workers, pin_memory=fabric.device.type == "cuda")
        try:
            for batch in loader:
                yield batch.to(fabric.device, non_blocking=True)
        except (RuntimeError, ConnectionError, EOFError) as error:
            remedy = "free memory or set loop.workers=0, and continue with --resume"
            raise TrainingError(f"a worker of the loader ended ({error})", "workers that run", remedy) from error

    def _validate(self, log: RunLog | None) -> None:
        """On the first process; the others wait for it."""
        if log is not None and self.scenes.cases:
            network = self._averaged_network()
            mean = self._score(network, log, "validation")
            if self.progress.best_psnr_db is None or mean > self.progress.best_psnr_db:
                self.progress.best_psnr_db = mean
                self._save_weights(BEST, network)
        self.fabric.barrier()

    @torch.no_grad()
    def _score(self, network: AnyNetwork, log: RunLog, event: str) -> float:
        """Log the scores of the test scenes; return the mean PSNR."""
        cases, step = self.scenes.cases, self.progress.step
        scores: dict[str, Score] = {}
        for case in cases:
            scores[case.name], fused = validate(network, case)
            if case is cases[0]:
                log.image("fused", self.folder.write_sample(step, case, fused), step)
        mean = sum(score.psnr_db for score in scores.values()) / len(cases)
        base = sum(case.base.psnr_db for case in cases) / len(cases)
        self.gain_db = mean - base
        log.event(
            event,
            step,
            mean_psnr_db=mean,
            mean_gain_db=self.gain_db,
            psnr_db={name: score.psnr_db for name, score in scores.items()},
            spectral_angle_degrees={name: score.spectral_angle_degrees for name, score in scores.items()},
            split=self.scenes.label,
            overlapping=self.scenes.overlapping,
        )
        return mean

    def _averaged_network(self) -> AnyNetwork:
        network = build_network(self.experiment.network).to(self.fabric.device)
        network.load_state_dict(self.averaged or self.network.state_dict())
        return network.eval()

    def _finish(self, log: RunLog, interrupted: Callable[[], bool]) -> None:
        """Write the final weights, of `universal`'s network with refitted gains."""
        network = self._averaged_network().cpu()
        if isinstance(network, PriorNetwork) and self.experiment.gains is not None:
            first_draw = self.steps * self.experiment.loop.accumulate
            if not fit_gains(network, self.experiment, self.scenes.buckets, first_draw, interrupted):
                return
            if self.scenes.cases:
                self._score(network, log, "fitted")
        self._save_weights(WEIGHTS, network)

    def _save_weights(self, name: str, network: AnyNetwork) -> None:
        provenance = self.folder.provenance(self.experiment, self.scenes, self.progress.step)
        network.cpu().save_pretrained(self.folder.path / name, provenance)

    def _write_checkpoint(self) -> None:
        if self.fabric.is_global_zero:
            state = self.optimiser.state_dict()["state"]
            optimiser = {
                index: {name: torch.as_tensor(value) for name, value in values.items()}
                for index, values in state.items()
            }
            kept = asdict(self.progress) | {"steps": self.steps, "scenes": self.scenes.summary()}
            Checkpoint(self.network.state_dict(), self.averaged, optimiser, kept).write(self.folder.checkpoint)
        self.fabric.barrier()

    def _restore(self, checkpoint: Checkpoint) -> None:
        kept = dict(checkpoint.progress)
        expected = json.loads(json.dumps([self.steps, self.scenes.summary()]))
        if [kept.pop("steps", None), kept.pop("scenes", None)] != expected:
            got = f"{self.folder.path} was started with other scenes or another length"
            remedy = "bring back its scenes, or choose another --output"
            raise TrainingError(got, "the same scenes to continue", remedy)
        self.network.load_state_dict(checkpoint.network)
        self.averaged = {name: tensor.to(self.fabric.device) for name, tensor in checkpoint.averaged.items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": checkpoint.optimiser, "param_groups": groups})
        self.progress = Progress(**kept)

    @torch.no_grad()
    def _average(self) -> None:
        if self.averaged:
            # Early averages follow quickly, or the random initial weights would stay in them for long.
            step = self.progress.step
            decay = min(self.experiment.loop.ema, (1 + step) / (10 + step))
            for name, tensor in self.network.state_dict().items():
                self.averaged[name].lerp_(tensor, 1 - decay)

    def _require_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            kept = "the last good checkpoint is kept" if self.folder.checkpoint.exists() else "there is no checkpoint"
            remedy = f"lower optimiser.learning_rate or set optimiser.clip_norm; {kept}"
            raise TrainingError(
                f"the {what} became {value} at step {self.progress.step + 1}", f"a finite {what}", remedy
            )
