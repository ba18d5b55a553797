"""The presets of TurboQuant, and the cases that `python -m benchmarks.decode` measures. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

MAX_MODEL_LEN = 65_536
"""Tokens that a row of a block table has room for, whatever the length of its request.

The kernels derive their number of splits from it, as they must in a CUDA graph. A table as wide as the request would
measure a split count that no engine uses.
"""

PAGE = 16  # tokens of a page in the speed measurements
MOST_LAYERS = 160  # of a CUDA graph; the smallest layer measured has 0.5 MB


@dataclass(frozen=True)
class Preset:
    """The cache format of a preset: key, norm (unless the key is in fp8), value, scale and minimum of the value."""

    key_bits: int  # 8 is fp8
    value_bits: int

    @property
    def fp8(self) -> bool:
        """Whether keys are stored in fp8, not rotated."""
        return self.key_bits == 8

    @property
    def mse_bits(self) -> int:
        """Bits of a key's code, 0 for fp8, as vLLM's functions take them."""
        return 0 if self.fp8 else self.key_bits

    def key_bytes(self, size: int) -> int:
        """Return the bytes of a key with its norm."""
        return size * self.key_bits // 8 + (0 if self.fp8 else 2)

    def slot(self, size: int) -> int:
        """Return the bytes of a token of one KV head; an even number."""
        used = self.key_bytes(size) + size * self.value_bits // 8 + 4
        return used + used % 2


PRESETS = {"k8v4": Preset(8, 4), "4bit_nc": Preset(4, 4), "k3v4_nc": Preset(3, 4), "3bit_nc": Preset(3, 3)}
SIZES = (64, 128, 256)
GROUPS = (1, 2, 4, 8, 16)
WINDOWS = (1, 4, 8)


@dataclass(frozen=True)
class Numeric:
    """A numerical comparison: requests of ragged lengths on one layer.

    Attributes:
        preset: a key of `PRESETS`.
        size: head size.
        group: query heads of a KV head.
        window: query tokens of a request.
        page: tokens of a page.
        heads_first: whether the heads of a page come before its tokens in memory, as from vLLM 0.26 on.
        dtype: of queries, keys, values and the output.
        splits: the most splits of a request; None leaves it to the launch.
        each: whether each token of a window has a length, as in pieces of a prompt; else a window has one, as drafts.
        lengths: cached tokens of the requests.
        kv_heads: KV heads.
    """

    preset: str
    size: int
    group: int
    window: int
    page: int = 16
    heads_first: bool = True
    dtype: str = "bfloat16"
    splits: int | None = None
    each: bool = False
    lengths: tuple[int, ...] = (0, 1, 70, 1500, 333)
    kv_heads: int = 2

    @property
    def label(self) -> str:
        """The case in a few words."""
        layout = "heads first" if self.heads_first else "tokens first"
        splits = f", at most {self.splits} splits" if self.splits else ""
        given = f" ({'a length for each token' if self.each else 'one length'})" if self.window > 1 else ""
        return (
            f"{self.preset}, head size {self.size}, group {self.group}, window {self.window}{given}, "
            f"{self.kv_heads} KV heads, pages of {self.page}, {layout}, {self.dtype}{splits}"
        )


def numeric_cases(*, quick: bool = False) -> list[Numeric]:
    """Return cases that meet every pair of preset, head size, group and window.

    The full product has 180 cases and compiles for many minutes. Here each preset meets each group once; head size and
    window follow from both in such a way that they meet all presets, groups and each other. Each of these meets both
    dtypes and both numbers of KV heads; each preset also both page sizes, both layouts, and few and many splits.
    """
    cases = []
    for (p, preset), (g, group) in product(enumerate(PRESETS), enumerate(GROUPS)):
        if quick and g not in (1, 2, 3):
            continue
        case = Numeric(
            preset,
            SIZES[(p + g) % 3],
            group,
            WINDOWS[(p + 2 * g) % 3],
            page=(16, 1056)[(p + g) % 2],
            heads_first=g // 2 % 2 == p % 2,
            dtype="float16" if (p // 2 + g // 2) % 2 == 0 else "bfloat16",
            splits=3 if (p + g // 2) % 2 else None,
            each=(p // 2 + g) % 2 == 0,
            kv_heads=(2, 8)[(p + g + g // 2) % 2],  # with 5 requests, a few or many programs: different launches
        )
        cases.append(case)
    return cases


@dataclass(frozen=True)
class Speed:
    """A time measurement of one attention layer; all requests have the same length."""

    preset: str
    size: int
    kv_heads: int
    group: int
    batch: int
    context: int
    window: int = 1
    correct: bool = True  # whether keys are divided by their norms, where the preset does

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    @property
    def tokens(self) -> int:
        """Query tokens of the batch."""
        return self.batch * self.window

    @property
    def shape(self) -> tuple[int, int, int]:
        """Head size, KV heads and group."""
        return self.size, self.kv_heads, self.group

    @property
    def chosen_by(self) -> tuple[int, int, int, int, tuple[int, int]]:
        """What the kernels choose their launch by: requests, KV heads, head size, rows, and bits of the codes."""
        preset = PRESETS[self.preset]
        return self.batch, self.kv_heads, self.size, self.group * self.window, (preset.key_bits, preset.value_bits)

    @property
    def label(self) -> str:
        """The case in a few words."""
        window = f", window {self.window}" if self.window > 1 else ""
        folded = "" if self.correct else ", no norm correction"
        return (
            f"{self.preset}, D {self.size}, {self.kv_heads} x {self.group}, "
            f"batch {self.batch}, {self.context // 1024}K{window}{folded}"
        )


SHAPES = ((128, 8, 4), (128, 8, 8), (128, 8, 2), (128, 4, 16), (256, 2, 8), (256, 4, 4))
"""Head size, KV heads and group of the shapes whose speed is measured."""

BOTH = ((128, 8, 4), (256, 2, 8))
"""The shapes of the other presets and of the windows."""

BATCHES = (1, 8, 32)


def speed_cases(*, quick: bool = False) -> list[Speed]:
    """Return the cases of the speed table, those of a shape one after the other so that they share their caches."""
    batches = (1, 32) if quick else BATCHES
    contexts = (16_384,) if quick else (1024, 16_384, 65_536)
    cases = []
    for shape in BOTH if quick else SHAPES:
        cases += [Speed("4bit_nc", *shape, batch, context) for context, batch in product(contexts, batches)]
        if shape in BOTH:
            windows = (4,) if quick else (2, 4, 8)
            cases += [Speed("4bit_nc", *shape, batch, 16_384, window) for window, batch in product(windows, batches)]
        if shape == BOTH[0]:
            cases += [replace(case, correct=False) for case in uncorrected(batches)]
        if shape in BOTH:
            others = (preset for preset in PRESETS if preset != "4bit_nc")
            cases += [Speed(preset, *shape, batch, 16_384) for preset, batch in product(others, (1, 32))]
    # Caches are allocated by preset, head size and KV heads: no other order allocates as few at a time.
    return sorted(cases, key=lambda case: (_order(case.size, case.kv_heads), list(PRESETS).index(case.preset) != 1))


def uncorrected(batches: tuple[int, ...]) -> list[Speed]:
    """Return the cases that are also measured without the norm correction."""
    return [Speed("4bit_nc", *BOTH[0], batch, 16_384) for batch in batches]


def _order(size: int, kv_heads: int) -> int:
    return [(shape[0], shape[1]) for shape in SHAPES].index((size, kv_heads))


def layers(bytes_of_a_layer: int) -> int:
    """Return how many layers a CUDA graph has, so that together they exceed the L2 cache where they can."""
    return max(1, min(MOST_LAYERS, 300_000_000 // bytes_of_a_layer))
