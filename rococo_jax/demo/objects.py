"""The kinds of things and the places that scenes are made of: drawing, nouns, colours, sizes.

`assets/objects.json` lists the shapes of every kind from back to front: `[shape, numbers, fill]` and, where they are
not 0, the turn of an oval or the rounding of a box. Shapes are methods of `Brush`. A fill is a name of `COLOURS`,
`ink`, `#rrggbb`, or `own`, the colour of the thing; `own dark 0.1 light 0.3` is shaded, then tinted, and
`white unless white then red` is red on a white thing.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from PIL import ImageColor

from rococo_jax.demo import places
from rococo_jax.demo.drawing import COLOURS, INK, Brush, Colour, RandomStream, dark, light

ANY = ("red", "orange", "yellow", "green", "blue", "purple", "pink")


@dataclass(frozen=True)
class ObjectKind:
    """A kind of thing.

    Attributes:
        group: its concept ("animal").
        nouns: its synonyms; the first is its name.
        colours: its possible colours.
        size: its usual height as a share of the picture's.
        flies: whether it is in the air.
        seat: the height, in its own units, at which small things lie on it, or None.
        perches: whether it is small enough to lie or sit on another thing.
        backdrop: whether it is large enough to stand behind another thing.
    """

    group: str
    nouns: tuple[str, ...]
    colours: tuple[str, ...]
    size: float
    flies: bool = False
    seat: float | None = None
    perches: bool = False
    backdrop: bool = False

    @property
    def name(self) -> str:
        return self.nouns[0]

    def draw(self, brush: Brush, colour: Colour) -> None:
        """Draw a thing of this kind, from the ground up, or around its middle if it flies."""
        for shape, numbers, fill, *turn_or_rounding in _shapes()[self.name]:
            getattr(brush, shape)(*numbers, _colour(fill, colour), *turn_or_rounding)


@functools.cache
def _shapes() -> dict[str, list[list[Any]]]:
    return json.loads((resources.files("rococo_jax.demo") / "assets" / "objects.json").read_text(encoding="utf-8"))


@functools.cache
def _colour(fill: str, colour_of_thing: Colour) -> Colour:
    fill, _, exception = fill.partition(" unless ")
    clashing, _, replacement = exception.partition(" then ")
    name, *tints = (replacement if colour_of_thing == COLOURS.get(clashing) else fill).split()
    colour = colour_of_thing if name == "own" else {**COLOURS, "ink": INK}.get(name) or ImageColor.getrgb(name)
    for tint, share in zip(tints[::2], tints[1::2], strict=True):
        colour = {"light": light, "dark": dark}[tint](colour, float(share))
    return colour


def _animal(nouns, colours, size, **more) -> ObjectKind:
    return _kind("animal", nouns, size, tuple(colours.split()), **more)


def _vehicle(nouns, size, **more) -> ObjectKind:
    return _kind("vehicle", nouns, size, (*ANY, "black"), **more)


def _food(nouns, colours, size=0.32) -> ObjectKind:
    return _kind("food", nouns, size, tuple(colours.split()), perches=True)


def _kind(group, nouns, size, colours=ANY, **more) -> ObjectKind:
    return ObjectKind(group, tuple(nouns.split()), colours, size, **more)


OBJECTS: tuple[ObjectKind, ...] = (
    _animal("cat kitten", "black white gray orange brown", 0.38, perches=True),
    _animal("dog puppy", "brown black white orange gray", 0.4, perches=True),
    _animal("rabbit bunny", "white gray brown orange", 0.36, perches=True),
    _animal("horse pony", "brown black white gray", 0.52, seat=0.58),
    _animal("cow", "white brown black", 0.5, seat=0.63),
    _animal("sheep lamb", "white black gray", 0.44),
    _animal("elephant", "gray pink blue", 0.56, seat=0.72),
    _animal("duck", "yellow white brown", 0.36, perches=True),
    _animal("pig piglet", "pink brown black", 0.44),
    _animal("penguin", "black blue", 0.38, perches=True),
    _animal("owl", "brown gray white", 0.36, perches=True),
    _animal("fish", "orange blue red yellow", 0.36, perches=True),
    _animal("bird", "red blue yellow green", 0.34, flies=True),
    _animal("butterfly", "orange blue purple pink yellow", 0.3, flies=True),
    _vehicle("car automobile", 0.48, seat=0.59),
    _vehicle("bus coach", 0.46, seat=0.77, backdrop=True),
    _vehicle("truck lorry", 0.46, seat=0.77, backdrop=True),
    _vehicle("bicycle bike", 0.46),
    _vehicle("boat sailboat ship", 0.52),
    _vehicle("train locomotive", 0.5),
    _vehicle("tractor", 0.46),
    _vehicle("airplane plane jet", 0.46, flies=True),
    _kind("person", "man gentleman", 0.54),
    _kind("person", "woman lady", 0.54),
    _kind("person", "boy", 0.44),
    _kind("person", "girl", 0.44),
    _food("apple", "red green yellow"),
    _food("banana", "yellow green"),
    _food("pear", "green yellow red"),
    _food("strawberry", "red pink"),
    _food("watermelon melon", "green"),
    _food("cherry", "red purple"),
    _food("cake", "pink white blue purple brown", 0.38),
    _food("mushroom", "red brown white orange"),
    _kind("furniture", "chair", 0.44, (*ANY, "brown", "white"), seat=0.48),
    _kind("furniture", "table desk", 0.46, ("brown", "white", "red", "green", "blue", "yellow"), seat=0.6),
    _kind("furniture", "sofa couch", 0.46, (*ANY, "gray"), seat=0.38),
    _kind("furniture", "bed", 0.46, ANY, seat=0.42),
    _kind("furniture", "lamp", 0.46),
    _kind("toy", "ball", 0.3, perches=True),
    _kind("toy", "teddy", 0.36, ("brown", "white", "pink", "gray"), perches=True),
    _kind("toy", "balloon", 0.42, flies=True),
    _kind("toy", "kite", 0.42, flies=True),
    _kind("thing", "umbrella parasol", 0.44),
    _kind("thing", "gift parcel", 0.34, perches=True),
    _kind("thing", "clock", 0.34, (*ANY, "black"), perches=True),
    _kind("building", "house cottage", 0.66, (*ANY, "white"), backdrop=True),
    _kind("building", "castle palace", 0.66, backdrop=True),
    _kind("building", "lighthouse", 0.7, ("red", "blue", "green", "black"), backdrop=True),
    _kind("building", "barn", 0.64, ("red", "green", "blue", "brown", "white"), backdrop=True),
    _kind("building", "tent", 0.58, backdrop=True),
    _kind("building", "windmill mill", 0.66, ("red", "blue", "green", "brown"), backdrop=True),
    _kind("plant", "tree oak", 0.64, ("green", "orange", "yellow", "pink"), backdrop=True),
    _kind("plant", "pine fir", 0.6, ("green", "white", "blue"), backdrop=True),
    _kind("plant", "flower", 0.38, (*ANY, "white")),
    _kind("plant", "cactus", 0.46, ("green",)),
)


@dataclass(frozen=True)
class ImageFile:
    """A place.

    Attributes:
        draw: fills a picture, with the scene's random stream.
        phrases: ways to say where something is; each holds one of `nouns`.
        nouns: singular nouns for the place, as they stand in the phrases.
        is_dark: things are outlined in a light colour.
    """

    draw: Callable[[Brush, RandomStream], None]
    nouns: tuple[str, ...]
    phrases: tuple[str, ...]
    is_dark: bool = False

    @property
    def name(self) -> str:
        return self.nouns[0]


def _place(draw, nouns, phrases, **more) -> ImageFile:
    return ImageFile(draw, tuple(nouns.split()), tuple(phrases.split(", ")), **more)


PLACES: tuple[ImageFile, ...] = (
    _place(places.beach, "beach shore sea",
           "on the beach, at the beach, on a sunny beach, on a sandy shore, by the sea"),
    _place(places.street, "street road city",
           "on the street, in the street, on a city street, on the road, in the city"),
    _place(places.meadow, "meadow field pasture",
           "in a meadow, in the green meadow, in a field, on a grassy field, on a green pasture"),
    _place(places.room, "room lounge apartment",
           "in a room, in the living room, in a cozy room, in the lounge, inside an apartment"),
    _place(places.snow, "snow mountain",
           "in the snow, in the cold snow, in the mountains, on a snowy mountain, in the white snow"),
    _place(places.night, "night moon star",
           "in the night, on a dark night, under the moon, under the stars, on a starry night", is_dark=True),
    _place(places.lake, "lake pond lakeside",
           "by the lake, near a lake, beside a pond, at the lakeside, next to a calm lake"),
    _place(places.desert, "desert dune",
           "in the desert, in a hot desert, in a sandy desert, among the dunes, on a dune"),
    _place(places.stage, "stage theater",
           "on a stage, on the stage, in a theater, on the stage of a theater, in an old theater", is_dark=True),
)  # fmt: skip
