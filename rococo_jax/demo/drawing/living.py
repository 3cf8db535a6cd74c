"""Animals and people. Each function draws one standing on the ground (fliers around their middle)."""

from rococo_jax.demo.drawing import COLOURS, INK, Brush, Colour, Number, dark, light

WHITE, PINK, ORANGE, YELLOW = (COLOURS[name] for name in ("white", "pink", "orange", "yellow"))
SKIN: Colour = (240, 196, 160)
BROWN_SKIN: Colour = (172, 116, 80)
JEANS: Colour = (62, 80, 128)


def _eye(brush: Brush, x: float, y: float, radius: float = 0.035) -> None:
    brush.disc(x, y, radius, INK)
    brush.disc(x + radius * 0.3, y + radius * 0.35, radius * 0.35, WHITE)


def cat(brush: Brush, colour: Colour) -> None:
    brush.curve([(0.18, 0.06), (0.42, 0.08), (0.46, 0.3), (0.36, 0.44)], 0.09, dark(colour, 0.12))
    brush.blob([(-0.22, 0.0), (-0.25, 0.25), (-0.13, 0.55), (0.13, 0.55), (0.25, 0.25), (0.22, 0.0)], colour)
    brush.oval(0, 0.3, 0.11, 0.17, light(colour, 0.4))
    for side in (-1, 1):
        brush.polygon([(side * 0.25, 0.68), (side * 0.25, 1.0), (side * 0.04, 0.84)], colour)
        brush.polygon([(side * 0.21, 0.76), (side * 0.215, 0.92), (side * 0.1, 0.84)], PINK)
        brush.oval(side * 0.1, 0.03, 0.09, 0.05, light(colour, 0.25))
    brush.oval(0, 0.69, 0.27, 0.21, colour)
    for x in (-0.06, 0, 0.06):
        brush.line([(x, 0.88), (x * 0.9, 0.8)], 0.02, dark(colour, 0.35))
    brush.oval(-0.05, 0.61, 0.07, 0.05, light(colour, 0.55))
    brush.oval(0.05, 0.61, 0.07, 0.05, light(colour, 0.55))
    brush.polygon([(-0.03, 0.66), (0.03, 0.66), (0, 0.625)], PINK)
    for side in (-1, 1):
        _eye(brush, side * 0.11, 0.72, 0.045)
        for y in (0.66, 0.6):
            brush.line([(side * 0.14, 0.62), (side * 0.31, y)], 0.008, dark(colour, 0.5))


def dog(brush: Brush, colour: Colour) -> None:
    brush.curve([(-0.36, 0.44), (-0.48, 0.55), (-0.5, 0.72)], 0.07, colour)
    for x in (-0.22, 0.2):
        brush.line([(x, 0.3), (x, 0.05)], 0.1, dark(colour, 0.2))
    brush.blob([(-0.4, 0.42), (-0.3, 0.54), (0, 0.52), (0.26, 0.58), (0.32, 0.38), (0.2, 0.24), (-0.3, 0.24)], colour)
    for x in (-0.32, 0.1):
        brush.line([(x, 0.32), (x, 0.05)], 0.11, colour)
        brush.oval(x + 0.03, 0.035, 0.08, 0.04, light(colour, 0.35))
    brush.oval(0.26, 0.72, 0.2, 0.19, colour, turn=-10)
    brush.oval(0.42, 0.66, 0.13, 0.09, light(colour, 0.4))
    brush.oval(0.52, 0.69, 0.04, 0.035, INK)
    brush.line([(0.14, 0.52), (0.34, 0.5)], 0.05, COLOURS["red"])
    brush.disc(0.28, 0.47, 0.035, YELLOW)
    brush.blob([(0.1, 0.88), (0.2, 0.84), (0.19, 0.62), (0.1, 0.52), (0.03, 0.66)], dark(colour, 0.4))
    _eye(brush, 0.32, 0.76, 0.035)


def rabbit(brush: Brush, colour: Colour) -> None:
    brush.disc(-0.28, 0.16, 0.09, WHITE)
    brush.blob([(-0.26, 0.02), (-0.3, 0.25), (-0.1, 0.46), (0.14, 0.44), (0.22, 0.2), (0.2, 0.0)], colour)
    brush.oval(-0.1, 0.15, 0.15, 0.13, dark(colour, 0.1))
    brush.oval(0.0, 0.03, 0.2, 0.045, light(colour, 0.3))
    brush.oval(0.0, 0.83, 0.07, 0.2, colour, turn=10)
    brush.oval(0.16, 0.83, 0.07, 0.2, colour, turn=-10)
    brush.oval(0.0, 0.83, 0.035, 0.15, PINK, turn=10)
    brush.oval(0.16, 0.83, 0.035, 0.15, PINK, turn=-10)
    brush.oval(0.09, 0.52, 0.19, 0.17, colour)
    brush.oval(0.17, 0.45, 0.09, 0.06, light(colour, 0.5))
    brush.oval(0.21, 0.49, 0.03, 0.022, PINK)
    _eye(brush, 0.12, 0.56, 0.036)
    brush.line([(0.2, 0.44), (0.3, 0.46)], 0.008, dark(colour, 0.5))
    brush.line([(0.2, 0.44), (0.3, 0.41)], 0.008, dark(colour, 0.5))


def horse(brush: Brush, colour: Colour) -> None:
    mane = dark(colour, 0.5)
    brush.curve([(-0.36, 0.52), (-0.5, 0.42), (-0.47, 0.16)], 0.09, mane)
    for x in (-0.22, 0.12):
        brush.line([(x, 0.36), (x + 0.02, 0.04)], 0.07, dark(colour, 0.2))
    brush.blob([(-0.4, 0.5), (-0.2, 0.6), (0.1, 0.58), (0.24, 0.66), (0.26, 0.42), (0.1, 0.34), (-0.34, 0.34)], colour)
    for x in (-0.32, 0.2):
        brush.line([(x, 0.42), (x, 0.05)], 0.085, colour)
        brush.line([(x, 0.06), (x, 0.035)], 0.085, INK)
    brush.blob([(0.06, 0.56), (0.18, 0.88), (0.3, 0.92), (0.34, 0.8), (0.28, 0.5)], colour)
    brush.oval(0.36, 0.82, 0.16, 0.09, colour, turn=-28)
    brush.oval(0.45, 0.765, 0.065, 0.06, light(colour, 0.35))
    brush.polygon([(0.22, 0.9), (0.24, 1.0), (0.3, 0.92)], colour)
    brush.blob([(0.02, 0.54), (0.08, 0.78), (0.2, 0.96), (0.26, 0.9), (0.16, 0.74), (0.12, 0.54)], mane)
    _eye(brush, 0.32, 0.86, 0.028)
    brush.disc(0.47, 0.77, 0.014, INK)


def cow(brush: Brush, colour: Colour) -> None:
    spot = INK if colour != COLOURS["black"] else WHITE
    brush.curve([(-0.4, 0.5), (-0.48, 0.36), (-0.46, 0.2)], 0.03, colour)
    brush.disc(-0.46, 0.18, 0.04, spot)
    for x in (-0.24, 0.1):
        brush.line([(x, 0.3), (x, 0.05)], 0.1, dark(colour, 0.2))
    brush.oval(-0.12, 0.24, 0.09, 0.06, PINK)
    brush.box(-0.42, 0.26, 0.28, 0.64, colour, round=0.14)
    brush.blob([(-0.32, 0.6), (-0.16, 0.61), (-0.12, 0.46), (-0.28, 0.42)], spot)
    brush.blob([(0.0, 0.44), (0.14, 0.48), (0.12, 0.32), (-0.02, 0.32)], spot)
    for x in (-0.34, 0.2):
        brush.line([(x, 0.32), (x, 0.05)], 0.1, colour)
        brush.line([(x, 0.06), (x, 0.04)], 0.1, INK)
    for side in (-1, 1):
        brush.oval(0.33 + side * 0.18, 0.76, 0.08, 0.05, spot, turn=side * 12)
        brush.curve([(0.33 + side * 0.08, 0.82), (0.33 + side * 0.15, 0.87), (0.33 + side * 0.14, 0.95)], 0.04, YELLOW)
    brush.oval(0.33, 0.72, 0.14, 0.16, colour)
    brush.oval(0.33, 0.6, 0.15, 0.09, PINK)
    for side in (-1, 1):
        _eye(brush, 0.33 + side * 0.065, 0.76, 0.03)
        brush.disc(0.33 + side * 0.06, 0.6, 0.018, dark(PINK, 0.5))


def sheep(brush: Brush, colour: Colour) -> None:
    for x in (-0.24, -0.1, 0.1, 0.22):
        brush.line([(x, 0.26), (x, 0.04)], 0.06, INK)
    puffs = [(-0.32, 0.4), (-0.26, 0.54), (-0.1, 0.6), (0.06, 0.6), (0.2, 0.54), (0.26, 0.4), (0.16, 0.27)]
    for x, y in [*puffs, (-0.0, 0.25), (-0.16, 0.25), (-0.28, 0.29)]:
        brush.disc(x, y, 0.12, colour)
    brush.oval(-0.03, 0.42, 0.28, 0.18, colour)
    for x, y in [(-0.2, 0.42), (-0.04, 0.48), (0.08, 0.36), (-0.12, 0.33)]:
        brush.curve([(x - 0.05, y), (x, y - 0.035), (x + 0.05, y)], 0.016, dark(colour, 0.25))
    brush.oval(0.18, 0.66, 0.09, 0.045, dark(INK, 0.0), turn=20)
    brush.oval(0.47, 0.66, 0.08, 0.045, INK, turn=-20)
    brush.oval(0.33, 0.58, 0.12, 0.16, (70, 62, 72))
    for x in (0.25, 0.33, 0.4):
        brush.disc(x, 0.74, 0.07, colour)
    for x in (0.29, 0.38):
        brush.disc(x, 0.61, 0.03, WHITE)
        brush.disc(x + 0.008, 0.61, 0.016, INK)


def elephant(brush: Brush, colour: Colour) -> None:
    brush.curve([(-0.42, 0.5), (-0.5, 0.38), (-0.48, 0.28)], 0.03, dark(colour))
    for x in (-0.2, 0.06):
        brush.line([(x, 0.3), (x, 0.07)], 0.14, dark(colour, 0.2))
    brush.blob([(-0.44, 0.46), (-0.32, 0.7), (0.0, 0.74), (0.2, 0.62), (0.2, 0.32), (-0.36, 0.26)], colour)
    for x in (-0.33, 0.13):
        brush.line([(x, 0.32), (x, 0.075)], 0.15, colour)
        for toe in (-0.04, 0, 0.04):
            brush.oval(x + toe, 0.02, 0.018, 0.02, light(colour, 0.6))
    brush.curve([(0.36, 0.62), (0.47, 0.44), (0.45, 0.22), (0.52, 0.13)], 0.1, colour)
    brush.curve([(0.33, 0.5), (0.4, 0.42), (0.5, 0.42)], 0.045, WHITE)
    brush.disc(0.26, 0.66, 0.21, colour)
    brush.blob([(0.02, 0.82), (0.18, 0.84), (0.22, 0.6), (0.1, 0.42), (-0.06, 0.56)], dark(colour, 0.14))
    brush.blob([(0.05, 0.77), (0.15, 0.78), (0.17, 0.6), (0.1, 0.49), (0.0, 0.59)], light(PINK, 0.1))
    _eye(brush, 0.34, 0.7, 0.032)


def duck(brush: Brush, colour: Colour) -> None:
    for x in (-0.06, 0.08):
        brush.line([(x, 0.12), (x, 0.03)], 0.035, ORANGE)
        brush.oval(x + 0.04, 0.02, 0.08, 0.022, ORANGE)
    brush.blob([(-0.48, 0.48), (-0.3, 0.4), (0.1, 0.46), (0.3, 0.34), (0.2, 0.12), (-0.16, 0.1), (-0.36, 0.24)], colour)
    brush.blob([(-0.3, 0.34), (-0.02, 0.4), (0.1, 0.28), (-0.08, 0.18), (-0.24, 0.22)], dark(colour, 0.16))
    brush.line([(0.18, 0.4), (0.2, 0.58)], 0.17, colour)
    brush.disc(0.22, 0.68, 0.18, colour)
    brush.blob([(0.34, 0.73), (0.54, 0.68), (0.54, 0.63), (0.36, 0.58)], ORANGE)
    brush.line([(0.37, 0.65), (0.53, 0.655)], 0.012, dark(ORANGE, 0.4))
    _eye(brush, 0.26, 0.74, 0.035)


def pig(brush: Brush, colour: Colour) -> None:
    brush.curve([(-0.4, 0.42), (-0.5, 0.48), (-0.44, 0.54), (-0.5, 0.6)], 0.03, dark(colour, 0.15))
    for x in (-0.2, 0.08):
        brush.line([(x, 0.24), (x, 0.05)], 0.1, dark(colour, 0.2))
    brush.oval(-0.1, 0.38, 0.34, 0.23, colour)
    for x in (-0.3, 0.16):
        brush.line([(x, 0.26), (x, 0.05)], 0.1, dark(colour, 0.06))
        brush.line([(x, 0.05), (x, 0.04)], 0.1, dark(colour, 0.5))
    for side in (-1, 1):
        brush.polygon(
            [(0.24 + side * 0.06, 0.66), (0.24 + side * 0.2, 0.76), (0.24 + side * 0.19, 0.56)], dark(colour, 0.15)
        )
    brush.disc(0.24, 0.52, 0.2, colour)
    brush.oval(0.27, 0.47, 0.1, 0.075, light(dark(colour, 0.1), 0.3))
    for side in (-1, 1):
        brush.oval(0.27 + side * 0.035, 0.47, 0.016, 0.028, dark(colour, 0.6))
        _eye(brush, 0.25 + side * 0.09, 0.6, 0.027)


def penguin(brush: Brush, colour: Colour) -> None:
    for side in (-1, 1):
        brush.oval(side * 0.12, 0.03, 0.12, 0.045, ORANGE)
        brush.oval(side * 0.27, 0.42, 0.07, 0.2, colour, turn=side * 22)
    brush.blob([(-0.22, 0.04), (-0.28, 0.4), (-0.22, 0.8), (0, 0.96), (0.22, 0.8), (0.28, 0.4), (0.22, 0.04)], colour)
    brush.blob([(-0.15, 0.06), (-0.2, 0.34), (-0.12, 0.6), (0.12, 0.6), (0.2, 0.34), (0.15, 0.06)], WHITE)
    for side in (-1, 1):
        brush.oval(side * 0.09, 0.74, 0.1, 0.11, WHITE)
        _eye(brush, side * 0.09, 0.75, 0.035)
    brush.polygon([(-0.07, 0.69), (0.07, 0.69), (0, 0.58)], ORANGE)


def owl(brush: Brush, colour: Colour) -> None:
    for side in (-1, 1):
        brush.oval(side * 0.1, 0.03, 0.08, 0.035, ORANGE)
        brush.polygon([(side * 0.28, 0.68), (side * 0.3, 0.97), (side * 0.08, 0.86)], colour)
    brush.blob(
        [(-0.18, 0.03), (-0.31, 0.35), (-0.27, 0.78), (0, 0.88), (0.27, 0.78), (0.31, 0.35), (0.18, 0.03)], colour
    )
    brush.oval(0, 0.28, 0.18, 0.22, light(colour, 0.5))
    for x, y in [
        (-0.08, 0.4), (0.08, 0.4), (0, 0.33), (-0.09, 0.26), (0.09, 0.26), (0, 0.19), (-0.06, 0.12), (0.06, 0.12),
    ]:  # fmt: skip
        brush.curve([(x - 0.04, y + 0.02), (x, y - 0.02), (x + 0.04, y + 0.02)], 0.018, dark(colour, 0.1))
    for side in (-1, 1):
        brush.oval(side * 0.26, 0.34, 0.08, 0.22, dark(colour, 0.25), turn=side * 10)
        brush.disc(side * 0.13, 0.68, 0.14, light(colour, 0.6))
        brush.disc(side * 0.12, 0.68, 0.1, YELLOW)
        brush.disc(side * 0.11, 0.68, 0.06, INK)
        brush.disc(side * 0.11 + 0.02, 0.7, 0.02, WHITE)
    brush.polygon([(-0.05, 0.62), (0.05, 0.62), (0, 0.52)], ORANGE)


def bird(brush: Brush, colour: Colour) -> None:
    """In the air, around y = 0.5."""
    brush.polygon([(-0.22, 0.5), (-0.52, 0.6), (-0.47, 0.48), (-0.52, 0.4)], dark(colour, 0.3))
    brush.polygon([(0.02, 0.54), (0.16, 0.98), (0.28, 0.9), (0.2, 0.52)], dark(colour, 0.35))
    brush.blob([(-0.28, 0.5), (-0.05, 0.62), (0.2, 0.6), (0.28, 0.46), (0.08, 0.34), (-0.16, 0.4)], colour)
    brush.blob([(0.22, 0.46), (0.08, 0.36), (-0.1, 0.42), (0.06, 0.48)], light(colour, 0.55))
    brush.disc(0.27, 0.6, 0.14, colour)
    brush.polygon([(0.38, 0.64), (0.54, 0.58), (0.38, 0.55)], ORANGE)
    brush.blob(
        [(-0.14, 0.52), (-0.18, 0.86), (-0.06, 1.0), (0.06, 0.78), (0.14, 0.52), (0.0, 0.46)], light(colour, 0.2)
    )
    for x, y in [(-0.12, 0.84), (-0.03, 0.78), (0.05, 0.68)]:
        brush.line([(x, y), (x + 0.03, y - 0.14)], 0.016, dark(colour, 0.25))
    _eye(brush, 0.3, 0.64, 0.03)


def butterfly(brush: Brush, colour: Colour) -> None:
    """In the air, around y = 0.5."""
    for side in (-1, 1):
        brush.blob([(0, 0.55), (side * 0.2, 0.9), (side * 0.48, 0.92), (side * 0.46, 0.62), (side * 0.2, 0.5)], colour)
        brush.blob(
            [(0, 0.48), (side * 0.24, 0.5), (side * 0.38, 0.3), (side * 0.24, 0.1), (side * 0.08, 0.22)], light(colour)
        )
        brush.disc(side * 0.34, 0.77, 0.075, light(colour, 0.65))
        brush.disc(side * 0.24, 0.3, 0.055, dark(colour, 0.25))
        brush.curve([(0, 0.76), (side * 0.06, 0.9), (side * 0.14, 0.96)], 0.02, INK)
    brush.oval(0, 0.5, 0.05, 0.27, INK)
    brush.disc(0, 0.77, 0.06, INK)


def fish(brush: Brush, colour: Colour) -> None:
    brush.blob([(-0.24, 0.35), (-0.5, 0.6), (-0.42, 0.35), (-0.5, 0.08)], dark(colour, 0.2))
    brush.blob([(-0.1, 0.54), (0.02, 0.74), (0.2, 0.66), (0.22, 0.5)], dark(colour, 0.2))
    brush.blob([(-0.06, 0.2), (0.0, 0.02), (0.12, 0.04), (0.12, 0.2)], dark(colour, 0.2))
    brush.blob([(-0.34, 0.35), (-0.1, 0.56), (0.24, 0.56), (0.46, 0.36), (0.24, 0.14), (-0.1, 0.14)], colour)
    brush.blob([(-0.2, 0.24), (0.1, 0.25), (0.38, 0.26), (0.22, 0.15), (-0.08, 0.15)], light(colour, 0.4))
    for x in (-0.1, 0.06):
        brush.curve([(x, 0.52), (x + 0.06, 0.36), (x, 0.2)], 0.05, WHITE)
    brush.disc(0.29, 0.43, 0.065, WHITE)
    brush.disc(0.305, 0.43, 0.036, INK)
    brush.curve([(0.44, 0.3), (0.39, 0.28), (0.36, 0.3)], 0.018, dark(colour, 0.5))


# People: one figure with a few choices (head, hair, trousers or a skirt); the colour is that of the clothes.


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
            (-0.1, neck), (-0.13, hip * 1.25), (-0.24, hip * 0.55), (0.24, hip * 0.55), (0.13, hip * 1.25),
            (0.1, neck),
        ]  # fmt: skip
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
