"""The handwritten digits, handed out to users who each write only a few of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from clipnoise.data.base import Splits
from clipnoise.data.digits import Digits
from clipnoise.fields import Count
from clipnoise.seeds import generator

SHARDS = 2  # per user


@dataclass(frozen=True, kw_only=True)
class DigitsUsers(Digits):
    """The digits, with the private examples handed out to N users, most with two digits each.

    The examples are sorted by digit and cut into 2N shards of equal size (within one); every user
    is given two shards, drawn by the split seed. A stand-in for a partition by nature: who owns
    which example is a fact about the data and no output of a mechanism.

    Attributes:
        users: N.

    Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", section 3 (the pathological non-IID partition).
    """

    id: ClassVar[str] = "digits-users"
    title: ClassVar[str] = "Handwritten digits (8×8) of users with two digits each"

    users: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if SHARDS * self.users > self.sizes()["train"]:
            raise ValueError(f"users must be at most {self.sizes()['train'] // SHARDS}")

    @property
    def origin(self) -> str:
        return Digits.id

    def user_count(self) -> int:
        return self.users

    def load(self, cache: Path) -> Splits:
        import torch

        splits = super().load(cache)
        targets = splits.train.dense().targets
        by_digit = targets.argsort(stable=True)
        order = torch.randperm(SHARDS * self.users, generator=generator("split", self.split_seed))
        owners = order % self.users
        shards = torch.tensor_split(by_digit, SHARDS * self.users)
        users = torch.empty_like(targets)
        for shard, owner in zip(shards, owners, strict=True):
            users[shard] = owner
        return replace(splits, users=users)
