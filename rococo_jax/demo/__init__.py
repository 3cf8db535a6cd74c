"""The embedded default: drawn scenes with captions and altered captions, in the form of a user's own benchmark.

Importing it registers `scenes:COUNT` as training data.
"""

from rococo_jax.data.captioned_images import register_source


def _open_scenes(name: str):
    from rococo_jax.demo.training_scenes import open_scenes

    return open_scenes(name)


register_source("scenes:", _open_scenes)
