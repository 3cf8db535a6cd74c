"""Pretrain a CLIP from scratch on tars of millions of pairs; half of the patches dropped, as FLIP (arXiv 2212.00794).

    rococo train --config configs/web_pretrain.py --workdir runs/web \
        --config.data.images="cc12m-{00000..01242}.tar,datacomp-{00000000..00001287}.tar" --config.data.weights=0.4,0.6
    rococo train --config configs/web_unmasked.py --workdir runs/web-whole --config.init.model=runs/web/model ...

The rate falls as a root and then, in the last fifth, to 0: a longer run can begin at any checkpoint before (arXiv
2106.04560). Tars are read from front to back. The settings are usual ones for ViT-B/32; none was compared here.
"""

from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    vision = {"image_size": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12, "mlp_width": 3072}
    vision |= {"activation": "gelu", "norm_eps": 1e-5, "class_token": True, "patch_bias": False}
    vision |= {"norm_before_blocks": True, "layer_scale": False, "pooling": "cls"}
    text = {"vocabulary_size": 0, "context_length": 77, "width": 512, "layers": 12, "heads": 8, "mlp_width": 2048}
    text |= {"activation": "gelu", "norm_eps": 1e-5, "attention": "causal", "norm_after_blocks": False}
    text |= {"pooling": "first_eos", "eos_id": 49407}
    head = {"kind": "linear", "dim": 512}
    config.init.spec = {"vision": vision, "text": text, "vision_head": head, "text_head": head}
    config.init.preprocessing = {
        "shortest_edge": 224, "crop_size": [224, 224], "resample": "bicubic",
        "mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711],
    }  # fmt: skip
    config.init.tokenizer = "openai/clip-vit-base-patch32"
    config.steps = 100_000
    config.batch_size = 16_384
    config.dtype = "bfloat16"
    config.remat = "dots"
    config.patch_dropout = 0.5
    config.data.images = "cc12m-{00000..01242}.tar"
    config.data.order = "shards"
    # One COCO caption in a thousand is longer, and is cut.
    config.data.text_length = 32
    config.data.random_crop_min_scale = 0.5
    config.data.color_jitter = "0.32,0.32,0.32,0.08"
    config.data.grayscale_prob = 0.2
    config.optimizer.schedule = "rsqrt"
    config.optimizer.warmup_steps = 2000
    config.optimizer.cooldown_fraction = 0.2
    config.optimizer.moments = "bfloat16"
    config.optimizer.weight_decay = 0.2
    config.checkpoint.every = 1000
    config.checkpoint.minutes = 30.0
    return config
