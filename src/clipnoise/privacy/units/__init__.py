"""Units: what a mechanism draws, clips and protects as a whole. One class each, in a file each."""

from clipnoise.privacy.units.base import Unit
from clipnoise.privacy.units.example import Example
from clipnoise.privacy.units.node import Node
from clipnoise.privacy.units.user import User

__all__ = ["Example", "Node", "Unit", "User"]
