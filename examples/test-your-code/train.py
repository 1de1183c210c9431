"""Train a private classifier of handwritten digits with Opacus: python train.py."""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPSILON, DELTA = 3.0, 1e-5
EPOCHS = 2


def digits():
    """Return 1,797 images of 64 numbers, and what they show."""
    images, targets = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(targets))


def train(data):
    """Return a model that is (EPSILON, DELTA)-differentially private in the examples of data."""
    model = nn.Linear(64, 10)
    loss = nn.CrossEntropyLoss()
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=64),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    for _ in range(EPOCHS):
        for images, targets in loader:
            optimizer.zero_grad()
            loss(model(images), targets).backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    data = digits()
    model = train(data)
    images, targets = data.tensors
    print(f"accuracy {(model(images).argmax(1) == targets).float().mean():.2f}")
