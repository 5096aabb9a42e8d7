"""The rules for docstrings of public functions, methods and classes of the product.

What the linter's `D` cannot say: an imperative verb in front, a shape beside every array, and the
errors that a function raises itself. A method that a documented interface declares is documented
there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

PACKAGES = ("proto/driftline", "source_agent", "warehouse_agent")
# The verbs that a docstring may begin with. Add to them what is an imperative.
VERBS = frozenset(
    """
    abort accept accumulate acquire add adjust admit adopt advance aggregate align allocate allow
    answer append apply approximate arrange ask assemble assert assign attach audit await begin bind
    bound break bring buffer build bump cache calculate call cancel cap check choose claim clamp
    classify clean clear close coarsen collect combine commit compare complete compose compress
    compute configure confirm connect construct consume continue convert copy correct count cover
    create cut deal decide declare decode decompress decrease decrypt deduce define delete deliver
    derive describe deserialize detect determine diagnose discard display divide do download draw
    drop dump emit empty encode encrypt end ensure enroll enter enumerate escape estimate evaluate
    examine exchange execute exit expand expect explain export express extend extract fail fetch
    fill filter find finish fit flush fold follow forecast forget form format forward free freeze
    gather generate get give go grant group grow guard guess hand handle hash hold identify ignore
    implement import increase index indicate infer inform initialize insert inspect install
    interpret interrupt invert invoke issue iterate join keep kill leave let limit link list listen
    load locate lock log look lower make map mark match measure merge mix model modify monitor mount
    move name negotiate note notify observe obtain offer open order pack pad parse partition pass
    pause perform pick pickle place plan poll predict prefer prepare preserve present prevent price
    print probe process produce prompt propose prove provide prune publish pull push put query quote
    raise read rebuild receive recompute reconnect record recover reduce refer refine refresh refuse
    register reject release reload remember remove rename render reorder repair repeat replace reply
    report represent request require reserve reset resolve restart restore restrict resume retry
    return reuse reverse revert rewrite round run sample save scale scan schedule search select send
    separate serialize serve set settle shift ship show shrink shut sign signal simulate skip sleep
    solve sort spawn split spool stage start state stop store stream strip submit subtract sum
    summarize supply support survey suspend swap switch take tell terminate test throttle time track
    transfer transform translate transmit traverse trim truncate try turn undo unlock unpack update
    upgrade use validate verify visit wait walk warn watch weigh withdraw withhold wrap write yield
    """.split()  # noqa: SIM905 - a list of strings would be a page
)
# What no docstring begins with, of a class or property either: fragments (STYLE, "Language").
FRAGMENTS = frozenset(
    ("of", "as", "what", "whether", "where", "which", "who", "why", "how", "when", "these", "those")
)
ARRAYS = re.compile(r"\b(NDArray|U64|I64|Bools|Integers|Positions|Floats)\b")
SHAPE = re.compile(r"\[[^\]]+\]|shape|scalar")


@dataclass(frozen=True)
class Finding:
    """One docstring that is missing or not of the kind."""

    path: str
    line: int
    name: str
    reason: str

    @property
    def room(self) -> str:
        """The room that the module lies in."""
        folders = self.path.removeprefix("proto/").split("/")
        return "/".join(folders[:2]) if len(folders) > 2 else folders[0]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings() -> list[Finding]:
    """Return what is wrong with the public docstrings of the product, by path and line."""
    trees = _trees()
    interfaces = [
        {n for n, f in methods.items() if _public(n) and ast.get_docstring(f)}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Protocol" in {_bare(b) for b in node.bases}
        for methods in [_methods(node)]
    ]
    return [
        Finding(str(path.relative_to(ROOT)), node.lineno, name, reason)
        for path, tree in trees.items()
        for name, node, owner in _definitions(tree)
        for reason in _wrong(node, owner, interfaces)
    ]


def public_count() -> int:
    """Return the number of public functions, methods and classes of the product."""
    return sum(1 for tree in _trees().values() for _ in _definitions(tree))


def _trees() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.startswith("wire_pb2")
    }


def _definitions(
    tree: ast.Module,
) -> Iterator[tuple[str, Function | ast.ClassDef, ast.ClassDef | None]]:
    """Yield public definitions of a module and of its public classes, with their class."""
    for node in tree.body:
        if isinstance(node, Function) and _public(node.name):
            yield node.name, node, None
        elif isinstance(node, ast.ClassDef) and _public(node.name):
            yield node.name, node, None
            for name, method in _methods(node).items():
                if _public(name):
                    yield f"{node.name}.{name}", method, node


def _wrong(
    node: Function | ast.ClassDef, owner: ast.ClassDef | None, interfaces: list[set[str]]
) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text is None:
        if owner is None or not _declared(node.name, owner, interfaces):
            yield "no docstring"
        return
    first = re.split(r"[^\w'’-]", text.strip(), maxsplit=1)[0].lower()
    if isinstance(node, ast.ClassDef) or _is_property(node):
        if first in FRAGMENTS:
            yield f"begins with the fragment `{first}`"
        return
    if first not in VERBS:
        yield f"begins with `{first}`, which is no imperative verb (VERBS)"
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arrays = [a.arg for a in arguments if a.annotation and _is_array(a.annotation)]
    if arrays and not SHAPE.search(text):
        yield f"no shape of {', '.join(arrays)}"
    if node.returns and _is_array(node.returns) and not SHAPE.search(text):
        yield "no shape of what is returned"
    for error in sorted(_raised(node)):
        if error not in text:
            yield f"does not say that it raises {error}"


def _public(name: str) -> bool:
    return not name.startswith("_")


def _bare(node: ast.expr) -> str:
    """Return the last name of an expression: `Protocol` of `typing.Protocol[T]`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return (
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", type(node).__name__)
    )


def _methods(owner: ast.ClassDef) -> dict[str, Function]:
    """Return the methods of a class, but overloads and setters."""
    return {
        n.name: n
        for n in owner.body
        if isinstance(n, Function)
        and not {_bare(d) for d in n.decorator_list} & {"overload", "setter"}
    }


def _is_property(node: Function) -> bool:
    return bool({_bare(d) for d in node.decorator_list} & {"property", "cached_property"})


def _is_array(annotation: ast.expr) -> bool:
    """Return True if an array is named: directly, in a union or in a tuple."""
    return ARRAYS.search(ast.unparse(annotation)) is not None


def _declared(name: str, owner: ast.ClassDef, interfaces: list[set[str]]) -> bool:
    """Return True if a documented interface declares the method and the class has at least half of
    the interface, or if the class has a base, whose methods it overrides."""
    mine = {n for n in _methods(owner) if _public(n)}
    if any(name in one and 2 * len(one & mine) >= len(one) for one in interfaces):
        return True
    bases = {_bare(b) for b in owner.bases}
    return bool(bases - {"Protocol", "Enum", "StrEnum", "IntEnum", "NamedTuple", "Generic"})


def _raised(node: Function) -> set[str]:
    """Return the errors that the function raises itself, by class."""
    found = set()
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        at = waiting.pop()
        if isinstance(at, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(at, ast.Raise) and isinstance(at.exc, ast.Call):
            name = _bare(at.exc)
            if name[:1].isupper() and name not in {"AssertionError", "NotImplementedError", "Exit"}:
                found.add(name)
        waiting += ast.iter_child_nodes(at)
    return found
