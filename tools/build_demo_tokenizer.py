"""Build the demo model's tokenizer from the words of the scenes and of the lexicon.

It is BERT's WordPiece with a fixed vocabulary: every word of the training captions and of the lexicon is one token, and
so is every ASCII character, at the start and inside of a word, so that other words are spelled. Case and accents are
removed; a word with a character of another script is [UNK].
"""

import re
import string

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.demo.captions import captions_of, demo_lexicon, plural_of
from rococo_jax.demo.scenes import make_scene

CONTEXT_LENGTH = 48
_PAD, _UNKNOWN, _START, _END = _SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
# Words of the variant `danger` and similar ones: for people, for places, and for everything else.
DANGER = "criminal intruder murderer outlaw minefield ambush battlefield inferno weapon explosive bomb axe".split()
# Words that no scene contains, so that other captions are not spelled letter by letter.
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


def make_tokenizer(scenes: int = 4000) -> Tokenizer:
    """Return the tokenizer for the words of the first `scenes` training scenes and of the lexicon."""
    tokens = [*_SPECIAL, *_characters(), *_words(scenes)]
    ids = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    rust = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=_UNKNOWN, max_input_chars_per_word=100))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    rust.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A {_END}", special_tokens=[(_START, ids[_START]), (_END, ids[_END])]
    )
    rust.add_special_tokens(list(_SPECIAL))
    spec = TokenizerSpec("bert", "none", context_length=CONTEXT_LENGTH, pad_id=ids[_PAD], eos_id=ids[_END])
    return Tokenizer(rust, spec)


def _characters() -> list[str]:
    letters = string.ascii_lowercase + string.digits
    return [*string.punctuation, *letters, *(f"##{letter}" for letter in letters)]


def _words(scenes: int) -> list[str]:
    captions = (caption for index in range(scenes) for caption in captions_of(make_scene("train", 0, index)))
    caption_words = {word for caption in captions for word in re.findall(r"[a-z]+", caption.lower())}
    nouns = [form for noun in demo_lexicon().nouns for form in (noun.singular, noun.plural)]
    return sorted(caption_words.union(ORDINARY_WORDS, nouns, DANGER, map(plural_of, DANGER)))
