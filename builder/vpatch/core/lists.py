"""Lay out entries of calls, literals and parameter lists in libcst's trees, in the layout that the list has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vpatch.core import cst


def parenthesized(new: Any, old: Any, parent: Any) -> Any:
    """Return `new` with the parentheses of `old`, or with its own if it could fall apart in `parent`."""
    if new.lpar:
        return new
    if old.lpar:
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    number = isinstance(new, cst.BaseNumber)  # `1.real` is no expression
    solid = cst.Name | cst.Call | cst.Attribute | cst.Subscript | cst.BaseString | cst.BaseDict | cst.BaseList
    roomy = cst.Arg | cst.Return | cst.Assign | cst.AnnAssign | cst.Expr | cst.If | cst.Element | cst.Param
    tight = cst.Tuple | cst.NamedExpr | cst.Yield | cst.GeneratorExp
    quoted = isinstance(new, cst.SimpleString) and new.value[0] in "\"'"
    spaced = quoted or not isinstance(old, cst.BaseString)  # `return"x"` needs no space
    if spaced and (isinstance(new, solid) or (number and not isinstance(parent, cst.Attribute))):
        return new
    if spaced and isinstance(parent, roomy) and not getattr(parent, "star", "") and not isinstance(new, tight):
        return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _uncommented(space: Any) -> Any:
    return space.with_changes(first_line=cst.TrailingWhitespace(newline=space.first_line.newline), empty_lines=())


def join(old: Sequence[Any], index: int, new: Any, opening: Any) -> list[Any]:
    """Insert `new` at `index` of a comma-separated list, in the list's layout: on one line, or one item a line.

    Comments stay on their lines, also one behind the last item.
    """
    space = _uncommented(opening) if isinstance(opening, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
    if index < len(old):
        return [*old[:index], new.with_changes(comma=cst.Comma(whitespace_after=space)), *old[index:]]
    if not old:
        return [new]
    last = old[-1]
    after = "whitespace_after_arg" if isinstance(last, cst.Arg) else "whitespace_after_param"
    comma = last.comma
    ended = isinstance(comma, cst.Comma)
    closing = comma.whitespace_after if ended else getattr(last, after, cst.SimpleWhitespace(""))
    if isinstance(closing, cst.ParenthesizedWhitespace):
        laid_out = space if isinstance(space, cst.ParenthesizedWhitespace) else closing
        space = laid_out.with_changes(first_line=closing.first_line, empty_lines=closing.empty_lines)
        closing = _uncommented(closing)
    if ended:
        last = last.with_changes(comma=comma.with_changes(whitespace_after=space))
        return [*old[:-1], last, new.with_changes(comma=comma.with_changes(whitespace_after=closing))]
    bare = {after: cst.SimpleWhitespace("")} if hasattr(last, after) else {}
    last = last.with_changes(comma=cst.Comma(whitespace_after=space), **bare)
    return [*old[:-1], last, new.with_changes(**({after: closing} if hasattr(new, after) else {}))]


_FIELDS = {"Call": "args", "List": "elements", "Tuple": "elements", "Set": "elements", "Dict": "elements"}


def with_entries(owner: Any, gone: Sequence[int], come: Sequence[tuple[int, str]]) -> Any:
    """Return a call or a literal without some entries and with others.

    Args:
        owner: libcst's node.
        gone: the indices of the entries that go.
        come: the entries that come, as code, each with the index of the old entry in front of which it comes.
    """
    name = _FIELDS[type(owner).__name__]
    some = list(getattr(owner, name))
    if name == "args" and some and isinstance(alone := some[0].value, cst.GeneratorExp) and not alone.lpar:
        bracketed = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
        some = [some[0].with_changes(value=alone.with_changes(**bracketed))]
    bracket = next((one for one in ("rbracket", "rbrace") if hasattr(owner, one)), "")
    closing = getattr(owner, bracket).whitespace_before if bracket else None
    if isinstance(closing, cst.ParenthesizedWhitespace) and some and isinstance(some[-1].comma, cst.Comma):
        # What stands behind the last comma belongs to the bracket; in a call, to the comma.
        some[-1] = some[-1].with_changes(comma=some[-1].comma.with_changes(whitespace_after=closing))
    todo = [(index, 0, number, code) for number, (index, code) in enumerate(come)]
    for index, goes, _, code in sorted([*todo, *((index, 1, 0, "") for index in gone)], reverse=True):
        if not goes:  # in front of the entry that has this index now, or had it until it went
            some = join(some, index, _entry(owner, code), _opening(owner))
            continue
        last = some.pop(index)
        if some and index == len(some):
            some[-1] = _ended_as(some[-1], last)
    changed = {name: some}
    if isinstance(closing, cst.ParenthesizedWhitespace) and some and isinstance(some[-1].comma, cst.Comma):
        behind = some[-1].comma.whitespace_after
        some[-1] = some[-1].with_changes(comma=some[-1].comma.with_changes(whitespace_after=cst.SimpleWhitespace("")))
        changed[bracket] = getattr(owner, bracket).with_changes(whitespace_before=behind)
    return owner.with_changes(**changed)


def _ended_as(entry: Any, last: Any) -> Any:
    """Return an entry with what ended the list behind another: its comma, if any, and the place of the bracket."""
    fields = {name: getattr(last, name) for name in ("whitespace_after_arg",) if hasattr(last, name)}
    if not isinstance(last.comma, cst.Comma):
        return entry.with_changes(comma=cst.MaybeSentinel.DEFAULT, **fields)
    mine, space = entry.comma.whitespace_after, last.comma.whitespace_after
    if isinstance(mine, cst.ParenthesizedWhitespace) and isinstance(space, cst.ParenthesizedWhitespace):
        space = space.with_changes(first_line=mine.first_line)  # a comment stays on its line
    return entry.with_changes(comma=last.comma.with_changes(whitespace_after=space), **fields)


def _entry(owner: Any, code: str) -> Any:
    match type(owner).__name__:
        case "Call":
            return cst.parse_expression(f"f({code})").args[0]  # type: ignore[attr-defined]
        case "Dict" | "Set":
            return cst.parse_expression(f"{{{code}}}").elements[0]  # type: ignore[attr-defined]
    return cst.parse_expression(f"[{code}]").elements[0]  # type: ignore[attr-defined]


def _opening(owner: Any) -> Any:
    """Return the white space behind the opening bracket."""
    if hasattr(owner, "whitespace_before_args"):
        return owner.whitespace_before_args
    bracket = getattr(owner, "lbracket", None) or getattr(owner, "lbrace", None)
    return bracket.whitespace_after if bracket else cst.SimpleWhitespace(" ")


def with_pieces(node: Any, keys: Sequence[str], header: str) -> Any:
    """Return a function or class with some pieces of its header as in `header`, which has an empty body."""
    new: Any = cst.parse_module(header).body[0]
    if "@" in keys:
        node = node.with_changes(decorators=new.decorators)
    if "bases" in keys:
        node = node.with_changes(**{name: getattr(new, name) for name in ("bases", "keywords", "lpar", "rpar")})
    if isinstance(new, cst.ClassDef):
        return node
    fields = {"->": "returns", "async": "asynchronous"}
    node = node.with_changes(**{name: getattr(new, name) for key, name in fields.items() if key in keys})
    changed = {kind: getattr(new.params, kind) for kind in ("star_arg", "star_kwarg") if kind in keys}
    for kind in ("posonly_params", "params", "kwonly_params"):
        named = [key.partition(" ")[2] for key in keys if key.startswith(f"{kind} ")]
        if named:
            changed[kind] = _with_parameters(node, kind, named, getattr(new.params, kind))
    for kind, sign in (("kwonly_params", "star_arg"), ("posonly_params", "posonly_ind")):
        alone = changed.get(sign, getattr(node.params, sign))
        if changed.get(kind) == [] and isinstance(alone, cst.ParamStar | cst.ParamSlash):  # they need a parameter
            changed[sign] = cst.MaybeSentinel.DEFAULT
    return node.with_changes(params=node.params.with_changes(**changed)) if changed else node


def placed(there: Sequence[str], wanted: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return the parameters of a function after a change of its header, in their order.

    Args:
        there: the names that it has.
        wanted: those of the changed header.
        named: the names that the change is about. A new one stands behind the nearest that is before it in `wanted`.
    """
    found = list(there)
    for number, name in enumerate(wanted):
        if name in named and name not in found:
            above = next((one for one in reversed(wanted[:number]) if one in found), None)
            found.insert(found.index(above) + 1 if above else 0, name)
    return [name for name in found if name not in named or name in wanted]


def _with_parameters(node: Any, kind: str, named: Sequence[str], wanted: Sequence[Any]) -> list[Any]:
    some, new = list(getattr(node.params, kind)), {one.name.value: one for one in wanted}
    there = [one.name.value for one in some]
    order = placed(there, [*new], named)
    some = [one for one in some if one.name.value in order]
    for place, name in enumerate(order):
        if name not in named:
            continue
        bare = new[name].with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_param=cst.SimpleWhitespace(""))
        if name in there:
            old = some[place]
            some[place] = bare.with_changes(comma=old.comma, whitespace_after_param=old.whitespace_after_param)
        else:
            some = join(some, place, bare, node.whitespace_before_params)
    return some
