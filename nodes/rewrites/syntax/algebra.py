"""Index expressions as polynomials with integer coefficients, so that `row * 2 * n + i` and `i + n * (row + row)` agree.

Symbols are variables that cannot be seen through (parameters, loop variables, `blockIdx.x`) and opaque terms (`a / b`,
calls, loads). Variables that are set once are replaced by what they are set to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tree_sitter import Node


@dataclass(frozen=True)
class Symbol:
    """`text` names it; `where` is the byte offset of its definition (-1 for built-ins and opaque terms)."""

    text: str
    where: int = -1
    parts: frozenset[Symbol] = frozenset()
    """The variables that an opaque term is made of."""
    operands: tuple[Polynomial, ...] = ()
    """Dividend and divisor of `/` and `%`."""
    operator: str = ""
    node: Node | None = field(default=None, compare=False, hash=False, repr=False)
    address: Polynomial | None = field(default=None, compare=False, hash=False, repr=False)
    """Of an element that is loaded, `p[i]`: p + i."""

    def depends_on(self, symbol: Symbol) -> bool:
        return self == symbol or any(part.depends_on(symbol) for part in self.parts)


Monomial = tuple[Symbol, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of integer multiples of products of symbols. The empty product is the constant."""

    terms: frozenset[tuple[Monomial, int]] = frozenset()

    @staticmethod
    def of(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
        total: dict[Monomial, int] = {}
        for monomial, coefficient in terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Polynomial(frozenset((m, c) for m, c in total.items() if c))

    @staticmethod
    def constant(value: int) -> Polynomial:
        return Polynomial.of([((), value)])

    @staticmethod
    def symbol(symbol: Symbol) -> Polynomial:
        return Polynomial.of([((symbol,), 1)])

    @staticmethod
    def product(*symbols: Symbol | str) -> Polynomial:
        """Of symbols, or of coordinates by their names."""
        factors = (symbol if isinstance(symbol, Symbol) else Symbol(symbol) for symbol in symbols)
        return Polynomial.of([(tuple(sorted(factors, key=lambda s: (s.text, s.where))), 1)])

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of([*self.terms, *other.terms])

    def __neg__(self) -> Polynomial:
        return Polynomial.of((m, -c) for m, c in self.terms)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of(
            (tuple(sorted(m + n, key=lambda s: (s.text, s.where))), c * d)
            for m, c in self.terms
            for n, d in other.terms
        )

    @property
    def value(self) -> int | None:
        """The number, where it is one."""
        if not self.terms:
            return 0
        (monomial, coefficient), *rest = self.terms
        return coefficient if not rest and not monomial else None

    def division(self, operator: str) -> tuple[Polynomial, Polynomial]:
        """Dividend and divisor of what is `a / b`, or `a % b`, and nothing else; nothing twice for any other value."""
        found = self.only is not None and self.only.operator == operator
        return self.only.operands if found else (Polynomial(), Polynomial())

    @property
    def symbols(self) -> set[Symbol]:
        return {symbol for monomial, _ in self.terms for symbol in monomial}

    @property
    def only(self) -> Symbol | None:
        """The symbol, where it is one."""
        (monomial, coefficient), *rest = self.terms or [((), 0)]
        return monomial[0] if not rest and coefficient == 1 and len(monomial) == 1 else None

    def depends_on(self, symbol: Symbol) -> bool:
        return any(s.depends_on(symbol) for s in self.symbols)

    def variables(self) -> set[Symbol]:
        """All variables, those inside opaque terms too."""
        found: set[Symbol] = set()
        stack = list(self.symbols)
        while stack:
            symbol = stack.pop()
            if symbol.parts:
                stack.extend(symbol.parts)
            else:
                found.add(symbol)
        return found

    def replaced(self, known: Callable[[Symbol], Polynomial | None]) -> Polynomial | None:
        """With each factor as something else; None where that is not known of one."""
        total = Polynomial()
        for monomial, coefficient in self.terms:
            product = Polynomial.constant(coefficient)
            for factor in monomial:
                if (other := known(factor)) is None:
                    return None
                product = product * other
            total = total + product
        return total

    def substitute(self, symbol: Symbol, value: Polynomial) -> Polynomial:
        """With a symbol that occurs as a factor replaced; opaque terms that contain it are left."""
        return self.replaced(lambda factor: value if factor == symbol else Polynomial.symbol(factor))

    def coefficient(self, symbol: Symbol) -> Polynomial:
        """What multiplies the first power of `symbol`."""
        return Polynomial.of(
            (tuple(s for s in monomial if s != symbol), c) for monomial, c in self.terms if monomial.count(symbol) == 1
        )

    def without(self, symbol: Symbol) -> Polynomial:
        """The terms that do not have `symbol` as a factor."""
        return Polynomial.of((monomial, c) for monomial, c in self.terms if symbol not in monomial)

    def over(self, divisor: Polynomial) -> Polynomial | None:
        """The quotient where every term divides without a rest, by a number or a product; None otherwise."""
        if len(divisor.terms) != 1:
            return None
        ((monomial, factor),) = divisor.terms
        terms = []
        for product, coefficient in self.terms:
            rest = list(product)
            for symbol in monomial:
                if symbol not in rest:
                    return None
                rest.remove(symbol)
            if coefficient % factor:
                return None
            terms.append((tuple(rest), coefficient // factor))
        return Polynomial.of(terms)
