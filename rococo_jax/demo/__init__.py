"""The embedded default: drawn scenes with captions and altered captions, in the form of a user's own benchmark.

Importing it registers `scenes:COUNT` as training data and `demo` as a lexicon.
"""

from rococo_jax.data.captioned_images import register_source
from rococo_jax.perturb.text.lexicon import register_lexicon


def _open_scenes(name: str):
    from rococo_jax.demo.training_scenes import open_scenes

    return open_scenes(name)


def _demo_lexicon():
    from rococo_jax.demo.captions import demo_lexicon

    return demo_lexicon()


register_source("scenes:", _open_scenes)
register_lexicon("demo", _demo_lexicon)
