"""Five captions of a scene, as five people might write them.

One names the things and their relation, one gives every detail, one begins with the second thing, one omits something,
and one is vague ("a picture of", "an animal"). Synonyms, colours, sizes, the place and the full stop vary. Sentences
agree in number and article.
"""

import functools
from dataclasses import dataclass

from rococo_jax.demo.drawing import RandomStream
from rococo_jax.demo.objects import OBJECTS, PLACES
from rococo_jax.demo.scenes import Item, Scene

_NUMBERS = ("", "one", "two", "three", "four")
_SIZES = {"small": ("small", "little", "tiny"), "big": ("big", "large", "huge")}
_PLURALS = {"man": "men", "woman": "women", "gentleman": "gentlemen", "sheep": "sheep", "fish": "fish"}
_PLURALS |= {"cactus": "cacti", "automobile": "automobiles"}

_TO = {
    "left of": ("to the left of", "on the left of", "beside", "next to"),
    "right of": ("to the right of", "on the right of", "beside", "next to"),
    "on": ("on", "on top of", "sitting on"),
    "above": ("above", "over", "high above"),
    "in front of": ("in front of", "in front of", "standing before"),
}
_FROM = {
    "left of": ("to the right of", "on the right of", "next to", "near"),
    "right of": ("to the left of", "on the left of", "next to", "near"),
    "on": ("under", "beneath", "underneath"),
    "above": ("under", "below", "beneath"),
    "in front of": ("behind", "right behind", "in back of"),
}
# (one, several)
_POSES = {
    "animal": (("stands", "stand"), ("is resting", "are resting"), ("waits", "wait"), ("is seen", "are seen")),
    "person": (("stands", "stand"), ("is smiling", "are smiling"), ("poses", "pose"), ("waits", "wait")),
    "vehicle": (("is parked", "are parked"), ("stops", "stop"), ("has stopped", "have stopped")),
    "flier": (("is flying", "are flying"), ("floats", "float"), ("is in the air", "are in the air")),
    "plant": (("grows", "grow"), ("stands", "stand"), ("is growing", "are growing")),
    "building": (("stands", "stand"), ("is seen", "are seen"), ("rises", "rise")),
    "": (("stands", "stand"), ("is seen", "are seen"), ("is placed", "are placed")),
}
_GROUP_NOUNS = {"food": "treat", "thing": "object", "building": "building"}
_PICTURES = ("a picture of", "a drawing of", "an image of", "a view of", "here is")


def plural_of(noun: str) -> str:
    """Return the plural of a noun for one of the scenes' things or places."""
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def article_of(word: str) -> str:
    """Return `an` for a word whose first letter is a vowel, else `a`."""
    return "an" if word[0].lower() in "aeiou" else "a"


def captions_of(scene: Scene) -> list[str]:
    """Return five different captions in random order."""
    rng = RandomStream("captions", *scene.key)
    writer = _Writer(scene, rng)
    if scene.other is None:
        writers = [writer.plain_alone, writer.detailed_alone, writer.place_first_alone, writer.incomplete, writer.vague]
    else:
        writers = [writer.plain, writer.detailed, writer.other_first, writer.incomplete, writer.vague]
    captions = []
    for write in rng.shuffled(writers):
        while (caption := _finish(write(), rng)) in captions:
            pass
        captions.append(caption)
    return captions


def _finish(text: str, rng: RandomStream) -> str:
    return text[0].upper() + text[1:] + ("." if rng.chance(0.75) else "")


@dataclass
class _Writer:
    scene: Scene
    rng: RandomStream

    def plain(self) -> str:
        scene, rng = self.scene, self.rng
        main, other = self._phrase(scene.main, colour=0.5), self._phrase(scene.other, colour=0.5)
        verb = rng.choose((f" {self._be(scene.main)}", f" {self._pose(scene.main)}", ""))
        return f"{main}{verb} {rng.choose(_TO[scene.relation])} {other}{self._maybe_place(0.4)}"

    def detailed(self) -> str:
        scene, rng = self.scene, self.rng
        main, other = self._phrase(scene.main, 1.0, 1.0), self._phrase(scene.other, 1.0, 1.0)
        relation = _TO[scene.relation][0 if rng.chance(0.6) else 1]
        extra = self._extra()
        if rng.chance(0.3):
            return f"{self._place()}, {main} {self._pose(scene.main)} {relation} {other}{extra}"
        return f"{main} {self._pose(scene.main)} {relation} {other}{self._maybe_place(1.0)}{extra}"

    def other_first(self) -> str:
        scene, rng = self.scene, self.rng
        main, other = self._phrase(scene.main, colour=0.6), self._phrase(scene.other, colour=0.6)
        if rng.chance(0.5):
            start = "there is" if scene.other.count == 1 else "there are"
            return f"{start} {other} {rng.choose(_FROM[scene.relation])} {main}{self._maybe_place(0.5)}"
        if scene.relation in ("on", "above"):
            words = {"on": ("with {} on top", "carrying {}"), "above": ("with {} overhead", "with {} in the air")}
            return f"{other} {rng.choose(words[scene.relation]).format(main)}{self._maybe_place(0.7)}"
        return f"{other} {self._be(scene.other)} {rng.choose(_FROM[scene.relation])} {main}{self._maybe_place(0.5)}"

    def plain_alone(self) -> str:
        main = self._phrase(self.scene.main, colour=0.7)
        return f"{main} {self._pose(self.scene.main)}{self._maybe_place(1.0)}"

    def detailed_alone(self) -> str:
        scene, rng = self.scene, self.rng
        main = self._phrase(scene.main, 1.0, 1.0)
        alone = rng.choose((" all alone", " alone", " and nothing else")) if scene.main.count == 1 else " in a row"
        return f"{main} {self._pose(scene.main)}{self._maybe_place(1.0)}{alone if rng.chance(0.6) else ''}"

    def place_first_alone(self) -> str:
        main, verb = self.scene.main, self.rng.choose(("there {}", "we see", "you can see"))
        return f"{self._place()} {verb.format(self._be(main))} {self._phrase(main, colour=0.7, size=0.6)}"

    def incomplete(self) -> str:
        """Name the first thing alone, with its colour or place, or both things without their relation."""
        scene, rng = self.scene, self.rng
        if scene.other is not None and rng.chance(0.5):
            pair = rng.shuffled([scene.main, scene.other])
            return " and ".join(self._phrase(item, colour=0.35) for item in pair) + self._maybe_place(0.5)
        place = self._maybe_place(0.8)
        return f"{self._phrase(scene.main, colour=0.8 if place else 1.0, size=0.7)}{place}"

    def vague(self) -> str:
        scene, rng = self.scene, self.rng
        main_is_vague, other_is_vague = rng.chance(0.2), rng.chance(0.2)
        main = self._group_phrase(scene.main) if main_is_vague else self._phrase(scene.main, colour=0.3)
        if scene.other is None or rng.chance(0.15):
            with_other = ""
        else:
            other = self._group_phrase(scene.other) if other_is_vague else self._phrase(scene.other, colour=0.3)
            with_other = rng.choose((" and ", " with ", " near ")) + other
        start = rng.choose(("", *_PICTURES))
        if start == "here is" and (scene.main.count > 1 or with_other.startswith(" and")):
            start = "here are"
        is_uninformative = main_is_vague or other_is_vague or not with_other
        place = self._maybe_place(1.0 if is_uninformative else 0.75)
        extra = self._extra() if rng.chance(0.4) else ""
        return f"{start} {main}{with_other}{place}{extra}".strip()

    def _phrase(self, item: Item, colour: int | float = 0.0, size: int | float = 0.25) -> str:
        """Return a phrase such as `two small red cats`; `colour` and `size` are the probabilities of naming them."""
        rng = self.rng
        noun = item.kind.nouns[0] if rng.chance(0.6) else rng.choose(item.kind.nouns)
        words = [noun if item.count == 1 else plural_of(noun)]
        names_colour = rng.chance(colour)
        if names_colour and item.kind.group == "person":
            words.append(f"in {item.colour}")
        elif names_colour:
            words.insert(0, item.colour)
        if item.size and rng.chance(size):
            words.insert(0, rng.choose(_SIZES[item.size]))
        if item.count == 1:
            return " ".join([article_of(words[0]), *words])
        return " ".join([_NUMBERS[item.count], *words])

    def _group_phrase(self, item: Item) -> str:
        noun = _GROUP_NOUNS.get(item.kind.group, item.kind.group)
        if noun == "furniture":
            return "some furniture"
        if noun == "plant" and item.count == 1:
            return "a green plant" if item.colour == "green" else "a plant"
        if item.count == 1:
            return f"{article_of(noun)} {noun}"
        return f"some {'people' if noun == 'person' else plural_of(noun)}"

    def _be(self, item: Item) -> str:
        return "is" if item.count == 1 else "are"

    def _pose(self, item: Item) -> str:
        poses = _POSES["flier"] if item.kind.flies else _POSES.get(item.kind.group, _POSES[""])
        return self.rng.choose(poses)[item.count > 1]

    def _place(self) -> str:
        return self.rng.choose(self.scene.place.phrases)

    def _maybe_place(self, probability: int | float) -> str:
        return f" {self._place()}" if self.rng.chance(probability) else ""

    def _extra(self) -> str:
        extra = self.scene.extra
        if extra is None:
            return ""
        words = (", with {} in the sky", " while {} is in the air", ", and {} above", ", with {} overhead")
        return self.rng.choose(words).format(self._phrase(extra, colour=1.0))


# Nouns that no scene shows: they make groups larger and provide words for both articles.
_OTHER_NOUNS = {
    "animal": "tiger lion bear wolf otter ostrich",
    "building": "church hut igloo",
    "food": "onion bread pizza",
    "furniture": "bench armchair cupboard",
    "person": "farmer doctor sailor teacher athlete queen",
    "place": "forest airport kitchen museum stadium library harbor tunnel jungle market island office",
    "plant": "bush rose ivy",
    "thing": "bottle hat book ladder guitar drum envelope basket",
    "vehicle": "taxi ambulance rocket van",
}
# Words that remain true: with "bird" in place of "duck" the caption would still be right.
_MORE_GENERAL = {**dict.fromkeys(("duck", "owl", "penguin"), ("bird",)), **dict.fromkeys(("pine", "fir"), ("tree",))}


@functools.cache
def demo_lexicon():
    """Return every noun as a `rococo_jax.perturb.text.lexicon.Lexicon`; nouns of one meaning are synonyms."""
    from rococo_jax.perturb.text.lexicon import Group, Lexicon, Noun

    singular = [(word, kind.name, kind.group) for kind in OBJECTS for word in kind.nouns]
    singular += [(word, place.name, "place") for place in PLACES for word in place.nouns]
    singular += [(word, word, group) for group, words in _OTHER_NOUNS.items() for word in words.split()]
    by_group: dict[str, list[Noun]] = {}
    meanings: dict[str, list[str]] = {}
    for word, (meaning, group) in {word: about for word, *about in singular}.items():
        by_group.setdefault(group, []).append(Noun(word, plural_of(word), group))
        meanings.setdefault(meaning, []).append(word)
    groups = [
        Group(name, name if name in ("person", "place") else "thing", tuple(members))
        for name, members in by_group.items()
    ]
    synonyms = [words for words in meanings.values() if len(words) > 1]
    return Lexicon(groups, synonyms, _MORE_GENERAL, name="demo")
