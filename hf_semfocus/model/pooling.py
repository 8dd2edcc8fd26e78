"""From token states to one state per text, padding ignored.

Shapes: B batch, L length, d hidden size.
"""

import torch

from .attention_interface import expand_attention_mask, split_attention_mask


def valid_tokens(attention_mask: torch.Tensor | None, batch: int, length: int) -> torch.Tensor | None:
    """Which tokens any query may see.

    Args:
        attention_mask: any form that :func:`expand_attention_mask` takes.

    Returns:
        bool ``(B, L)``, or None when there is no mask: all tokens.
    """
    valid, _ = split_attention_mask(expand_attention_mask(attention_mask, batch, length))
    if valid is None:
        return None
    return valid.flatten(1, 2).any(dim=1).expand(batch, length)


def pool(hidden_BLd: torch.Tensor, valid_BL: torch.Tensor | None, how: str, length: int | None = None) -> torch.Tensor:
    """One vector per text.

    Args:
        hidden_BLd: token states, ``(B, L + n, d)``.
        valid_BL: bool, of the L tokens that were given; None: all are valid.
        how: ``"mean"`` over valid tokens (0 if there is none) and over what the model appended, ``"cls"`` the first
            valid token, ``"last"`` the last one.
        length: L; None: all states are of given tokens.

    Returns:
        ``(B, d)``.

    Example:
        >>> states = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> pool(states, torch.tensor([[True, True, False]]), "mean").item()
        2.0
    """
    if length is not None and length < hidden_BLd.shape[1]:
        if how != "mean":
            hidden_BLd = hidden_BLd[:, :length]
        elif valid_BL is not None:
            valid_BL = torch.nn.functional.pad(valid_BL, (0, hidden_BLd.shape[1] - length), value=True)
    if valid_BL is None:
        if how == "mean":
            return hidden_BLd.mean(dim=1)
        return hidden_BLd[:, 0 if how == "cls" else -1]
    if how == "mean":
        count = valid_BL.sum(dim=1, keepdim=True).clamp(min=1)
        return hidden_BLd.masked_fill(~valid_BL[..., None], 0).sum(dim=1) / count
    marks = valid_BL.to(torch.uint8)
    index = marks.argmax(dim=1) if how == "cls" else marks.shape[1] - 1 - marks.flip(1).argmax(dim=1)
    return hidden_BLd.gather(1, index[:, None, None].expand(-1, 1, hidden_BLd.shape[-1])).squeeze(1)
