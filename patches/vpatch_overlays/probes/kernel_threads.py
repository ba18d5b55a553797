"""A model of Triton that runs the code of vLLM's kernels without Triton and without a GPU: one program, several warps.

It serves kernels that copy bytes, and what kernels of states compute before they load one: it knows integers, pointers
and tensors of one dimension, but no floating point. Lane `i` of `n` belongs to warp `i * warps // n`. A warp runs up to
a barrier, or to its end, before the next one starts, which a GPU may do. Triton's interpreter does not: there, all
lanes load before any lane stores, so that it shows no race within a program.
"""

import ast
import operator
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple

WARPS = 4


class Pointer(NamedTuple):
    """A pointer type, with the size of what it points to, in bytes."""

    size: int


class Value:
    """An integer, or a list of one for each lane. Those of a pointer to `size` bytes are addresses."""

    def __init__(self, content: int | list[int], size: int = 0) -> None:
        self.content, self.size = content, size

    def lanes(self, count: int) -> list[int]:
        """Return the integers of `count` lanes."""
        return self.content if isinstance(self.content, list) else [self.content] * count

    def to(self, kind: Pointer | int) -> "Value":
        """Convert to a pointer type, or to an integer type, all of which are alike here."""
        return Value(self.content, kind.size if isinstance(kind, Pointer) else 0)

    def __getitem__(self, _axes: object) -> "Value":
        return self  # with another axis; only tensors of one lane get one

    def __index__(self) -> int:
        """Return the only integer, or that of the first lane."""
        return self.content[0] if isinstance(self.content, list) else self.content

    def __bool__(self) -> bool:
        return self.__index__() != 0

    def __neg__(self) -> "Value":
        return combine(operator.sub, 0, self)


def combine(act: Callable[[int, int], int], left: Value | int, right: Value | int) -> Value:
    """Apply an operator to each lane. An integer that is added to a pointer counts what it points to."""
    left, right = (one if isinstance(one, Value) else Value(one) for one in (left, right))
    count = max(len(one.content) if isinstance(one.content, list) else 0 for one in (left, right))
    size = max(left.size, right.size) if act in (operator.add, operator.sub) else 0
    pairs = zip(
        *([lane * (size if size and not one.size else 1) for lane in one.lanes(count or 1)] for one in (left, right)),
        strict=True,
    )
    found = [int(act(*pair)) for pair in pairs]
    return Value(found if count else found[0], size)


def _operators() -> None:
    for name in ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"):
        act, plain = getattr(operator, name), name.rstrip("_")
        setattr(Value, f"__{plain}__", lambda self, other, act=act: combine(act, self, other))
        setattr(Value, f"__r{plain}__", lambda self, other, act=act: combine(act, other, self))


_operators()


class Reached(Exception):
    """A kernel loads from memory that is watched, from `address` on."""

    def __init__(self, address: int) -> None:
        super().__init__(address)
        self.address = address


class Machine:
    """Memory with tensors, and the warps of one program.

    Attributes:
        data: the memory; an address is an index.
        watched: the addresses from which no load is served.
        barriers: how many times all warps waited for each other.
    """

    def __init__(self) -> None:
        self.data = bytearray(64)
        self.watched = range(0)
        self.barriers = 0
        self._current, self._turns, self._waiting = 0, [threading.Semaphore(0) for _ in range(WARPS)], set[int]()
        self._parked = threading.Semaphore(0)

    def put(self, values: Sequence[int], size: int = 4) -> Value:
        """Lay out integers of `size` bytes in memory; return the pointer to them."""
        start = len(self.data)
        self.data += b"".join(value.to_bytes(size, "little", signed=True) for value in values)
        self.data += bytes(-len(self.data) % 64)
        return Value(start, size)

    def run(self, kernel: Callable[..., None], order: Sequence[int] = range(WARPS), **arguments: Any) -> None:
        """Run a kernel, the warps in this order.

        Raises:
            Exception: the kernel raised it.
        """
        errors: list[Exception] = []

        def warp(number: int) -> None:
            self._turns[number].acquire()
            try:
                kernel(**arguments)
            except Exception as error:
                errors.append(error)
            self._parked.release()

        threads = {number: threading.Thread(target=warp, args=(number,), daemon=True) for number in order}
        for thread in threads.values():
            thread.start()
        running = list(order)
        while running and not errors:
            self._waiting.clear()
            for number in running:
                self._current = number
                self._turns[number].release()
                self._parked.acquire()
            running = [number for number in running if number in self._waiting]
            self.barriers += bool(running)
        if errors:
            raise errors[0]

    def language(self) -> SimpleNamespace:
        """Return what kernels use of `triton.language`."""
        types = {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)}
        return SimpleNamespace(
            **types,
            float32=4,
            pointer_type=Pointer,
            program_id=lambda axis: Value(0),
            arange=lambda start, end: Value(list(range(start, end))),
            zeros=lambda shape, dtype: Value(0),
            load=self._load,
            store=self._store,
            debug_barrier=self._wait,
            minimum=lambda left, right: combine(min, left, right),
            maximum=lambda left, right: combine(max, left, right),
            cdiv=lambda left, right: -(-left // right),
        )

    def _load(self, pointer: Value, mask: Value | int = 1, other: int = 0) -> Value:
        count = len(pointer.content) if isinstance(pointer.content, list) else 1
        used = (mask if isinstance(mask, Value) else Value(mask)).lanes(count)
        addresses = pointer.lanes(count)
        if reached := [
            address for address, use in zip(addresses, used, strict=True) if use and address in self.watched
        ]:
            raise Reached(min(reached))
        found = [self._read(one, pointer.size) if use else other for one, use in zip(addresses, used, strict=True)]
        return Value(found if isinstance(pointer.content, list) else found[0])

    def _read(self, address: int, size: int) -> int:
        return int.from_bytes(self.data[address : address + size], "little", signed=True)

    def _store(self, pointer: Value, data: Value | int, mask: Value | int = 1) -> None:
        count = len(pointer.content) if isinstance(pointer.content, list) else 1
        values, used = ((one if isinstance(one, Value) else Value(one)).lanes(count) for one in (data, mask))
        for lane, (address, value, use) in enumerate(zip(pointer.lanes(count), values, used, strict=True)):
            if use and lane * WARPS // count == (self._current if count > 1 else 0):
                self.data[address : address + pointer.size] = value.to_bytes(pointer.size, "little", signed=True)

    def _wait(self) -> None:
        number = self._current
        self._waiting.add(number)
        self._parked.release()
        self._turns[number].acquire()


def kernels(file: Path, machine: Machine) -> dict[str, Any]:
    """Return the functions of a module that use `triton.language`, by name; no other code of the module runs."""
    found: dict[str, Any] = {"tl": machine.language()}
    exec(_compiled(file), found)  # noqa: S102
    return found


@cache
def _compiled(file: Path) -> CodeType:
    functions = []
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and any(isinstance(n, ast.Name) and n.id == "tl" for n in ast.walk(node)):
            node.decorator_list = []
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
            functions.append(node)
    return compile(ast.Module([*functions], []), str(file), "exec")
