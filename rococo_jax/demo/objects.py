"""The kinds of things and the places that scenes are made of: drawing, nouns, colours, sizes."""

from collections.abc import Callable
from dataclasses import dataclass

from rococo_jax.demo.drawing import Brush, Colour, RandomStream, household, living, outdoors, places

ANY = ("red", "orange", "yellow", "green", "blue", "purple", "pink")


@dataclass(frozen=True)
class ObjectKind:
    """A kind of thing.

    Attributes:
        draw: draws one with a brush, in a colour.
        group: its concept ("animal").
        nouns: its synonyms; the first is its name.
        colours: its possible colours.
        size: its usual height as a share of the picture's.
        flies: whether it is in the air.
        seat: the height, in its own units, at which small things lie on it, or None.
        perches: whether it is small enough to lie or sit on another thing.
        backdrop: whether it is large enough to stand behind another thing.
    """

    draw: Callable[[Brush, Colour], None]
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


def _animal(draw, nouns, colours, size, **more) -> ObjectKind:
    return ObjectKind(draw, "animal", tuple(nouns.split()), tuple(colours.split()), size, **more)


def _vehicle(draw, nouns, size, **more) -> ObjectKind:
    return ObjectKind(draw, "vehicle", tuple(nouns.split()), (*ANY, "black"), size, **more)


def _food(draw, nouns, colours, size=0.32) -> ObjectKind:
    return ObjectKind(draw, "food", tuple(nouns.split()), tuple(colours.split()), size, perches=True)


def _kind(group, draw, nouns, size, colours=ANY, **more) -> ObjectKind:
    return ObjectKind(draw, group, tuple(nouns.split()), colours, size, **more)


OBJECTS: tuple[ObjectKind, ...] = (
    _animal(living.cat, "cat kitten", "black white gray orange brown", 0.38, perches=True),
    _animal(living.dog, "dog puppy", "brown black white orange gray", 0.4, perches=True),
    _animal(living.rabbit, "rabbit bunny", "white gray brown orange", 0.36, perches=True),
    _animal(living.horse, "horse pony", "brown black white gray", 0.52, seat=0.58),
    _animal(living.cow, "cow", "white brown black", 0.5, seat=0.63),
    _animal(living.sheep, "sheep lamb", "white black gray", 0.44),
    _animal(living.elephant, "elephant", "gray pink blue", 0.56, seat=0.72),
    _animal(living.duck, "duck", "yellow white brown", 0.36, perches=True),
    _animal(living.pig, "pig piglet", "pink brown black", 0.44),
    _animal(living.penguin, "penguin", "black blue", 0.38, perches=True),
    _animal(living.owl, "owl", "brown gray white", 0.36, perches=True),
    _animal(living.fish, "fish", "orange blue red yellow", 0.36, perches=True),
    _animal(living.bird, "bird", "red blue yellow green", 0.34, flies=True),
    _animal(living.butterfly, "butterfly", "orange blue purple pink yellow", 0.3, flies=True),
    _vehicle(outdoors.car, "car automobile", 0.48, seat=0.59),
    _vehicle(outdoors.bus, "bus coach", 0.46, seat=0.77, backdrop=True),
    _vehicle(outdoors.truck, "truck lorry", 0.46, seat=0.77, backdrop=True),
    _vehicle(outdoors.bicycle, "bicycle bike", 0.46),
    _vehicle(outdoors.boat, "boat sailboat ship", 0.52),
    _vehicle(outdoors.train, "train locomotive", 0.5),
    _vehicle(outdoors.tractor, "tractor", 0.46),
    _vehicle(outdoors.airplane, "airplane plane jet", 0.46, flies=True),
    _kind("person", living.man, "man gentleman", 0.54),
    _kind("person", living.woman, "woman lady", 0.54),
    _kind("person", living.boy, "boy", 0.44),
    _kind("person", living.girl, "girl", 0.44),
    _food(household.apple, "apple", "red green yellow"),
    _food(household.banana, "banana", "yellow green"),
    _food(household.pear, "pear", "green yellow red"),
    _food(household.strawberry, "strawberry", "red pink"),
    _food(household.watermelon, "watermelon melon", "green"),
    _food(household.cherry, "cherry", "red purple"),
    _food(household.cake, "cake", "pink white blue purple brown", 0.38),
    _food(household.mushroom, "mushroom", "red brown white orange"),
    _kind("furniture", household.chair, "chair", 0.44, (*ANY, "brown", "white"), seat=0.48),
    _kind(
        "furniture", household.table, "table desk", 0.46, ("brown", "white", "red", "green", "blue", "yellow"), seat=0.6
    ),
    _kind("furniture", household.sofa, "sofa couch", 0.46, (*ANY, "gray"), seat=0.38),
    _kind("furniture", household.bed, "bed", 0.46, ANY, seat=0.42),
    _kind("furniture", household.lamp, "lamp", 0.46),
    _kind("toy", household.ball, "ball", 0.3, perches=True),
    _kind("toy", household.teddy, "teddy", 0.36, ("brown", "white", "pink", "gray"), perches=True),
    _kind("toy", household.balloon, "balloon", 0.42, flies=True),
    _kind("toy", household.kite, "kite", 0.42, flies=True),
    _kind("thing", household.umbrella, "umbrella parasol", 0.44),
    _kind("thing", household.gift, "gift parcel", 0.34, perches=True),
    _kind("thing", household.clock, "clock", 0.34, (*ANY, "black"), perches=True),
    _kind("building", outdoors.house, "house cottage", 0.66, (*ANY, "white"), backdrop=True),
    _kind("building", outdoors.castle, "castle palace", 0.66, backdrop=True),
    _kind("building", outdoors.lighthouse, "lighthouse", 0.7, ("red", "blue", "green", "black"), backdrop=True),
    _kind("building", outdoors.barn, "barn", 0.64, ("red", "green", "blue", "brown", "white"), backdrop=True),
    _kind("building", outdoors.tent, "tent", 0.58, backdrop=True),
    _kind("building", outdoors.windmill, "windmill mill", 0.66, ("red", "blue", "green", "brown"), backdrop=True),
    _kind("plant", outdoors.tree, "tree oak", 0.64, ("green", "orange", "yellow", "pink"), backdrop=True),
    _kind("plant", outdoors.pine, "pine fir", 0.6, ("green", "white", "blue"), backdrop=True),
    _kind("plant", outdoors.flower, "flower", 0.38, (*ANY, "white")),
    _kind("plant", outdoors.cactus, "cactus", 0.46, ("green",)),
)


@dataclass(frozen=True)
class Place:
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


def _place(draw, nouns, phrases, **more) -> Place:
    return Place(draw, tuple(nouns.split()), tuple(phrases.split(", ")), **more)


PLACES: tuple[Place, ...] = (
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
