"""A small lexicon of the scenes' nouns, and altered captions made with it: one noun of a caption is replaced.

The variants are those of RoCOCO (arXiv 2304.10727): a noun of the same concept group, a noun of another group, any
word at all, a dangerous word. Which noun is replaced depends on the caption and the seed, not on the variant. The new
word agrees in number and with the article before it, keeps case and punctuation, names nothing that any caption of
the image names, and is in none of them.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rococo_jax.data.annotations import AlteredCaptions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import article_of, plural_of
from rococo_jax.demo.dice import Dice
from rococo_jax.demo.kinds import KINDS, PLACES

VARIANTS = ("same_concept", "diff_concept", "rand_voca", "danger")

# Further nouns, so that a group is larger than what the scenes show, and has words for either article.
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
# For people, for places, and for all else; one of each for either article.
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
    """A noun in one number. `meaning` is shared by synonyms and by both numbers; `group` is the concept."""

    word: str
    meaning: str
    group: str
    is_plural: bool


@functools.cache
def nouns() -> Mapping[str, Noun]:
    """Every noun of the lexicon by its word, in both numbers. A word that is the same in both is held as singular."""
    singular = [(word, kind.name, kind.group) for kind in KINDS for word in kind.nouns]
    singular += [(word, place.name, "place") for place in PLACES for word in place.nouns]
    singular += [(word, word, group) for group, words in _FURTHER.items() for word in words.split()]
    found: dict[str, Noun] = {}
    for word, meaning, group in singular:
        found.setdefault(plural_of(word), Noun(plural_of(word), meaning, group, True))
        found[word] = Noun(word, meaning, group, False)
    return found


def danger_words() -> tuple[str, ...]:
    """Every word that the variant `danger` may put in."""
    singular = [word for words in _DANGER.values() for word in words]
    return (*singular, *map(plural_of, singular))


def alter_captions(
    items: Sequence[CaptionedImage], variant: str, seed: int
) -> tuple[list[AlteredCaptions], list[list[dict[str, Any] | None]]]:
    """Altered captions of every image, and for each what was changed; both as `write_annotation` takes them.

    Raises:
        ValueError: `variant` is none of `VARIANTS`.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is none of {', '.join(VARIANTS)}")
    altered, changes = [], []
    for item in items:
        pairs = [_alter(caption, item.captions, variant, seed) for caption in item.captions]
        altered.append(AlteredCaptions(item.image, item.captions, tuple(text for text, _ in pairs)))
        changes.append([change for _, change in pairs])
    return altered, changes


def _words(caption: str) -> list[str]:
    return re.findall(r"[a-z]+", caption.lower())


def _alter(caption: str, originals: Sequence[str], variant: str, seed: int) -> tuple[str | None, dict | None]:
    parts = re.split(r"([A-Za-z]+)", caption)
    candidates = [index for index in range(1, len(parts), 2) if parts[index].lower() in nouns()]
    if not candidates:
        return None, None
    index = Dice("place", seed, caption).choose(candidates)
    old = nouns()[parts[index].lower()]
    present = {word for original in originals for word in _words(original)}
    meanings = {nouns()[word].meaning for word in present if word in nouns()}
    # Only an article right before the noun has to agree with it.
    before = parts[index - 2].lower() if index > 1 and parts[index - 1] == " " else ""
    article = before if before in ("a", "an") else None
    choices = [
        word
        for word, meaning, its_article in _pool(old.group, old.is_plural, variant)
        if word not in present and meaning not in meanings and article in (None, its_article)
    ]
    if not choices:
        return None, None
    new = Dice("word", seed, variant, caption).choose(choices)
    parts[index] = new.capitalize() if parts[index][0].isupper() else new
    change = {"word_index": "".join(parts[:index]).count(" "), "old": old.word, "new": new}
    return "".join(parts), {**change, "concept": old.group, "influence": None}


@functools.cache
def _pool(group: str, is_plural: bool, variant: str) -> tuple[tuple[str, str, str], ...]:
    """All (word, meaning, article) that a variant may put in the place of such a noun, whatever the captions say."""
    if variant == "danger":
        words = [plural_of(word) if is_plural else word for word in _DANGER.get(group, _DANGER[""])]
    elif variant == "rand_voca":
        words = list(dict.fromkeys((*ORDINARY_WORDS, *nouns())))
    else:
        agreeing = [noun for noun in nouns().values() if noun.is_plural == is_plural]
        words = [noun.word for noun in agreeing if (noun.group == group) == (variant == "same_concept")]
    meanings = [nouns()[word].meaning if word in nouns() else word for word in words]
    return tuple(zip(words, meanings, map(article_of, words), strict=True))
