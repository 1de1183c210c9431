"""Checks on made-up examples, before a network sees private ones: the last line of defence.

That no example reaches another while gradients are taken is a matter of how engines run a network
(see `clipnoise.gradients.apart`). These checks refuse, by name and with advice, what an engine
would take one example at a time in another sense than the user's, or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from clipnoise.data.several import Several, arguments, call, mapped, tensors_of
from clipnoise.errors import UserError
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.kept import WITHOUT, Held, counters, difference, look

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.data.several import Inputs

INSTEAD = "Use GroupNorm or LayerNorm, which normalise each example separately."


def check_model(network: nn.Module, inputs: Inputs) -> frozenset[str]:
    """Refuse a network in which examples of a batch influence each other, or that keeps some.

    Parameters, buffers, modes and random streams are left as they were.

    Args:
        network: on its device.
        inputs: one or more examples; only their shapes, dtypes and device are used.

    Returns:
        The attributes of the network that count its forward passes, whatever the examples.

    Raises:
        UserError: names the smallest module that mixes examples, keeps something of them, or draws
            random numbers that they share, and what to use instead.
    """
    check_kinds(network)
    check_arguments(network, inputs)
    with unchanged(network):
        probe = _Probe(network, inputs)
        counting = _counters_unless_it_remembers(probe)
        _reject_global_randomness(probe)
        _reject_recomputation(probe)
        _reject_mixing(probe)
        return counting


def check_kinds(network: nn.Module) -> None:
    """Refuse modules whose kind says that they cannot be trained privately."""
    for path, module in network.named_modules():
        name = f"model: {path or 'the network'} is a {type(module).__name__}"
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise UserError(f"{name}: hand over what it wraps, its attribute `module`.")
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError(
                f"{name}: how a compiled module treats its batch cannot be followed. Hand over the "
                "module that it was made from."
            )
        if getattr(module, "max_norm", None) is not None:
            raise UserError(
                f"{name} with max_norm: it rewrites the rows of the tokens that occur, also where "
                "it is frozen, and so releases them without noise. Leave max_norm out."
            )
        accumulates = isinstance(module, _InstanceNorm) and module.track_running_stats
        if isinstance(module, _BatchNorm) or accumulates:
            raise UserError(
                f"{name}: its statistics mix the examples of a batch, so per-example gradients do "
                f"not exist. {INSTEAD}"
            )


def check_arguments(network: nn.Module, inputs: Inputs) -> None:
    """Refuse several inputs that the network does not take as arguments."""
    if not isinstance(inputs, Several):
        return
    by_place, by_name = arguments(inputs)
    parameters = inspect.signature(network.forward)
    try:
        parameters.bind(*by_place, **by_name)
    except TypeError as error:
        given = f"named {', '.join(by_name)}" if by_name else "in order"
        raise UserError(
            f"model: its forward does not take {len(inputs.each)} inputs {given}: {error}. A dict "
            "of tensors is given by name, a tuple in order; forward takes "
            f"{', '.join(parameters.parameters) or 'nothing'}."
        ) from None


def _reject_global_randomness(probe: _Probe) -> None:
    """Refuse a network that draws random numbers from torch's global stream as it trains."""
    with torch.no_grad():
        drawn = probe.layers_that_draw()
    if drawn:
        raise UserError(
            f"model: {drawn[0] or 'the network'} draws random numbers from torch's global stream, "
            "so what one example adds would depend on the others in its batch. Use "
            "torch.nn.functional.dropout, whose masks are drawn for each example by itself here."
        )


def _reject_recomputation(probe: _Probe) -> None:
    """Refuse the gradient checkpointing of others: it would draw other dropout masks, or fail."""
    path = probe.module_run_again()
    if path is not None:
        raise UserError(
            f"model: {path or 'the network'} runs again in the backward pass (gradient "
            "checkpointing). Turn it off, with `gradient_checkpointing_disable()` for models of "
            "transformers, and call `clipnoise.models.recomputed.recompute` with each block "
            "instead (in a study: `recompute: true` of the model)."
        )


def _reject_mixing(probe: _Probe) -> None:
    """Refuse a network in which changing one made-up example changes the output of another."""
    path = probe.mixing_module()
    if path is None and probe.gradients_mix():
        path = ""
    if path is None and probe.depends_on_the_batch():
        path = ""
    if path is not None:
        raise UserError(
            f"model: {path or 'the network'} mixes examples: one example's output depends on the "
            "others in its batch, so clipping cannot bound what one example adds. Compute each row "
            "of the output from the same row of the input: statistics, sorting, padding and sizes "
            "must not come from the batch."
        )


def _counters_unless_it_remembers(probe: _Probe) -> frozenset[str]:
    """Refuse a network that holds something else after other examples; return its counters."""
    before, one, other = probe.held_after_each()
    counting = counters(before, one, other)
    changed = difference(before, one, counting) or difference(one, other, counting)
    if changed is not None:
        raise UserError(
            f"model: {changed} changes with the examples in each forward pass: it would release "
            f"private data without noise. {WITHOUT}"
        )
    return counting


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Put parameters, buffers and modes back as they were, in place.

    `torch.func.functional_call` would do, but leaves other values in a module with two names.
    """
    modes = {module: module.training for module in network.modules()}
    stores = [
        store for module in network.modules() for store in (module._parameters, module._buffers)
    ]
    held = [
        (store, name, value, None if value is None else value.detach().clone())
        for store in stores
        for name, value in store.items()
    ]
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for store, name, value, copy in held:
                store[name] = value  # type: ignore[assignment]
                if value is not None and copy is not None and not torch.equal(value, copy):
                    value.copy_(copy)


@torch.no_grad()
def perturb(network: nn.Module) -> None:
    """Move every parameter: a layer whose weights start at zero hides whatever comes before it."""
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.add_(0.05 * normal(parameter))


class _Probe:
    """A network at perturbed parameters, and three made-up examples and a fourth one."""

    def __init__(self, network: nn.Module, inputs: Inputs) -> None:
        self.network = network
        perturb(network)
        examples = made_up(inputs, 4, ending=ending_of(network))
        self.inputs: Inputs = examples[:3]
        self.changed = mapped(_with_another_second, examples)

    def run(self, inputs: Inputs, *, training: bool = True) -> Tensor:
        """Run the network in training or evaluation mode."""
        self.network.train(training)
        with Masks.first(len(inputs)).active():
            return call(self.network, inputs)

    def layers_that_draw(self) -> list[str]:
        """Return the modules that move torch's global stream, the innermost first."""
        drawn: list[str] = []
        before: dict[str, Tensor] = {}
        device = self.inputs.device
        on_gpu = device.type == "cuda"

        def position() -> Tensor:
            return torch.cuda.get_rng_state(device) if on_gpu else torch.get_rng_state()

        def enter(path: str) -> None:
            before[path] = position()

        def leave(path: str) -> None:
            if not torch.equal(before[path], position()):
                drawn.append(path)

        fork = torch.random.fork_rng(devices=[device] if on_gpu else [])
        with fork, self._noticing(enter, leave):
            self.run(self.inputs)
        return drawn

    def module_run_again(self) -> str | None:
        """Return the path of a module whose forward pass is repeated in the backward pass."""
        again: list[str] = []
        with torch.enable_grad():
            outputs = self.run(self.inputs)
            if outputs.requires_grad:
                trained = [p for p in self.network.parameters() if p.requires_grad]
                with self._noticing(again.append, lambda path: None):
                    torch.autograd.grad(outputs.sum(), trained, allow_unused=True)
        return again[0] if again else None

    @contextmanager
    def _noticing(
        self, enter: Callable[[str], None], leave: Callable[[str], None]
    ) -> Iterator[None]:
        """Call two functions with its path whenever a module begins and ends a forward pass."""
        handles = []
        for path, module in self.network.named_modules():
            handles += [
                module.register_forward_pre_hook(lambda *_, path=path: enter(path)),
                module.register_forward_hook(lambda *_, path=path: leave(path)),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def mixing_module(self) -> str | None:
        """Return the path of the first module that turns equal rows into different ones."""
        with torch.no_grad():
            before, after = (self._other_rows(batch) for batch in (self.inputs, self.changed))
        if [path for path, *_ in before] != [path for path, *_ in after]:
            return ""  # the second example decides which modules the others run through
        for (path, input, output), (_, new_input, new_output) in zip(before, after, strict=True):
            if _close(input, new_input) and not _close(output, new_output):
                return path
        return None

    def _other_rows(self, batch: Inputs) -> list[tuple[str, Tensor, Tensor]]:
        """Return each module's path and all but the second rows of its input and output."""
        rows: list[tuple[str, Tensor, Tensor]] = []

        def recorder(path: str) -> Any:
            def hook(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
                if inputs and all(_is_batch(value) for value in (inputs[0], output)):
                    rows.append((path, inputs[0][::2].clone(), output[::2].clone()))  # type: ignore[index]

            return hook

        handles = [
            module.register_forward_hook(recorder(path))
            for path, module in self.network.named_modules()
        ]
        try:
            self.run(batch)
        finally:
            for handle in handles:
                handle.remove()
        return rows

    def gradients_mix(self) -> bool:
        """Return whether one example's output has a gradient with respect to another's input."""
        with torch.enable_grad():
            inputs = mapped(_with_gradient, self.inputs)
            real = [part for part in tensors_of(inputs) if part.requires_grad]
            if not real:
                return False
            try:
                outputs = self.run(inputs)
            except RuntimeError:  # it takes no inputs that need a gradient
                return False
            if not outputs.requires_grad:
                return False
            for i in range(len(inputs)):
                gradients = torch.autograd.grad(
                    outputs[i].sum(), real, retain_graph=True, materialize_grads=True
                )
                for gradient in gradients:
                    gradient[i] = 0
                    if bool((gradient != 0).any()):  # nan is not 0 either
                        return True
        return False

    def depends_on_the_batch(self) -> bool:
        """Return whether an output changes with the size of the batch, or with its order."""
        order = [2, 0, 1]
        with torch.no_grad():
            together = self.run(self.inputs, training=False)
            alone = [self.run(self.inputs[i : i + 1], training=False) for i in range(3)]
            turned = self.run(self.inputs[order], training=False)
        return not (_close(torch.cat(alone), together) and _close(turned, together[order]))

    def held_after_each(self) -> tuple[Held, Held, Held]:
        """Return what the network holds after three forward passes on different examples.

        Those of the first one may leave what is computed once, such as a table of positions.
        """
        found = []
        for batch in (self.inputs, self.changed, self.changed[[2, 1, 0]]):
            with torch.no_grad():
                self.run(batch)
            found.append(look(self.network))
        return found[0], found[1], found[2]


def _with_another_second(examples: Tensor) -> Tensor:
    """Return three of four made-up examples, the second one exchanged for something else."""
    other = 3 * examples[3] if examples.is_floating_point() else _flipped(examples[1])
    return torch.stack([examples[0], other, examples[2]])


def _with_gradient(part: Tensor) -> Tensor:
    return part.clone().requires_grad_() if part.is_floating_point() else part


def normal(like: Tensor, seed: int = 0) -> Tensor:
    """Return standard normal numbers that follow from a seed, in a tensor's shape and dtype."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=draws).to(like)


def made_up(inputs: Inputs, count: int, *, ending: int | None = None) -> Inputs:
    """Make up examples, for trying a network without using any private value.

    Args:
        inputs: shape (n, …), or several; only their shapes, dtypes and device are used.
        count: how many to make.
        ending: a token that every text has to end with: `input_ids`, or the first integers.

    Returns:
        Shape (count, …): normal numbers. For integers 0 and 1, since every vocabulary has these
        two: 1 first, so that no example is all padding, then either, and 0 for padding at the end,
        which is of another length in each example. Several inputs differ from each other, but their
        padding is of one length.
    """
    if not isinstance(inputs, Several):
        return made_up_tensor(inputs, count, ending)
    named = zip(inputs.names, inputs.each, strict=True)
    whole = [name for name, part in named if not part.is_floating_point()]
    text = "input_ids" if "input_ids" in whole else whole[0] if whole else None
    return inputs.with_each(
        [
            made_up_tensor(part, count, ending if name == text else None, place)
            for place, (name, part) in enumerate(zip(inputs.names, inputs.each, strict=True))
        ]
    )


def made_up_tensor(inputs: Tensor, count: int, ending: int | None = None, place: int = 0) -> Tensor:
    """Make up one tensor of inputs, the one at a place among several: as `made_up`."""
    empty = inputs.new_empty(count, *inputs.shape[1:])
    if inputs.is_floating_point():
        return normal(empty, place)
    if inputs.ndim == 1:
        return empty.copy_((torch.arange(count) + place) % 2)
    tokens = (normal(empty.float().cpu(), place) > 0).long().flatten(1)
    length = tokens.shape[1]
    real = length - torch.arange(count) % 4 * length // 4  # at least a quarter
    tokens[torch.arange(length) >= real.unsqueeze(1)] = 0
    tokens[:, 0] = 1
    if ending is not None:
        tokens[torch.arange(count), real - 1] = ending
    return empty.copy_(tokens.view(empty.shape))


def _flipped(tokens: Tensor) -> Tensor:
    """Return made-up tokens with 1 for 0 and 0 for 1, so that padding becomes text."""
    flipped = torch.where(tokens == 0, 1, torch.where(tokens == 1, 0, tokens))
    if flipped.numel() > 1:
        flipped.view(-1)[0] = 1
    return flipped


def ending_of(network: nn.Module) -> int | None:
    """Return the token with which a network of transformers wants a text to end, if it has one."""
    configurations = (getattr(module, "config", None) for module in network.modules())
    tokens = (getattr(configuration, "eos_token_id", None) for configuration in configurations)
    return next((token for token in tokens if isinstance(token, int)), None)


def _is_batch(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == 3


def _close(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal up to the rounding of different kernels.

    Where one is not a number, the other must not be one either.
    """
    if not first.is_floating_point() or first.shape != second.shape:
        return torch.equal(first, second)
    finite = first[first.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(first, second, rtol=0, atol=1e-5 * scale, equal_nan=True)
