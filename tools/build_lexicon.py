"""Build the shipped lexicon: nouns that are common in captions, in the concept groups of WordNet.

    python tools/build_lexicon.py --wordnet DIR --captions FILE [FILE ...] --out FILE

`--wordnet` is the folder of WordNet 3.0's database files (Debian's package `wordnet-base`). `--captions` are Karpathy
files; they only decide which nouns are common enough (a word counts if a part-of-speech tagger calls it a noun most of
the time), no caption is stored. Do not use captions that a benchmark is made from or scored on. Needs the packages
`textblob` (tagger) and `wordfreq` (which plurals are in use). Nothing reads WordNet at run time.

A noun's concept is the nearest meaning named in `CONCEPTS` among the hypernyms of its most frequent WordNet meaning.
`OTHER_MEANING` lists nouns that captions use in another meaning than WordNet's most frequent ("bat", "court"). Nouns
without a concept are left out: colours, quantities, words about the picture itself, attributes and other abstractions,
since replacing "view" or "number" does not change what an image shows.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rococo_jax.errors import InputError
from rococo_jax.perturb.text.words import PLURAL_ONLY, plain, plural_of, split_words
from rococo_jax.storage import read_json, write_json

# Concept -> kind of its nouns, and its WordNet meanings (noun, number of the sense).
CONCEPTS: dict[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "person": ("person", (("person", 1),)),
    "people": ("person", (("people", 1), ("social group", 1), ("gathering", 1))),
    "animal": ("thing", (("animal", 1), ("animal group", 1))),
    "body part": ("thing", (("body part", 1), ("hair", 1), ("body", 1))),
    "plant": ("thing", (("plant", 2), ("plant part", 1), ("vegetation", 1), ("seed", 1))),
    "fruit": ("thing", (("edible fruit", 1), ("fruit", 1))),
    "vegetable": ("thing", (("vegetable", 1), ("vegetable", 2), ("root vegetable", 1), ("mushroom", 1))),
    "food": ("thing", (("food", 1), ("food", 2), ("foodstuff", 2))),
    "drink": ("thing", (("beverage", 1),)),
    "clothing": (
        "thing",
        (("clothing", 1), ("footwear", 2), ("accessory", 1), ("jewelry", 1), ("eyeglasses", 1), ("garment", 1)),
    ),
    "furniture": ("thing", (("furniture", 1), ("bedclothes", 1), ("rug", 1), ("pillow", 1))),
    "vehicle": ("thing", (("vehicle", 1),)),
    "part of a vehicle": ("thing", (("wheel", 1), ("saddle", 1), ("harness", 2), ("sail", 1), ("cockpit", 1))),
    "container": ("thing", (("container", 1),)),
    "tableware": ("thing", (("tableware", 1), ("kitchen utensil", 1), ("cutlery", 1), ("knife", 1))),
    "appliance": ("thing", (("home appliance", 1), ("appliance", 2), ("lamp", 1), ("plumbing fixture", 1))),
    "electronics": (
        "thing",
        (("electronic equipment", 1), ("electronic device", 1), ("computer", 1), ("camera", 1), ("telephone", 1)),
    ),
    "tool": ("thing", (("tool", 1), ("implement", 1), ("instrument", 1), ("machine", 1), ("toiletry", 1))),
    "sports equipment": ("thing", (("sports equipment", 1), ("ball", 1), ("ski", 1), ("plaything", 1))),
    "musical instrument": ("thing", (("musical instrument", 1),)),
    "fabric": ("thing", (("fabric", 1), ("rope", 1), ("flag", 1), ("towel", 1))),
    "part of a building": (
        "thing",
        (("door", 1), ("window", 1), ("wall", 1), ("floor", 1), ("ceiling", 1), ("roof", 1), ("stairs", 1),
         ("chimney", 1), ("pillar", 1), ("structural member", 1), ("countertop", 1), ("protective covering", 1)),
    ),
    "barrier": ("thing", (("barrier", 1), ("pole", 1), ("signboard", 1), ("sign", 2), ("traffic light", 1))),
    "room": ("place", (("room", 1), ("area", 5))),
    "building": ("place", (("building", 1), ("housing", 1), ("place of business", 1), ("facility", 1), ("tower", 1))),
    "structure": ("place", (("bridge", 1), ("structure", 1), ("establishment", 4))),
    "road": ("place", (("way", 6), ("road", 1), ("track", 4), ("walk", 5))),
    "field": ("place", (("field", 1), ("playing field", 1), ("tract", 1), ("grass", 1), ("lawn", 1), ("land", 2))),
    "nature": (
        "place",
        (("geological formation", 1), ("body of water", 1), ("water", 1), ("sky", 1), ("land", 4), ("forest", 2),
         ("snow", 2), ("sand", 1), ("dirt", 1), ("natural elevation", 1), ("water", 2), ("island", 1)),
    ),
    "position": ("thing", ()),
    "region": ("place", (("region", 3), ("region", 1), ("location", 1), ("urban area", 1))),
    "weather": ("thing", (("weather", 1), ("cloud", 2), ("light", 1), ("storm", 1), ("precipitation", 3))),
    "material": ("thing", (("material", 1), ("stone", 2), ("rock", 1), ("metal", 1), ("building material", 1))),
    "sport": ("action", (("sport", 1), ("game", 1), ("game", 3), ("diversion", 1), ("race", 2), ("competition", 1))),
    "action": ("action", (("action", 1), ("activity", 1), ("jump", 1), ("motion", 6), ("change", 3))),
    "occasion": ("action", (("social event", 1), ("ceremony", 1), ("celebration", 2), ("meal", 2), ("holiday", 2))),
    "time": ("thing", (("day", 1), ("day", 4), ("night", 1), ("season", 1), ("hour", 2), ("time of day", 1))),
    "reading": ("thing", (("book", 1), ("newspaper", 3), ("magazine", 1), ("document", 1), ("paper", 1), ("card", 1))),
    "decoration": ("thing", (("decoration", 1), ("sculpture", 2), ("art", 1), ("balloon", 1), ("candle", 1))),
    "device": ("thing", (("device", 1), ("equipment", 1))),
    "object": ("thing", (("artifact", 1), ("object", 1))),
}  # fmt: skip


def _nouns(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Noun -> concept, where captions use another meaning than WordNet's most frequent one.
OTHER_MEANING: dict[str, str] = {
    noun: concept
    for concept, nouns in {
        "position": "top side middle front back edge corner center bottom end",
        "animal": "bear bull pony dachshund seagull horseback lamb turkey fish chicken goat",
        "body part": "beard mustache face head lap mohawk dreadlock pigtail paw tail fur feather",
        "building": "store school church airport market zoo farm hotel restaurant shop cafe station home "
        "depot apartment",
        "clothing": "tie sunglass suit cap glove mitt bikini jersey hood bandanna goggles outfit uniform costume "
        "jean bib tee wetsuit headphones gear hat dress skirt shirt vest",
        "container": "bag basket mug pack suitcase luggage",
        "decoration": "balloon statue sculpture mural graffiti candle",
        "drink": "soda tea juice wine beer coffee milk milkshake",
        "electronics": "monitor cell cellphone phone laptop tv television screen controller remote video "
        "mouse keyboard wii computer radio microphone headset",
        "field": "court yard parking pasture park playground meadow garden arena rink campsite pen field grass lawn",
        "food": "hotdog burger toast topping fry shrimp icing frosting pastry donut doughnut chip cookie candy bun "
        "chili slice popcorn pizza cake sandwich lobster bagel pretzel salmon",
        "fruit": "orange lemon banana apple pear peach watermelon strawberry grape",
        "furniture": "table desk bench seat counter cabinet shelf mattress blanket curtain couch chest bleacher "
        "rack hammock booth",
        "appliance": "toaster toilet sink bathtub tub shower faucet microwave oven stove refrigerator freezer "
        "dishwasher lamp heater fan clock urinal",
        "barrier": "hydrant meter sign post stoplight",
        "nature": "water ice snow sand dirt wave mud ground river beach coast shore surf wilderness countryside forest "
        "air ocean sea sky rock stone shade",
        "part of a building": "floor doorway entrance porch balcony deck patio railing wall step",
        "people": "couple crowd family group team audience class police people",
        "person": "batter surfer boarder catcher pitcher rider passenger guard crew child baby",
        "plant": "bush hay straw branch log leaf flower tree trunk",
        "region": "city town country village neighborhood area place",
        "reading": "book newspaper magazine map menu letter note notebook",
        "road": "track path trail street road sidewalk crosswalk intersection runway platform tarmac ramp",
        "room": "kitchen bathroom bedroom office den lounge hall studio gym",
        "sport": "tennis baseball soccer football basketball surfing skiing skateboarding snowboarding volleyball golf "
        "hockey cricket polo match tournament race game",
        "sports equipment": "ball bat kite racket racquet board frisbee paddle net toy doll teddy surfboard skateboard "
        "snowboard ski disc swing trampoline",
        "tableware": "plate bowl cup glass fork spoon knife tray saucer platter napkin dish pot pan",
        "tool": "umbrella brush toothbrush hose leash shovel scissors",
        "vehicle": "van truck bike scooter motorcycle trailer stroller wheelchair carriage motor jet plane airplane",
        "weather": "fog cloud rain wind sun sunlight lightning rainbow smoke fire",
        "time": "day night morning evening afternoon sunset sunrise dusk dawn summer winter spring fall autumn",
        "action": "trick jump stunt ride leap dive throw kick",
        "occasion": "wedding party picnic birthday parade festival christmas celebration",
    }.items()
    for noun in _nouns(nouns)
}

# Nouns that say how a picture is made or how much there is, words of other kinds that WordNet knows as nouns too, and
# the tagger's mistakes; never replaced, never put in.
LEFT_OUT = _nouns(
    """
    photo photograph picture image view shot closeup portrait snapshot painting drawing scene display background
    foreground number pair lot bunch variety kind type sort piece bit set row line stack pile something anything
    someone anyone somebody thing object item stuff way distance direction one other close-up black white red blue
    green brown grey gray yellow pink purple gold silver tan blonde brunette small large little wade squirt roller
    wheeler decker para ben jack fun american waters bunche pop pacifier hanger handler cutter crane carrier yankee
    transit stick assembly giant pet male female foal grab harness approach volley work move use progress care
    service support storage preparation presentation toilette split trot training drain baking cooking cleaning
    teaching jogging drilling spraying chase course crawl post tube barrel pipe paper wash mote mini cords denim
    world product load loading landing moon medium round scenery butt merchandise commuter marker system layer
    backdrop screen house transportation grill base resort camp opening hole position lab heel crust england boston
    london chicago america port border zone stretch location habitat state midst downtown crest angle silhouette
    roadside business league club army york utility cream cast railway circus strings department content conference
    band works plant frame hoop ways pepper iris foliage trunk iron cement spray trash boulder paint leopard dust cd
    pearl parent pin parking slice roll feed lap hip palm lid pathway sticker fur mound bars lego rings skate bath
    doubles petting show entertainment fireman toss fall spring patch stripe dance check return draft pad note map
    overcast light shade pit rapid clay drive opponent competitor companion member character performer server
    speaker guide individual princess devil buddha mickey elvis terrain marsh corn overhang structure buffet makeup
    watch engine disk canopy pickup arms colors colours bones buns chips movie film breed lettuce mustard snowball
    chocolate cone navy railroad gymnasium personnel horseback mohawk retriever mustang centipede dairy desktop
    midair compartment curbside sheet wrapper dryer cot parasol accessory class banquet blow attempt design delivery
    practice repair construction craft transport cargo freight campaign scuba halter button greens herd flock cell
    wheel receiver cab collie pug peer peek marine
    ride hug jump kick leap pose throw gaze hike travel cruise gesture exercise surf swing slide orange brush
    """
)
_LEAST_COUNT, _LEAST_NOUN_SHARE, _LEAST_GROUP = 3, 0.5, 4
# Waters are 8 % as frequent as water, snows 2 %, rices 0.2 %.
_LEAST_PLURAL_SHARE = 0.03
# How many of a noun's meanings, most frequent first, count when asking what it is a kind of.
_MEANINGS = 3


@dataclass(frozen=True)
class Synset:
    """Nouns of one meaning: key, words, and the keys of more general synsets."""

    key: str
    words: tuple[str, ...]
    hypernyms: tuple[str, ...]


class WordNetNouns:
    """The nouns of a folder of WordNet 3.x database files; their format is the manual page wndb(5WN).

    Raises:
        InputError: the folder does not hold `index.noun`, `data.noun` and `noun.exc`.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("index.noun", "data.noun", "noun.exc"):
            if not (folder / name).is_file():
                raise InputError(folder, name, "nothing there", "the database files of WordNet 3.x")

    @cached_property
    def senses(self) -> dict[str, tuple[str, ...]]:
        """Noun -> keys of its synsets, most frequent first."""
        senses = {}
        for fields in self._lines("index.noun"):
            pointers = int(fields[3])
            senses[fields[0].replace("_", " ")] = tuple(fields[6 + pointers :])
        return senses

    @cached_property
    def synsets(self) -> dict[str, Synset]:
        """Key -> synset."""
        synsets = {}
        for fields in self._lines("data.noun"):
            count = int(fields[3], 16)
            words = tuple(word.replace("_", " ").lower() for word in fields[4 : 4 + 2 * count : 2])
            pointers = fields[5 + 2 * count :]
            hypernyms = tuple(key for sign, key in zip(pointers[::4], pointers[1::4], strict=False) if sign[0] == "@")
            synsets[fields[0]] = Synset(fields[0], words, hypernyms)
        return synsets

    @cached_property
    def exceptions(self) -> dict[str, str]:
        """Irregular plural -> singular ("men" -> "man")."""
        return {fields[0]: fields[1] for fields in self._lines("noun.exc")}

    def sense(self, noun: str, number: int = 1) -> Synset:
        """The `number`-th most frequent meaning of a noun, counted from 1."""
        return self.synsets[self.senses[noun][number - 1]]

    def ancestors(self, synset: Synset) -> Iterator[Synset]:
        """The synset, then more general ones, nearest first."""
        queue, seen = [synset], set()
        while queue:
            current = queue.pop(0)
            if current.key not in seen:
                seen.add(current.key)
                yield current
                queue.extend(self.synsets[key] for key in current.hypernyms)

    def _lines(self, name: str) -> Iterator[list[str]]:
        with (self.folder / name).open(encoding="ascii", errors="strict") as file:
            for line in file:
                # The licence is at the head of each file, in lines that begin with two spaces.
                if not line.startswith("  "):
                    yield line.split(" | ")[0].split()


def count_nouns(captions: Iterable[str]) -> dict[str, int]:
    """Word -> number of occurrences, for words that a tagger calls nouns most of the time."""
    from textblob.en import tag

    nouns, words = Counter(), Counter()
    for caption in captions:
        text = " ".join(word.text for word in split_words(caption))
        for word, part_of_speech in tag(text, tokenize=False):
            words[plain(word)] += 1
            nouns[plain(word)] += part_of_speech.startswith("NN")
    known = OTHER_MEANING.keys() | {plural_of(noun) for noun in OTHER_MEANING}
    return {
        word: count
        for word, count in words.items()
        if word in known or (nouns[word] and nouns[word] >= _LEAST_NOUN_SHARE * count)
    }


def singular_of(word: str, seen: Mapping[str, int], wordnet: WordNetNouns) -> str | None:
    """The noun in WordNet that a word is a form of, or None.

    A word is taken as a plural (by WordNet's exceptions and rules of detachment, morphy(7WN)) where its singular is
    used in the captions as well, since WordNet lists many plurals as nouns of their own ("steps", "hands").
    """
    if word in PLURAL_ONLY:
        return word if word in wordnet.senses else None
    exception = wordnet.exceptions.get(word)
    if exception in seen:
        return exception
    for plural, singular in _DETACHMENTS:
        stem = word.removesuffix(plural) + singular
        if word.endswith(plural) and not word.endswith("ss") and stem in wordnet.senses and stem in seen:
            return stem
    return word if word in wordnet.senses else None


_DETACHMENTS = (
    ("s", ""),
    ("ses", "s"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)


def concept_of(noun: str, wordnet: WordNetNouns, meanings: dict[str, str]) -> str | None:
    """The concept of the nearest named meaning above the noun's most frequent one."""
    if noun in OTHER_MEANING:
        return OTHER_MEANING[noun]
    return next((meanings[s.key] for s in wordnet.ancestors(wordnet.sense(noun)) if s.key in meanings), None)


def make_lexicon(wordnet: WordNetNouns, captions: Iterable[str]) -> dict:
    """The lexicon in the form that `rococo_jax.perturb.text.lexicon.Lexicon.from_json` reads."""
    seen = count_nouns(captions)
    meanings: dict[str, str] = {}
    for concept, (_, names) in CONCEPTS.items():
        for noun, number in names:
            meanings.setdefault(wordnet.sense(noun, number).key, concept)
    counts: Counter[str] = Counter()
    for word, count in seen.items():
        singular = singular_of(word, seen, wordnet) if len(word) > 1 and word.isascii() and word.isalpha() else None
        if singular is not None and singular not in LEFT_OUT:
            counts[singular] += count
    groups = defaultdict(dict)
    for noun in sorted(noun for noun, count in counts.items() if count >= _LEAST_COUNT):
        concept = concept_of(noun, wordnet, meanings)
        if concept is not None:
            plural = plural_of(noun)
            groups[concept][noun] = plural if _is_used(plural, noun) else None
    nouns = {noun for members in groups.values() for noun in members}
    return {
        "format": "rococo_jax.lexicon",
        "version": 1,
        "made_by": "python tools/build_lexicon.py",
        "source": "WordNet 3.0, Princeton University",
        "licence": "the WordNet licence: see the file beside this one",
        "groups": [
            {
                "concept": concept,
                "kind": kind,
                "nouns": {noun: plural for noun, plural in groups[concept].items() if noun not in PLURAL_ONLY},
                "plural_only": [noun for noun in groups[concept] if noun in PLURAL_ONLY],
            }
            for concept, (kind, _) in CONCEPTS.items()
            if len(groups[concept]) >= _LEAST_GROUP
        ],
        "synonyms": _synonyms(nouns, wordnet),
        "more_general": _more_general(nouns, wordnet),
    }


def _is_used(plural: str, singular: str) -> bool:
    """Whether the plural of a noun is in use ("rooms", not "rices"), by word frequencies of English text."""
    from wordfreq import word_frequency

    return word_frequency(plural, "en") > _LEAST_PLURAL_SHARE * word_frequency(singular, "en")


def _synonyms(nouns: set[str], wordnet: WordNetNouns) -> list[list[str]]:
    """Groups of nouns that share a synset in any of their meanings."""
    sets = {tuple(sorted(nouns.intersection(synset.words))) for synset in wordnet.synsets.values()}
    return [list(words) for words in sorted(sets) if len(words) > 1]


def _more_general(nouns: set[str], wordnet: WordNetNouns) -> dict[str, list[str]]:
    """Noun -> its hypernyms among the nouns: "dog" -> "animal", "pet". Replacing it by them alters nothing."""
    general = {}
    for noun in sorted(nouns):
        above: set[str] = set()
        for key in wordnet.senses[noun][:_MEANINGS]:
            above.update(word for synset in wordnet.ancestors(wordnet.synsets[key]) for word in synset.words)
        kinds = sorted((above & nouns) - {noun})
        if kinds:
            general[noun] = kinds
    return general


def main() -> None:
    """Write the lexicon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of WordNet 3.0's database files")
    parser.add_argument("--captions", type=Path, nargs="+", required=True, help="Karpathy files, for counting nouns")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    captions = [
        caption
        for path in arguments.captions
        for item in read_json(path, "a captions file")
        for caption in item["caption"]
    ]
    write_json(arguments.out, make_lexicon(WordNetNouns(arguments.wordnet), captions))


if __name__ == "__main__":
    main()
