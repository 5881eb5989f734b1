"""`fit`: opwire's normalisation. Fills declared defaults, strips undeclared properties, writes 5.0 as 5 for an integer.

Rules:
1. A value that conforms comes back as the same object, after one fast check; only otherwise it is walked.
2. The value is never changed. What is rebuilt shares every part that needed nothing with the original.
3. Nothing is invented: what has no declared default stays missing, what does not fit stays as it is.
4. What was valid stays valid: a repair that breaks its place (too many properties, two variants at once) is undone.
5. Fitting a fitted value does nothing. A repair that does not come to rest is given up for the original.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Literal, NamedTuple, cast

from opwire.errors import SchemaError
from opwire.schema.checks import Check, Checks, MeteredChecks
from opwire.schema.cost import ComplexityError
from opwire.schema.effort import Effort, ExhaustedError
from opwire.schema.evaluate import Evaluator
from opwire.schema.refs import JSONSchema, escaped
from opwire.schema.scope import Demand, Force, Scope
from opwire.schema.shape import Node, Shapes

_PASSES = 4  # one finds everything in all but contrived schemas, whose conditions depend on what a repair changes
_MAX_NESTED = 10_000  # defaults inside defaults can double at each level
_REPAIRABLE = (dict, list, float)


class Change(NamedTuple):
    """One thing that `fit` did. `path` is a JSON Pointer to the property that it added, removed or converted."""

    kind: Literal["filled", "stripped", "converted"]
    path: str


class Fitted(NamedTuple):
    """What `fit` made of a value: the very same object where there was nothing to do."""

    value: Any
    changes: tuple[Change, ...]


class Fitter:
    """Fits values to one 2020-12 schema. Everything is read and compiled when it is first needed."""

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._shapes = Shapes(root)
        self._checks = Checks(self._shapes)

    def conforms(self, value: Any, *, strip: bool) -> bool:
        """Whether a value is valid, with nothing to strip, to fill or to convert."""
        try:
            return self._checks.conforms(self._root, value, strip=strip)
        except (SchemaError, RecursionError, ComplexityError):
            return False

    def conformity(self, *, strip: bool) -> Check:
        """`conforms` as one bare call, for values that are known to be plain data."""
        try:
            return self._checks.conformity(self._root, strip=strip)
        except (SchemaError, RecursionError):
            return _unknown

    def fit(self, value: Any, *, strip: bool) -> Fitted:
        """The value with what could be repaired, and what was done. Never raises for plain data."""
        try:
            if self._checks.conforms(self._root, value, strip=strip):
                return Fitted(value, ())
            result = self._repair(value, MeteredChecks(self._checks, Effort(value)), strip)
            changes = tuple(_changes(value, result, ""))
            return Fitted(result if changes else value, changes)
        except (SchemaError, RecursionError, ComplexityError, ExhaustedError, _GivenUp):  # beyond analysis: left alone
            return Fitted(value, ())

    def _repair(self, value: Any, checks: MeteredChecks, strip: bool) -> Any:
        current = value
        for _ in range(_PASSES):
            result = self._step(current, checks, strip)
            if result is current or self._checks.conforms(self._root, result, strip=strip):
                return result
            current = result
        return value

    def _step(self, value: Any, checks: MeteredChecks, strip: bool) -> Any:
        """One pass. Only if the outcome still does not conform it is done again, with each place guarded."""
        result = self._walk(value, checks, strip, guarded=False)
        if result is value or self._checks.conforms(self._root, result, strip=strip):
            return result
        return self._walk(value, checks, strip, guarded=True)

    def _walk(self, value: Any, checks: MeteredChecks, strip: bool, *, guarded: bool) -> Any:
        walk = _Walk(self._shapes, checks, strip=strip, guarded=guarded)
        return walk.value(value, [Demand(self._root, Force.FILL)])


class _GivenUp(Exception):  # noqa: N818 - never leaves this module
    """The repair leads nowhere."""


class _EndlessDefault(Exception):  # noqa: N818 - never leaves this module
    """A default that holds itself, once it is filled in itself."""

    def __init__(self, schema: Node) -> None:
        self.schema = schema


class _Walk:
    """One pass over a value. Two frames a level: plain data may be 200 deep, Python's stack is 1,000."""

    def __init__(self, shapes: Shapes, checks: MeteredChecks, *, strip: bool, guarded: bool) -> None:
        self._shapes = shapes
        self._checks = checks
        self._evaluator = Evaluator(shapes, checks)
        self._strip = strip
        self._guarded = guarded
        self._filling: list[Node] = []  # the schemas of the defaults that are being fitted
        self._nested = 0  # defaults filled inside defaults

    def value(self, value: Any, demands: Sequence[Demand]) -> Any:
        """The value, repaired; the same object where there is nothing to do."""
        if isinstance(value, dict):
            return self._object(cast("dict[str, Any]", value), demands)
        if isinstance(value, list):
            return self._array(cast("list[Any]", value), demands)
        if type(value) is float and value.is_integer() and self._evaluator.scope(demands, value).wants_integer():
            return int(value)
        return value

    def _object(self, value: dict[str, Any], demands: Sequence[Demand]) -> dict[str, Any]:
        full, filled, scope = self._with_defaults(value, demands)
        result: dict[str, Any] = {}
        self._checks.count(len(full) * len(scope.applied))
        for name in scope.keeps(full, strip=self._strip):
            item = result[name] = full[name]
            if not isinstance(item, _REPAIRABLE):
                continue
            wanted = scope.member(name)
            if name in filled:
                self._filling.append(filled[name])
                try:
                    result[name] = self.value(item, wanted)
                except _EndlessDefault as endless:
                    if endless.schema is not filled[name]:
                        raise
                    del result[name]
                finally:
                    self._filling.pop()
            elif name in scope.declared or not self._conforms(wanted, item):
                result[name] = self.value(item, wanted)
        if _is_same(value, result) or self._empties(demands, value, result):
            return value
        if self._spoils(demands, value, result):
            result = {name: result.get(name, item) for name, item in value.items()}  # only what lies deeper
            return value if _is_same(value, result) or self._spoils(demands, value, result) else result
        return result

    def _array(self, value: list[Any], demands: Sequence[Demand]) -> list[Any]:
        if not any(issubclass(kind, _REPAIRABLE) for kind in set(map(type, value))):
            return value  # worth 0.1 µs an item: a million numbers are soon passed over
        scope = self._evaluator.scope(demands, value)
        result = value
        for index, item in enumerate(value):
            if not isinstance(item, _REPAIRABLE) or self._conforms(wanted := scope.item(index), item):
                continue
            fitted = self.value(item, wanted)
            if fitted is not item:
                result = list(value) if result is value else result
                result[index] = fitted
        return value if result is value or self._spoils(demands, value, result) else result

    def _with_defaults(
        self, value: dict[str, Any], demands: Sequence[Demand]
    ) -> tuple[dict[str, Any], dict[str, Node], Scope]:
        """The value with all defaults, their schemas, and what then applies: a default may decide on an `if`."""
        filled: dict[str, Node] = {}
        while True:
            scope = self._evaluator.scope(demands, value)
            missing = self._missing(scope, value)
            if not missing:
                return value, filled, scope
            filled |= {name: schema for name, (schema, _) in missing.items()}
            value = value | {name: deepcopy(default) for name, (_, default) in missing.items()}

    def _missing(self, scope: Scope, value: dict[str, Any]) -> dict[str, tuple[Node, Any]]:
        """The defaults to fill; of several for one property the first that is declared."""
        missing: dict[str, tuple[Node, Any]] = {}
        for node, force, _ in scope.applied:
            for name, (schema, default) in self._shapes.defaults(node).items() if force is Force.FILL else ():
                # A default that does not fit its own schema is no help to a value that is valid without it.
                if name in value or not (name in scope.required or self._checks.is_usable(schema, default)):
                    continue
                if any(schema is each for each in self._filling):
                    raise _EndlessDefault(schema)
                missing.setdefault(name, (schema, default))
        if self._filling:
            self._nested += len(missing)
            if self._nested > _MAX_NESTED:
                raise _GivenUp
        return missing

    def _conforms(self, demands: Sequence[Demand], value: Any) -> bool:
        """Whether one of many alike can be passed over. Only arrays and maps ask: each part asked is compiled."""
        return all(self._checks.conforms(each.schema, value, strip=self._strip) for each in demands)

    def _empties(self, demands: Sequence[Demand], value: dict[str, Any], result: dict[str, Any]) -> bool:
        """Whether nothing would remain, in vain: an object of which no property is known is another thing."""
        return bool(value) and value.keys().isdisjoint(result) and not self._evaluator.meets(demands, result)

    def _spoils(self, demands: Sequence[Demand], value: Any, result: Any) -> bool:
        """Whether something that was valid no longer is."""
        return self._guarded and any(
            not self._checks.is_valid(each.schema, result) and self._checks.is_valid(each.schema, value)
            for each in demands
        )


def _is_same(value: dict[str, Any], result: dict[str, Any]) -> bool:
    return len(value) == len(result) and all(name in result and result[name] is item for name, item in value.items())


def _changes(old: Any, new: Any, path: str) -> Iterator[Change]:
    """What differs, with a last look at rule 3: a leaf that is not the same one is a repair gone wrong."""
    if old is new:
        return
    if type(old) is float and type(new) is int and old == new:
        yield Change("converted", path)
    elif isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        for name, item in before.items():
            if name in after:
                yield from _changes(item, after[name], f"{path}/{escaped(name)}")
            else:
                yield Change("stripped", f"{path}/{escaped(name)}")
        yield from (Change("filled", f"{path}/{escaped(name)}") for name in after if name not in before)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (item, fitted) in enumerate(zip(cast("list[Any]", old), cast("list[Any]", new), strict=True)):
            yield from _changes(item, fitted, f"{path}/{index}")
    else:
        raise _GivenUp


def _unknown(_value: Any) -> bool:
    return False
