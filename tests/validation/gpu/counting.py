"""Which accepted count each request gets: hooks in vLLM's V1 model runner, which move no wait and no copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


class Counts:
    """Compare, in every step, each request's accepted count with the one that its previous step left for it.

    A step leaves its counts in `_update_states_after_model_execute`, which may have reset some to 1. The next one reads
    them in `_prepare_inputs`, after rows moved. A request without a previous step must get 1.

    Args:
        runner: vLLM's model runner.
        early: wait for the device before rows move; asynchronous copies of counts then arrive before that.
    """

    def __init__(self, runner: Any, *, early: bool) -> None:
        self.steps = self.rows = self.mismatches = self.wrong_steps = 0
        self.accepted: Counter[int] = Counter()
        self.examples: list[dict[str, Any]] = []
        self._runner = runner
        self._left: Callable[[], dict[str, int]] = dict
        self._wrap("_update_states_after_model_execute", after=self._leave)
        self._wrap("_prepare_inputs", after=self._compare)
        if early:
            self._wrap("_update_states", before=_wait)

    def _wrap(
        self, name: str, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
    ) -> None:
        original = getattr(self._runner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            before()
            result = original(*arguments, **named)
            after()
            return result

        setattr(self._runner, name, wrapped)

    def _leave(self) -> None:
        runner = self._runner
        names = list(runner.input_batch.req_ids)
        if not hasattr(runner, "_get_mamba_bufs"):  # up to 0.21, the host writes them, and is done here
            host = runner.input_batch.num_accepted_tokens_cpu[: len(names)].tolist()
            self._left = lambda: dict(zip(names, host, strict=True))
            return
        device = runner._get_mamba_bufs().postprocess_align.num_accepted_tokens_out[: len(names)]
        own, copied = _copy(device)

        def left() -> dict[str, int]:
            copied.synchronize()
            return dict(zip(names, own.tolist(), strict=True))

        self._left = left

    def _compare(self) -> None:
        left = self._left()
        names = list(self._runner.input_batch.req_ids)
        got = self._runner.num_accepted_tokens.np[: len(names)].tolist()
        wanted = [left.get(name, 1) for name in names]
        wrong = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]
        self.steps += 1
        self.rows += len(names)
        self.mismatches += len(wrong)
        self.wrong_steps += bool(wrong)
        self.accepted.update(wanted)
        if wrong:
            self.examples.append({"step": self.steps, "requests": names, "got": got, "left": wanted})


def _copy(device: Any) -> tuple[Any, Any]:
    """Return a copy of a tensor in the host's memory, and the event after which it is complete."""
    import torch

    own = torch.empty(device.shape, dtype=device.dtype, pin_memory=True)
    own.copy_(device, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return own, copied


def _wait() -> None:
    import torch

    torch.cuda.synchronize()
