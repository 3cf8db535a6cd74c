"""People: one figure with a few choices (height of the head, hair, trousers or a skirt), in the clothes' colour."""

from rococo_jax.demo.drawing.brush import COLOURS, INK, Brush, Colour, Number, dark, light

SKIN: Colour = (240, 196, 160)
BROWN_SKIN: Colour = (172, 116, 80)
JEANS: Colour = (62, 80, 128)


def _figure(brush: Brush, colour: Colour, skin: Colour, head: Number, skirt: bool) -> None:
    """Legs, clothes, arms and a face. `head` is the radius of the head, larger for children."""
    neck = 0.98 - 2 * head
    hip, shoulder = neck * 0.48, 0.14 + head * 0.2
    for side in (-1, 1):
        brush.line([(side * 0.07, hip), (side * 0.08, 0.05)], 0.09, skin if skirt else JEANS)
        brush.oval(side * 0.1, 0.03, 0.085, 0.035, INK)
        arm = [(side * shoulder * 0.8, neck - 0.06), (side * 0.25, neck * 0.72), (side * 0.26, neck * 0.52)]
        brush.curve(arm, 0.075, dark(colour, 0.14))
        brush.disc(side * 0.26, neck * 0.5, 0.045, skin)
    if skirt:
        flare = [
            (-0.1, neck),
            (-0.13, hip * 1.25),
            (-0.24, hip * 0.55),
            (0.24, hip * 0.55),
            (0.13, hip * 1.25),
            (0.1, neck),
        ]
        brush.polygon(flare, colour)
        brush.line([(-0.125, hip * 1.28), (0.125, hip * 1.28)], 0.035, light(colour, 0.6))
    else:
        brush.box(-0.155, hip - 0.03, 0.155, neck, colour, round=0.07)
        brush.line([(-0.14, hip), (0.14, hip)], 0.04, dark(JEANS, 0.4))
    brush.line([(0, neck - 0.02), (0, neck + 0.05)], 0.08, dark(skin, 0.1))
    brush.disc(0, 0.98 - head, head, skin)
    for side in (-1, 1):
        brush.disc(side * head * 0.38, 0.98 - head * 1.02, head * 0.12, INK)
        brush.disc(side * head * 0.6, 0.98 - head * 1.35, head * 0.15, light(COLOURS["red"], 0.45))
    brush.curve(
        [(-head * 0.3, 0.98 - head * 1.38), (0, 0.98 - head * 1.55), (head * 0.3, 0.98 - head * 1.38)], 0.016, INK
    )


def man(brush: Brush, colour: Colour) -> None:
    hair: Colour = (60, 42, 34)
    _figure(brush, colour, BROWN_SKIN, 0.12, skirt=False)
    brush.sector(0, 0.865, 0.135, 12, 168, hair)
    brush.blob([(-0.115, 0.84), (-0.08, 0.78), (0, 0.72), (0.08, 0.78), (0.115, 0.84), (0.05, 0.8), (-0.05, 0.8)], hair)


def woman(brush: Brush, colour: Colour) -> None:
    hair: Colour = (122, 62, 34)
    for side in (-1, 1):
        brush.blob([(side * 0.02, 0.98), (side * 0.17, 0.86), (side * 0.19, 0.62), (side * 0.05, 0.66)], hair)
    _figure(brush, colour, SKIN, 0.12, skirt=True)
    brush.blob([(-0.14, 0.84), (-0.12, 0.97), (0, 1.02), (0.12, 0.97), (0.14, 0.84), (0.06, 0.94), (-0.04, 0.93)], hair)


def boy(brush: Brush, colour: Colour) -> None:
    cap = dark(colour, 0.3)
    _figure(brush, colour, SKIN, 0.17, skirt=False)
    brush.sector(0, 0.84, 0.19, 5, 175, cap)
    brush.line([(0.02, 0.86), (0.28, 0.86)], 0.05, cap)
    brush.disc(0, 1.03, 0.03, light(colour, 0.4))


def girl(brush: Brush, colour: Colour) -> None:
    hair: Colour = (226, 168, 62)
    for side in (-1, 1):
        brush.oval(side * 0.27, 0.78, 0.07, 0.14, hair, turn=side * 25)
        brush.disc(side * 0.2, 0.88, 0.035, COLOURS["red"])
    _figure(brush, colour, SKIN, 0.17, skirt=True)
    brush.sector(0, 0.85, 0.185, 15, 165, hair)


PEOPLE = (man, woman, boy, girl)
