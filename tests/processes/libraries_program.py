"""What `test_libraries` starts with torchrun: training loops of other libraries, beside the same loop by hand.

`python libraries_program.py FOLDER NAME ...` runs those of the named libraries and leaves what it saw in
FOLDER/RANK.npz. Every process has digits of its own, of those in FOLDER/digits.npz.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peerdescent as peer
from peerdescent.torch import DecentralizedOptimizer, alone

BATCH, EPOCHS, RATE, CLIP = 20, 4, 0.2, 1.0


class Loops:
    def __init__(self, folder, rank, nodes):
        self.folder, self.rank, self.seen = Path(folder), rank, {}
        ring = peer.Network(peer.topology.ring(nodes))
        self.network = peer.Network(
            (np.eye(nodes) + ring.W) / 2
        )  # two nodes of the ring itself would agree exactly
        images, labels = np.load(self.folder / "digits.npz").values()
        own = np.arange(len(labels)) % nodes == rank
        self.data = TensorDataset(
            torch.tensor(images[own][:240] / 8, dtype=torch.float32),
            torch.tensor(labels[own][:240]),
        )

    def loader(self):
        return DataLoader(
            self.data,
            batch_size=BATCH,
            shuffle=True,
            generator=torch.Generator().manual_seed(self.rank),
        )

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def optimizer(self, model, method="gt-dsgd"):
        built = peer.methods.METHODS[method].build().replace(alpha=RATE)
        return DecentralizedOptimizer(model, built, self.network)

    def schedule(self, optimizer, every=16):
        return torch.optim.lr_scheduler.StepLR(optimizer, every, 0.5)

    def by_hand(self, batches, together=1, method="gt-dsgd"):
        """The losses and parameters of a loop over batches, several of which make a step."""
        model, losses = self.model(), []
        optimizer = self.optimizer(model, method)
        schedule = self.schedule(optimizer)
        for k, (inputs, targets) in enumerate(batches):

            def closure(inputs=inputs, targets=targets):
                return nn.functional.cross_entropy(model(inputs), targets)

            if method == "gt-hsgd":
                losses.append(float(optimizer.step(closure)))
                schedule.step()
                continue
            loss = closure()
            losses.append(loss.item())
            (loss / together).backward()
            if (k + 1) % together == 0:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return losses, point(model)

    def keep(self, name, losses, model, by_hand):
        self.seen |= {f"{name} losses": losses, f"{name} x": point(model)}
        self.seen |= {f"{name} losses by hand": by_hand[0], f"{name} x by hand": by_hand[1]}

    def accelerate(self):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = self.model()
        optimizer = self.optimizer(model)
        model, optimizer, loader, schedule = accelerator.prepare(
            model, optimizer, self.loader(), self.schedule(optimizer)
        )
        batches, losses = [], []
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                batches.append((inputs, targets))
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), CLIP)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
        self.seen["accelerate processes"] = accelerator.num_processes
        self.keep("accelerate", losses, model, self.by_hand(batches, together=2))
        accelerator.save_state(self.folder / f"accelerate-{self.rank}")
        before = point(model)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        accelerator.load_state(self.folder / f"accelerate-{self.rank}")
        self.seen["accelerate loaded"] = np.array_equal(before, point(model))

    def transformers(self):
        from transformers import Trainer, TrainingArguments

        seen = []

        class Classifier(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, inputs, labels):
                seen.append((inputs, labels))
                scores = self.inner(inputs)
                return {"loss": nn.functional.cross_entropy(scores, labels), "scores": scores}

        rows = [{"inputs": inputs, "labels": label} for inputs, label in self.data]
        model = Classifier(self.model())
        optimizer = self.optimizer(model)
        options = TrainingArguments(
            output_dir=str(self.folder / f"trainer-{self.rank}"),
            per_device_train_batch_size=BATCH,
            num_train_epochs=EPOCHS,
            max_grad_norm=CLIP,
            seed=self.rank,
            logging_steps=1,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="epoch",
        )
        trainer = Trainer(
            model=model,
            args=options,
            train_dataset=rows,
            optimizers=(optimizer, self.schedule(optimizer)),
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        self.seen["transformers processes"] = options.world_size
        by_hand = self.by_hand(seen)
        self.keep("transformers", losses, model, by_hand)
        # From the checkpoint of the first epoch.
        first = (
            self.folder
            / f"trainer-{self.rank}"
            / f"checkpoint-{trainer.state.global_step // EPOCHS}"
        )
        model = Classifier(self.model())
        optimizer = self.optimizer(model)
        again = Trainer(
            model=model,
            args=options,
            train_dataset=rows,
            optimizers=(optimizer, self.schedule(optimizer)),
        )
        again.train(resume_from_checkpoint=str(first))
        self.seen["transformers x resumed"] = point(model)

    def lightning(self):
        import lightning

        loops = self

        class Classifier(lightning.LightningModule):
            def __init__(self, method):
                super().__init__()
                self.inner, self.method, self.batches, self.losses = loops.model(), method, [], []

            def training_step(self, batch, number):
                inputs, targets = batch
                loss = nn.functional.cross_entropy(self.inner(inputs), targets)
                if len(self.batches) <= number + self.current_epoch * len(loops.loader()):
                    self.batches.append((inputs, targets))
                    self.losses.append(float(loss.detach()))
                return loss

            def configure_optimizers(self):
                optimizer = loops.optimizer(self, self.method)
                schedule = {"scheduler": loops.schedule(optimizer), "interval": "step"}
                return {"optimizer": optimizer, "lr_scheduler": schedule}

        for method, together in (("gt-dsgd", 1), ("gt-dsgd", 2), ("gt-hsgd", 1)):
            model = Classifier(method)
            trainer = lightning.Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=EPOCHS,
                accumulate_grad_batches=together,
                gradient_clip_val=CLIP if method == "gt-dsgd" else None,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(model, self.loader())
            name = f"lightning {method} {together}"
            self.seen[f"{name} processes"] = trainer.world_size
            self.seen[f"{name} steps"] = trainer.global_step
            self.keep(name, model.losses, model, self.by_hand(model.batches, together, method))

    def wrapped(self, variables):
        """What Accelerate does where the other processes are not hidden."""
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.update(variables)
        accelerator = Accelerator(cpu=True)
        model = self.model()
        optimizer = self.optimizer(model)
        model, _ = accelerator.prepare(model, optimizer)
        try:
            model(torch.ones(1, 64))
            self.seen["wrapped"] = "no refusal"
        except ValueError as error:
            self.seen["wrapped"] = str(error)


def point(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def main(folder, *names):
    torch.set_num_threads(1)
    variables = copy.copy(dict(os.environ))
    rank, nodes = alone()
    loops = Loops(folder, rank, nodes)
    for name in names:
        getattr(loops, name)()
    if "accelerate" in names:
        loops.wrapped(variables)
    np.savez(
        loops.folder / f"{rank}.npz",
        **{name: np.asarray(value) for name, value in loops.seen.items()},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
