from train import DELTA, EPSILON, digits, train

from clipnoise.audit import from_opacus


def test_training_is_private(dp_audit):
    data = digits()
    claim, watched = from_opacus(train, data, epsilon=EPSILON, delta=DELTA)
    dp_audit(watched, claim, data)
