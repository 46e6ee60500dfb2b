"""A small classifier of small pictures, to judge whether a generated picture shows what was asked for."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iddpm_ray.errors import DataError

MAPS = 64
_HEAD = 8  # layers before the maps are flattened


@dataclass(frozen=True)
class LabelledPictures:
    """Pictures [N, C, H, W] uint8 and what they show, [N] int64."""

    pictures: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]


def train_classifier(data: LabelledPictures, *, num_classes: int, epochs: int = 10, batch: int = 64, seed: int = 0) -> nn.Sequential:
    """A convolutional network trained from scratch in seconds, by cross-entropy, on pictures shifted by up to one pixel.

    Leaves the random state of the process as it was.

    Raises:
        DataError: if there are no pictures.
    """
    if len(data) == 0:
        raise DataError("no pictures to train a classifier on")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make_network(tuple(data.pictures.shape[1:]), num_classes=num_classes)
        inputs = _to_float(data.pictures)
        steps = epochs * -(-len(data) // batch)
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(data)).split(batch):
                shift = tuple(torch.randint(-1, 2, (2,)).tolist())
                loss = F.cross_entropy(network(inputs[rows].roll(shift, dims=(2, 3))), data.labels[rows], label_smoothing=0.05)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return network.eval()


@torch.no_grad()
def classify(network: nn.Module, pictures: Tensor) -> Tensor:
    """The most likely class of each picture [N, C, H, W] uint8, as [N] int64."""
    return torch.cat([network(_to_float(part)).argmax(1) for part in pictures.split(500)])


def agreement(network: nn.Module, data: LabelledPictures) -> float:
    """The share of pictures in which the classifier sees the label."""
    return (classify(network, data.pictures) == data.labels).double().mean().item()


def make_network(shape: tuple[int, ...], *, num_classes: int) -> nn.Sequential:
    """The network for pictures (C, H, W), its weights from torch's own random state."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, MAPS, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(MAPS * (height // 4) * (width // 4), num_classes),
    )


def feature_maps(network: nn.Sequential, pictures: Tensor) -> Tensor:
    """The last maps before the classes, [N, MAPS, H // 4, W // 4], of pictures [N, C, H, W] uint8."""
    return network[:_HEAD](_to_float(pictures))


def logits_of(network: nn.Sequential, maps: Tensor) -> Tensor:
    """The classes' logits [N, K] of those maps."""
    return network[_HEAD:](maps)


def _to_float(pictures: Tensor) -> Tensor:
    return pictures.float().div(127.5).sub(1.0)
