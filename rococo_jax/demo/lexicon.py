"""The words of the demo: a small lexicon of the scenes' nouns, and further words for its tokenizer.

The lexicon serves to alter captions, as the shipped one does for `rococo alter-captions`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from rococo_jax.demo.captions import plural_of
from rococo_jax.demo.objects import OBJECTS, PLACES

# Nouns that no scene shows, so that groups are larger and have words for both articles.
_FURTHER = {
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
_MORE_GENERAL = {
    **dict.fromkeys(("duck", "owl", "penguin"), ("bird",)),
    **dict.fromkeys(("pine", "fir"), ("tree",)),
}
# For people, for places, and for all else, with words for both articles.
_DANGER = {
    "person": ("criminal", "intruder", "murderer", "outlaw"),
    "place": ("minefield", "ambush", "battlefield", "inferno"),
    "": ("weapon", "explosive", "bomb", "axe"),
}
ORDINARY_WORDS: tuple[str, ...] = tuple(
    """
    ability account actor adult advice afternoon agreement angle answer apron argument army article artist attic
    aunt autumn average award bacon bakery balcony band bargain baseball beard belief bench birthday blanket
    blue board body bold bone border bottle bowl brave bread breakfast brick bridge brother brush bucket budget
    butter button cabin cable camera candle captain careful carpet carry ceiling cellar century chain chance
    change charge cheese chicken chimney choice church circle citizen clever climb cloth coffee collar college
    comb company corner cotton counter cousin cream crowd cup curtain damage dance danger daughter debate
    december degree dentist dinner diploma direction doubt dream dress dust eager ear early earth easy echo
    editor education effort egg elbow election elegant empty energy engine enormous entrance envelope equal
    error evening event exam exit expert eye fabric factory family famous farm fashion feather fence fiction
    film finger fire floor flour fork fountain freedom fridge friend frog funny game garage garden garlic gentle
    glass glove gold grain guest habit hair hammer hand handle happy harvest heart heavy history holiday honest
    honey hope hospital hotel hour hungry ice idea income industry ink insect invitation iron island item jacket
    jar jazz jelly jewel joke journey judge juice july jump kettle key kind kiss kitchen knee knife knock label
    lazy leaf leather lemon lesson letter level liquid list loud lucky lunch machine magazine magic mail map
    marble marriage mask match meal medal melody memory message metal middle milk minute mirror money month
    morning mouth movie muscle music mystery nail napkin narrow nation needle neighbor nephew nervous nest
    network noise noon north nose notebook novel number nurse object ocean office oil olive onion opera opinion
    orchestra oven owner package paint paper parade parent party patient peace pencil pepper perfect phone photo
    piano pillow pilot pipe pizza planet plate pleasant pocket poem poet police polite potato prize problem
    profit promise proud puzzle quality quarter question quick quiet radio rain recipe record relax rent reply
    report rhythm rice ring river rocket roof rope rough rubber rude salad salt sandwich sauce scarf school
    science scissors screen season secret sentence shadow shampoo sharp shelf shirt shoe shop shoulder silence
    silver singer sister skill skirt sleep smart smoke soap sock soft soldier song soup spice spoon sport spring
    stamp station statue steam stone storm story strange student sugar suit summer sunset surprise sweater sweet
    sword symbol taste teacher telephone temple tennis thief thread ticket tie tired toast tobacco tongue tooth
    topic towel tower traffic travel treasure trouble trumpet trust uncle uniform urgent useful vacation valley
    value village violin voice volume vote wagon wallet warm water weak wealth weather wedding weekend wheel
    whisper window wine winter wisdom wonderful wool word worker writer yard yellow young zebra zipper
    """.split()
)


@dataclass(frozen=True)
class Noun:
    """A noun in singular or plural. Synonyms and both forms share a `meaning`; `group` is the concept."""

    word: str
    meaning: str
    group: str
    is_plural: bool


@functools.cache
def nouns() -> Mapping[str, Noun]:
    """Every noun of the lexicon by its word, singular and plural. A word that is both counts as singular."""
    singular = [(word, kind.name, kind.group) for kind in OBJECTS for word in kind.nouns]
    singular += [(word, place.name, "place") for place in PLACES for word in place.nouns]
    singular += [(word, word, group) for group, words in _FURTHER.items() for word in words.split()]
    found: dict[str, Noun] = {}
    for word, meaning, group in singular:
        found.setdefault(plural_of(word), Noun(plural_of(word), meaning, group, True))
        found[word] = Noun(word, meaning, group, False)
    return found


def danger_words() -> tuple[str, ...]:
    """Every word that the variant `danger` may insert."""
    singular = [word for words in _DANGER.values() for word in words]
    return (*singular, *map(plural_of, singular))


@functools.cache
def demo_lexicon():
    """The nouns as a `rococo_jax.perturb.text.lexicon.Lexicon`; nouns of one meaning are synonyms."""
    from rococo_jax.perturb.text.lexicon import Group, Lexicon
    from rococo_jax.perturb.text.lexicon import Noun as LexiconNoun

    by_group: dict[str, list[LexiconNoun]] = {}
    meanings: dict[str, list[str]] = {}
    for noun in nouns().values():
        if not noun.is_plural:
            by_group.setdefault(noun.group, []).append(LexiconNoun(noun.word, plural_of(noun.word), noun.group))
            meanings.setdefault(noun.meaning, []).append(noun.word)
    groups = [
        Group(name, name if name in ("person", "place") else "thing", tuple(members))
        for name, members in by_group.items()
    ]
    synonyms = [words for words in meanings.values() if len(words) > 1]
    return Lexicon(groups, synonyms, _MORE_GENERAL, name="demo")
