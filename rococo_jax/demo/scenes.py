"""Scenes, composed from a seed, and their pictures.

A scene has a place, a thing (or several of one kind), often a second thing in a relation to the first, and sometimes a
third in the air. The same (split, seed, index) gives the same scene on every machine and in any order.

The splits share no composition: a hash of the kinds of the two things and the place decides whether a scene may occur
in `train`, `validation` or `test`. Training scenes have every kind and every place, but no test scene's combination.
"""

from dataclasses import dataclass

from PIL import Image

from rococo_jax.demo.drawing import COLOURS, Brush, RandomStream, blend, dark, light
from rococo_jax.demo.objects import OBJECTS, PLACES, ImageFile, ObjectKind
from rococo_jax.storage import hash_json

SPLITS = ("train", "validation", "test")
# Of 20 compositions 16 are for training and 2 each for the others.
_SPLIT_OF_TWENTIETH = ("test", "test", "validation", "validation", *("train",) * 16)

_SIZES = {"small": 0.74, "": 1.0, "big": 1.24}


@dataclass(frozen=True)
class Item:
    """Things of one kind, colour and size. `size` is `small`, `big` or empty."""

    kind: ObjectKind
    colour: str
    count: int = 1
    size: str = ""

    @property
    def height(self) -> float:
        """Height of one of them as a share of the picture's; things in a group are smaller."""
        scale = (1.0, 1.0, 0.8, 0.7, 0.62)[self.count]
        return self.kind.size * _SIZES[self.size] * scale


@dataclass(frozen=True)
class Scene:
    """The content of a picture.

    Attributes:
        key: (split, seed, index), which decides everything else.
        relation: of `main` to `other`: left of, right of, on, above or in front of; or alone.
        other: the second thing, None where `main` is alone.
        extra: something in the air, or None.
    """

    key: tuple[str, int, int]
    place: ImageFile
    main: Item
    relation: str = "alone"
    other: Item | None = None
    extra: Item | None = None

    @property
    def name(self) -> str:
        """Name of the scene, unique within a split and seed."""
        return f"scene_{self.key[2]:06d}"

    @property
    def split(self) -> str:
        """The split in which this composition may occur."""
        kinds = sorted(item.kind.name for item in (self.main, self.other) if item is not None)
        return _SPLIT_OF_TWENTIETH[int(hash_json([self.place.name, *kinds])[:8], 16) % 20]


def make_scene(split: str, seed: int, index: int) -> Scene:
    """Compose scene `index` of a split. Raises ValueError: the split is none of `SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
    rng = RandomStream("scene", split, seed, index)
    while True:
        scene = _compose((split, seed, index), rng)
        if scene.split == split:
            return scene


def _compose(key: tuple[str, int, int], rng: RandomStream) -> Scene:
    place = rng.choose(PLACES)
    roll = rng.between(0, 1)
    if roll < 0.2:
        main, other, relation = _item(rng, OBJECTS, most=4), None, "alone"
    elif roll < 0.58:
        grounded = [kind for kind in OBJECTS if not kind.flies]
        main, relation = _item(rng, grounded, most=2), rng.choose(("left of", "right of"))
        other = _item(rng, _without_kind_of(grounded, main))
    elif roll < 0.73:
        main, relation = _item(rng, [kind for kind in OBJECTS if kind.perches]), "on"
        other = _item(rng, _without_kind_of([kind for kind in OBJECTS if kind.seat is not None], main))
    elif roll < 0.86:
        main, relation = _item(rng, [kind for kind in OBJECTS if kind.flies], most=2), "above"
        other = _item(rng, [kind for kind in OBJECTS if not kind.flies])
    else:
        small = [kind for kind in OBJECTS if not kind.flies and not kind.backdrop and kind.size < 0.5]
        main, relation = _item(rng, small), "in front of"
        other = _item(rng, _without_kind_of([kind for kind in OBJECTS if kind.backdrop], main))
    extra = None
    if relation not in ("above", "alone") and rng.chance(0.3):
        fliers = [kind for kind in OBJECTS if kind.flies]
        extra = Item(kind := rng.choose(fliers), rng.choose(kind.colours), size="small")
    return Scene(key, place, main, relation, other, extra)


def _without_kind_of(kinds: list[ObjectKind], main: Item) -> list[ObjectKind]:
    return [kind for kind in kinds if kind is not main.kind]


def _item(rng: RandomStream, kinds, most: int = 1) -> Item:
    kind = rng.choose(kinds)
    count = 1
    if most > 1 and rng.chance(0.4):
        count = 2 + int(rng.between(0, most - 1))
    size = rng.choose(("small", "big")) if count == 1 and rng.chance(0.35) else ""
    return Item(kind, rng.choose(kind.colours), count, size)


def draw_scene(scene: Scene, size: int = 256, fineness: int = 3) -> Image.Image:
    """Draw a scene as an RGB picture of `size` x `size` pixels, `fineness` times larger first to smooth the edges."""
    side = size * fineness
    picture = Image.new("RGB", (side, side))
    # The look of the place depends on the scene, not on the size.
    rng = RandomStream("look", *scene.key)
    scene.place.draw(Brush(picture, 0, side, side), rng)
    for position in _arrange(scene, rng):
        _draw_thing(picture, position, scene.place.is_dark)
    return picture.reduce(fineness)


@dataclass(frozen=True)
class _Position:
    """Position of a single thing: its foot and its height, as shares of the picture's side, y upwards."""

    item: Item
    x: int | float
    y: int | float
    height: int | float
    flip: bool


def _arrange(scene: Scene, rng: RandomStream) -> list[_Position]:
    """Return the position of every single thing of the scene, from back to front."""
    main, other = scene.main, scene.other
    ground = rng.between(0.09, 0.16)
    flip = rng.chance(0.5)
    things = []
    if scene.extra is not None:
        things += [_Position(scene.extra, rng.between(0.15, 0.85), 0.7, scene.extra.height * 0.85, not flip)]
    if scene.relation == "alone":
        height = main.height * (1.3 if main.count == 1 else 1.1)
        foot = rng.between(0.38, 0.5) if main.kind.flies else rng.between(0.1, 0.2)
        things += _row(main, 0.5, 0.92, max(min(foot, 0.96 - height), 0.05), height, rng)
    elif scene.relation in ("left of", "right of"):
        x, away = (0.27, 0.74) if scene.relation == "left of" else (0.73, 0.26)
        away, foot = away + rng.between(-0.03, 0.03), ground + rng.between(0, 0.06)
        things += [_Position(other, away, foot, other.height * 0.95, flip)]
        things += _row(main, x, 0.46, ground, main.height * 0.95, rng)
    elif scene.relation == "on":
        x, under = rng.between(0.4, 0.6), other.height * 1.05
        things += [_Position(other, x, ground, under, flip)]
        # On an animal, which looks to the right unless flipped, things lie behind its head.
        aside = (0.13 if flip else -0.13) * under if other.kind.group == "animal" else rng.between(-0.06, 0.06)
        top = ground + other.kind.seat * under
        things += [_Position(main, x + aside, top, min(main.height * 0.85, 0.97 - top), flip)]
    elif scene.relation == "above":
        foot, below = ground - 0.03, min(other.height, 0.5)
        things += [_Position(other, rng.between(0.36, 0.64), foot, below, flip)]
        height = min(main.height, max(0.99 - foot - below, 0.3))
        things += _row(main, 0.5 + rng.between(-0.12, 0.12), 0.6, 0.95 - height, height, rng)
    else:
        x, side = rng.between(0.42, 0.58), rng.choose((-1, 1))
        things += [_Position(other, x, ground + 0.1, other.height, flip)]
        things += [_Position(main, x + side * rng.between(0.14, 0.22), ground - 0.05, main.height * 0.85, not flip)]
    return things


def _row(
    item: Item, x: int | float, width: int | float, y: int | float, height: int | float, rng: RandomStream
) -> list[_Position]:
    """Place `item.count` things side by side around `x`, over `width` at most, each shifted a little up or down."""
    if item.count == 1:
        return [_Position(item, x + rng.between(-0.04, 0.04), y, height, rng.chance(0.5))]
    apart = min(width / item.count, height * 1.05)
    # They may overlap a little, not so much that they cannot be counted.
    height = min(height, apart * 1.15)
    start = x - apart * (item.count - 1) / 2
    flip = rng.chance(0.5)
    row = [_Position(item, start + apart * k, y + rng.between(-0.02, 0.05), height, flip) for k in range(item.count)]
    return sorted(row, key=lambda position: -position.y)


def _draw_thing(picture: Image.Image, position: _Position, is_dark: bool) -> None:
    side, item = picture.width, position.item
    colour = COLOURS[item.colour]
    edge = blend(light(colour, 0.6), (255, 255, 255), 0.3) if is_dark else dark(colour, 0.65)
    frame = (picture, position.x * side, (1 - position.y) * side, position.height * side, position.flip)
    if not item.kind.flies:
        Brush(*frame).shadow(0.42)
    item.kind.draw(Brush(*frame, outline=(edge, 0.0075 / position.height)), colour)
    item.kind.draw(Brush(*frame), colour)
