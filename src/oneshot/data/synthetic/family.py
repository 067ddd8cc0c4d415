"""Generate a family world: a synthetic knowledge graph whose facts follow from known rules.

People live in generations, marry someone who lives nearby and have children; kinship facts follow.
A fact (x, mother, m) reads "the mother of x is m". The base relations are complete in train;
a fifth of the derived facts is held out, and each of those follows from train by a known rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Piece = tuple[str, Ints, Ints]  # relation, heads [k], tails [k]

MIN_PEOPLE, MAX_PEOPLE = 100, 20_000_000
MIN_GENERATIONS, MAX_GENERATIONS, MIN_GENERATION_SIZE = 3, 50, 8
MAX_CHILDREN = 6
NOISE = 16.0  # standard deviation of the distance between spouses, in positions of the generation
FAR_SHARE = 0.01  # share of people whose spouse may live anywhere in the generation
FOLDS = 10  # of the derived facts, one fold is valid, one is test and the others are train

BASE_RELATIONS = ("father", "mother", "husband", "wife", "brother", "sister")
DERIVED_RELATIONS = ("grandfather", "grandmother", "uncle", "aunt")
RELATIONS = BASE_RELATIONS + DERIVED_RELATIONS


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words("""
    Ada Agnes Alma Amelie Anna Astrid Beatrice Bianca Brigitte Camille Carla Cecilia Charlotte Clara
    Cora Dagmar Diana Dora Edith Elena Elsa Emma Erika Eva Fiona Flora Frida Gerda Greta Hanna
    Helene Ida Ingrid Irene Iris Johanna Julia Karin Katharina Laura Lea Lena Lucia Magda Margot
    Maria Martha Mila Nina Nora Olga Paula Petra Rosa Sofia Stella Tessa Ursula Vera Wilma
""")
MEN = _words("""
    Adam Albert Anton Arthur Axel Benno Bernhard Boris Bruno Carl Caspar Conrad Daniel David Dominik
    Edgar Eduard Emil Erik Felix Ferdinand Frank Georg Gregor Gustav Hannes Heinrich Hugo Igor Ivan
    Jakob Jonas Julius Karsten Klaus Konstantin Lars Leo Lorenz Ludwig Lukas Marius Martin Matthias
    Max Moritz Nils Oskar Otto Paul Peter Rafael Robert Simon Stefan Theodor Tobias Valentin Viktor
    Walter
""")
SURNAMES = _words("""
    Adler Albrecht Arnold Bach Bauer Baumann Beck Becker Berger Bergmann Binder Brandt Braun Brenner
    Buchner Busch Conte Dahl Decker Dietrich Drechsler Ebner Eckert Engel Ernst Faber Falk Fiedler
    Fink Fischer Forster Frey Fuchs Gerber Gruber Haas Hahn Hartmann Heller Herzog Hirsch Hofer
    Hoffmann Holm Huber Jansen Jung Kaiser Keller Kern Klein Koch Kramer Kraus Kuhn Lang Lehmann
    Lind Lorenzen Lutz Maier Marten Maurer Menzel Moser Nagel Neumann Novak Olsen Ott Pfeiffer Pohl
    Raab Reiter Richter Ritter Roth Sander Schenk Schmidt Schneider Schreiber Schubert Seidel Sommer
    Stark Steiner Stern Thoma Torres Ulrich Vogel Vogt Wagner Weber Weiss Winkler Wolf Ziegler
    Zimmer
""")
GIVEN_NAMES = WOMEN + MEN


@dataclass(frozen=True)
class Rule:
    """A rule: `head` holds from x to y if the relations of `body`, in order, lead from x to y."""

    head: str
    body: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.head} ← {' ∘ '.join(self.body)}"


RULES = tuple(
    Rule(head, (parent, last))
    for head, last in zip(DERIVED_RELATIONS, ("father", "mother", "brother", "sister"), strict=True)
    for parent in ("mother", "father")
)


@dataclass(frozen=True, eq=False)  # arrays have no truth value, so worlds compare by identity
class FamilyWorld:
    """A generated world; people are the ids 0 .. num_people - 1, oldest generation first.

    `train`, `valid` and `test` are int64 [n, 3] of (head id, relation id, tail id) and disjoint;
    together they hold every true fact. The order of train has no meaning; valid and test are
    shuffled, so that a prefix is a fair sample. `rules` derive all derived facts and no others.
    Other rules that hold here, such as grandmother ← grandfather ∘ wife, are not listed.
    """

    relations: tuple[str, ...]
    train: Longs
    valid: Longs
    test: Longs
    rules: tuple[Rule, ...]
    num_people: int
    _given: Bytes = field(repr=False)  # [num_people], into GIVEN_NAMES
    _surname: Bytes = field(repr=False)  # [num_people], into SURNAMES

    def names(self, start: int, stop: int) -> list[str]:
        """Name the people start .. stop - 1, such as "Clara Weber 1042": unique and readable."""
        if not 0 <= start <= stop <= self.num_people:
            raise ValueError(f"need 0 <= start <= stop <= {self.num_people}, not {start}, {stop}")
        given, surname = self._given[start:stop].tolist(), self._surname[start:stop].tolist()
        people = zip(given, surname, range(start, stop), strict=True)
        return [f"{GIVEN_NAMES[g]} {SURNAMES[s]} {person}" for g, s, person in people]


@dataclass(frozen=True, eq=False)
class _Population:
    """The people, their marriages and their parents.

    `bounds` int64 [generations + 1] are the first ids of the generations, then the end; `female`
    is bool [n]; `husband` and `wife` are int32 [couples]. `family` int32 [n + MAX_CHILDREN] is the
    couple that each person was born to; -1 for founders and for padding past the last person.
    """

    bounds: Longs
    female: Bools
    family: Ints
    husband: Ints
    wife: Ints


def generate(people: int, generations: int = 6, seed: int = 0) -> FamilyWorld:
    """Generate the family world of exactly `people` people; deterministic in its arguments."""
    if not MIN_PEOPLE <= people <= MAX_PEOPLE:
        raise ValueError(f"people must be {MIN_PEOPLE:,} to {MAX_PEOPLE:,}, not {people:,}")
    if not MIN_GENERATIONS <= generations <= MAX_GENERATIONS:
        limits = f"{MIN_GENERATIONS} to {MAX_GENERATIONS}"
        raise ValueError(f"generations must be {limits}, not {generations}")
    if people // generations < MIN_GENERATION_SIZE:
        needed = f"{generations} generations of at least {MIN_GENERATION_SIZE} each"
        raise ValueError(f"{people} people are too few for {needed}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, not {seed}")
    # Independent random streams: a change to the names or the split does not change the families.
    for_families, for_names, for_split = (
        np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(seed).spawn(3)
    )
    population = _populate(for_families, people, generations)
    given, surname = _draw_names(for_names, population)
    train, valid, test = _split(for_split, population)
    return FamilyWorld(RELATIONS, train, valid, test, RULES, people, given, surname)


def _populate(rng: np.random.Generator, people: int, generations: int) -> _Population:
    """Generate marriages and children, one generation after another."""
    # An even number of founders: all of them marry, because a single founder would have no fact.
    founders = people // generations // 2 * 2
    bounds = np.concatenate(([0], np.linspace(founders, people, generations).astype(np.int64)))
    female = np.empty(people, dtype=np.bool_)
    family = np.full(people + MAX_CHILDREN, -1, dtype=np.int32)

    # For marriage, each founder counts as a family of one.
    female[:founders], husband, wife = _marry(rng, np.arange(founders, dtype=np.int32))
    husbands, wives, couples = [husband], [wife], 0
    for start, stop in zip(bounds[1:-1].tolist(), bounds[2:].tolist(), strict=True):
        parents = len(husbands[-1])
        # A founder couple without children would be cut off from the rest of the world.
        children = _count_children(rng, parents, stop - start, at_least=int(couples == 0))
        born_to = np.arange(couples, couples + parents, dtype=np.int32)
        family[start:stop] = np.repeat(born_to, children)
        couples += parents
        female[start:stop], husband, wife = _marry(rng, family[start:stop])
        husbands.append(husband + np.int32(start))
        wives.append(wife + np.int32(start))
    return _Population(bounds, female, family, np.concatenate(husbands), np.concatenate(wives))


def _count_children(rng: np.random.Generator, couples: int, children: int, at_least: int) -> Longs:
    """Distribute exactly `children` children: int64 [couples], each at_least .. MAX_CHILDREN.

    Every couple has the same number of slots, so the counts are nearly binomial. Poisson counts
    would vary more, have no upper bound and give people too many siblings.
    """
    slots, rest = np.full(couples, MAX_CHILDREN - at_least), children - at_least * couples
    return at_least + rng.multivariate_hypergeometric(slots, rest, method="count")


def _marry(rng: np.random.Generator, family: Ints) -> tuple[Bools, Ints, Ints]:
    """Draw the sexes and the couples of a generation, given the birth families int32 [size].

    Returns `female` bool [size] and the positions of husbands and wives, int32 [couples]. Couples
    are ordered by where they live, and so are their children. Siblings who are paired (about 3% of
    people) and one of an odd number of people stay single.
    """
    size = len(family)
    while True:
        place = np.arange(size) + rng.normal(0.0, NOISE, size)
        far = np.flatnonzero(rng.random(size) < FAR_SHARE)
        place[far] = rng.uniform(0.0, size, len(far))
        order = np.argsort(place, kind="stable").astype(np.int32)
        one, other = order[0 : size - 1 : 2], order[1::2]  # neighbours in the order, who marry
        # The sexes are drawn after the couples. Drawn first, men and women of the same rank would
        # live further apart in larger generations.
        female = rng.integers(0, 2, size, dtype=np.bool_)
        female[other] = ~female[one]
        allowed = family[one] != family[other]
        one, other = one[allowed], other[allowed]
        # Too few couples could not have all the children. Only tiny generations may fail by chance
        # and are drawn again. Some draw succeeds: at most 6 of 8 or more people are siblings.
        if 4 * len(one) >= size:
            swap = female[one]
            return female, np.where(swap, other, one), np.where(swap, one, other)


def _draw_names(rng: np.random.Generator, population: _Population) -> tuple[Bytes, Bytes]:
    """Draw given names that fit the sex and surnames inherited from the father: uint8 [n] each."""
    female, bounds = population.female, population.bounds
    given = rng.integers(0, len(WOMEN), len(female), dtype=np.uint8)
    given[~female] += len(WOMEN)  # men's names follow women's, and there are as many
    surname = rng.integers(0, len(SURNAMES), len(female), dtype=np.uint8)  # only founders keep it
    for start, stop in zip(bounds[1:-1].tolist(), bounds[2:].tolist(), strict=True):
        surname[start:stop] = surname[population.husband[population.family[start:stop]]]
    return given, surname


def _split(rng: np.random.Generator, population: _Population) -> tuple[Longs, Longs, Longs]:
    """Split all facts into train, valid and test, int64 [n, 3] each."""
    parts: tuple[list[Piece], ...] = ([], [], [])
    train, valid, test = parts
    for relation, heads, tails in _facts(population):
        if relation in BASE_RELATIONS:
            train.append((relation, heads, tails))
            continue
        fold = rng.integers(0, FOLDS, len(heads), dtype=np.uint8)
        for part, chosen in zip(parts, (fold > 1, fold == 0, fold == 1), strict=True):
            part.append((relation, heads[chosen], tails[chosen]))
    held_out = (_stack(part) for part in (valid, test))
    shuffled_valid, shuffled_test = (facts[rng.permutation(len(facts))] for facts in held_out)
    return _stack(train), shuffled_valid, shuffled_test


def _facts(population: _Population) -> Iterator[Piece]:
    """Yield every true fact exactly once, in chunks of one relation each.

    No fact is derived twice: siblings never marry and all marriages last, so the families of a
    person's two parents have no member in common.
    """
    husband, wife, family = population.husband, population.wife, population.family
    yield "husband", wife, husband
    yield "wife", husband, wife

    people = len(population.female)
    born = np.arange(population.bounds[1], people, dtype=np.int32)
    yield "father", born, husband[family[born]]
    yield "mother", born, wife[family[born]]
    yield from _siblings(population, born, born, "brother", "sister")

    born = np.arange(population.bounds[2], people, dtype=np.int32)  # to parents with parents
    for spouses in (husband, wife):
        parent = spouses[family[born]]
        yield "grandfather", born, husband[family[parent]]
        yield "grandmother", born, wife[family[parent]]
        yield from _siblings(population, born, parent, "uncle", "aunt")


def _siblings(world: _Population, heads: Ints, of: Ints, male: str, female: str) -> Iterator[Piece]:
    """Yield the facts that relate heads[i] to the siblings of of[i]; both arrays are int32 [k].

    Siblings have contiguous ids, so they are found within a few ids on both sides.
    """
    family = world.family[of]
    reach = MAX_CHILDREN - 1
    for offset in (*range(-reach, 0), *range(1, reach + 1)):
        other = of + np.int32(offset)
        found = np.flatnonzero(world.family[other] == family)
        head, sibling = heads[found], other[found]
        is_female = world.female[sibling]
        yield male, head[~is_female], sibling[~is_female]
        yield female, head[is_female], sibling[is_female]


def _stack(pieces: list[Piece]) -> Longs:
    """Stack chunks into int64 [n, 3], and empty the list to free memory along the way."""
    facts = np.empty((sum(len(heads) for _, heads, _ in pieces), 3), dtype=np.int64)
    end = len(facts)
    while pieces:
        relation, heads, tails = pieces.pop()
        rows = facts[end - len(heads) : end]
        rows[:, 0], rows[:, 1], rows[:, 2] = heads, RELATIONS.index(relation), tails
        end -= len(heads)
    return facts
