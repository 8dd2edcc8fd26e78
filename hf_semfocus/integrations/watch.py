"""Which modules of a model compute softmax attention, and which of them by our attention function: seen, not read off names."""

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from .attention import observers

SCORES, WEIGHTS = 1, 2
SOFTMAX = {"_softmax", "_safe_softmax"}
# Products of activations; those with a matrix of weights are `mm` and `addmm`.
PRODUCTS = {"bmm", "baddbmm"}
# A column of sinks joins the scores, and is cut off the weights.
WITH_SINKS = {"cat", "slice"}
FUSED = ("scaled_dot_product", "multi_head_attention", "flex_attention", "flash_attention")


class AttentionWatch(TorchDispatchMode):
    """While it is entered, a look at every module that runs, with whatever calls it.

    Attention is a fused operation of PyTorch, or a product with the softmax of a product, both of activations. Linear
    attention, convolutions, state spaces and routers have no such pair.

    Attributes:
        ran: modules that ran.
        attended: modules that computed attention.
        called: modules that called an attention function of ours.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ran: set[nn.Module] = set()
        self.attended: set[nn.Module] = set()
        self.called: set[nn.Module] = set()
        self._inside: list[nn.Module] = []
        self._known = WeakTensorKeyDictionary()

    def __enter__(self) -> "AttentionWatch":
        observers.append(self._observe)
        self._hooks = [
            nn.modules.module.register_module_forward_pre_hook(lambda module, _: self._enter(module)),
            nn.modules.module.register_module_forward_hook(lambda *_: self._leave(), always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        observers.remove(self._observe)
        for hook in self._hooks:
            hook.remove()

    def _observe(self, module: nn.Module, **_: Any) -> None:
        self.called.add(module)

    def _enter(self, module: nn.Module) -> None:
        self.ran.add(module)
        self._inside.append(module)

    def _leave(self) -> None:
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and remember what are scores and weights, and who multiplies by weights."""
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [part for each in args for part in (each if isinstance(each, (list, tuple)) else (each,))]
        known = [part for part in given if isinstance(part, torch.Tensor) and part in self._known]
        kinds = {self._known[part] for part in known}
        if any(word in name for word in FUSED) or (name in PRODUCTS and WEIGHTS in kinds):
            self.attended.update(self._inside[-1:])
        elif not isinstance(made, torch.Tensor):
            pass
        elif name in PRODUCTS:
            self._known[made] = SCORES
        elif known and name in SOFTMAX:
            self._known[made] = WEIGHTS
        elif known and (name in WITH_SINKS or made.numel() == max(part.numel() for part in known)):
            # Scaled, masked, cast, dropped out, or of another shape.
            self._known[made] = max(kinds)
        return made
