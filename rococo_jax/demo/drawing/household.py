"""Things of a house: food, furniture, toys, an umbrella, a gift, a clock."""

import math

from rococo_jax.demo.drawing import COLOURS, INK, Brush, Colour, dark, light

WHITE, YELLOW, BROWN, RED, GREEN, PINK = (COLOURS[n] for n in ("white", "yellow", "brown", "red", "green", "pink"))
CREAM: Colour = (250, 228, 178)
WOOD: Colour = (176, 122, 74)


def apple(brush: Brush, colour: Colour) -> None:
    brush.curve([(0.0, 0.72), (0.02, 0.86), (0.08, 0.95)], 0.05, BROWN)
    brush.oval(0.2, 0.88, 0.15, 0.065, GREEN, turn=25)
    border = [(0, 0.74), (0.22, 0.82), (0.42, 0.66), (0.42, 0.36), (0.22, 0.04), (0, 0.07)]
    brush.blob(border + [(-x, y) for x, y in border[:0:-1] if x], colour)
    brush.oval(-0.22, 0.56, 0.07, 0.13, light(colour, 0.6), turn=-20)


def banana(brush: Brush, colour: Colour) -> None:
    curve = [(-0.42, 0.72), (-0.34, 0.38), (-0.05, 0.14), (0.3, 0.14), (0.5, 0.3)]
    brush.blob([*curve, (0.3, 0.38), (0.05, 0.42), (-0.16, 0.56), (-0.3, 0.76)], colour)
    brush.curve([(-0.36, 0.68), (-0.22, 0.42), (0.02, 0.27), (0.42, 0.28)], 0.03, dark(colour, 0.22))
    brush.line([(-0.36, 0.74), (-0.38, 0.86)], 0.09, dark(colour, 0.55))
    brush.disc(0.48, 0.3, 0.045, dark(colour, 0.6))


def pear(brush: Brush, colour: Colour) -> None:
    brush.curve([(0.0, 0.84), (0.02, 0.93), (0.07, 0.99)], 0.045, BROWN)
    brush.oval(0.15, 0.92, 0.12, 0.05, dark(GREEN, 0.2), turn=20)
    half = [(0, 0.88), (0.15, 0.8), (0.19, 0.58), (0.33, 0.38), (0.32, 0.12), (0.12, 0.01), (0, 0.0)]
    brush.blob(half + [(-x, y) for x, y in half[:0:-1] if x], colour)
    brush.oval(-0.16, 0.32, 0.06, 0.12, light(colour, 0.55), turn=-10)


def strawberry(brush: Brush, colour: Colour) -> None:
    half = [(0, 0.76), (0.24, 0.78), (0.38, 0.6), (0.3, 0.3), (0.1, 0.03), (0, 0.0)]
    brush.blob(half + [(-x, y) for x, y in half[:0:-1] if x], colour)
    for x, y in [
        (-0.22, 0.58), (0, 0.6), (0.22, 0.58), (-0.12, 0.42), (0.12, 0.42), (-0.2, 0.3), (0, 0.26), (0.2, 0.3),
        (0, 0.1),
    ]:  # fmt: skip
        brush.oval(x, y, 0.022, 0.036, light(COLOURS["yellow"], 0.3))
    for x, y in [(-0.3, 0.78), (-0.17, 0.92), (0.0, 0.96), (0.17, 0.92), (0.3, 0.78)]:
        brush.polygon([(0, 0.84), (x * 0.5 - 0.07, 0.72), (x, y), (x * 0.5 + 0.07, 0.72)], GREEN)


def watermelon(brush: Brush, colour: Colour) -> None:
    """A slice; `colour` is that of the rind."""
    brush.sector(0, 0.62, 0.54, 180, 360, colour)
    brush.sector(0, 0.62, 0.47, 180, 360, light(colour, 0.75))
    brush.sector(0, 0.62, 0.42, 180, 360, (232, 76, 84))
    for x, y in [(-0.26, 0.5), (-0.09, 0.5), (0.09, 0.5), (0.26, 0.5), (-0.17, 0.36), (0, 0.34), (0.17, 0.36)]:
        brush.oval(x, y, 0.022, 0.038, INK)


def cherry(brush: Brush, colour: Colour) -> None:
    brush.curve([(-0.22, 0.36), (-0.14, 0.66), (0.1, 0.92)], 0.04, dark(GREEN, 0.3))
    brush.curve([(0.24, 0.32), (0.22, 0.62), (0.1, 0.92)], 0.04, dark(GREEN, 0.3))
    brush.oval(0.26, 0.86, 0.17, 0.07, GREEN, turn=-18)
    for x, y in [(-0.23, 0.22), (0.24, 0.2)]:
        brush.disc(x, y, 0.2, colour)
        brush.oval(x - 0.07, y + 0.07, 0.04, 0.06, light(colour, 0.6), turn=-30)


def cake(brush: Brush, colour: Colour) -> None:
    brush.oval(0, 0.05, 0.52, 0.055, (220, 226, 236))
    brush.box(-0.42, 0.06, 0.42, 0.36, CREAM, round=0.04)
    brush.box(-0.42, 0.18, 0.42, 0.23, colour)
    brush.box(-0.3, 0.34, 0.3, 0.62, CREAM, round=0.04)
    brush.box(-0.42, 0.3, 0.42, 0.4, colour, round=0.05)
    brush.box(-0.3, 0.55, 0.3, 0.66, colour, round=0.05)
    for x in (-0.34, -0.14, 0.08, 0.3):
        brush.line([(x, 0.34), (x, 0.26)], 0.08, colour)
    for x in (-0.2, 0.0, 0.19):
        brush.line([(x, 0.58), (x, 0.5)], 0.08, colour)
        brush.line([(x * 0.9, 0.66), (x * 0.9, 0.84)], 0.045, WHITE if colour != WHITE else PINK)
        brush.oval(x * 0.9, 0.91, 0.035, 0.06, COLOURS["orange"])


def mushroom(brush: Brush, colour: Colour) -> None:
    brush.blob([(-0.12, 0.5), (-0.13, 0.2), (-0.18, 0.02), (0.18, 0.02), (0.13, 0.2), (0.12, 0.5)], CREAM)
    brush.sector(0, 0.42, 0.46, 0, 180, colour)
    brush.oval(0, 0.42, 0.46, 0.07, dark(CREAM, 0.12))
    brush.sector(0, 0.43, 0.45, 5, 175, colour)
    for x, y, r in [(-0.24, 0.58, 0.065), (0.02, 0.74, 0.08), (0.25, 0.6, 0.07), (0.02, 0.54, 0.05)]:
        brush.oval(x, y, r, r * 0.85, WHITE if colour != WHITE else COLOURS["red"])


def chair(brush: Brush, colour: Colour) -> None:
    for x in (-0.24, 0.26):
        brush.line([(x * 0.8, 0.4), (x * 0.86, 0.06)], 0.055, dark(colour, 0.4))
    brush.box(-0.33, 0.4, -0.24, 1.0, colour, round=0.03)
    brush.box(-0.3, 0.62, -0.12, 0.96, light(colour, 0.15), round=0.05)
    for x in (-0.28, 0.28):
        brush.line([(x, 0.4), (x, 0.03)], 0.07, colour)
    brush.box(-0.34, 0.36, 0.36, 0.46, colour, round=0.04)
    brush.box(-0.28, 0.44, 0.32, 0.5, light(colour, 0.45), round=0.03)


def table(brush: Brush, colour: Colour) -> None:
    for x in (-0.42, 0.42):
        brush.line([(x, 0.5), (x, 0.03)], 0.08, dark(colour, 0.15))
        brush.line([(x * 0.72, 0.5), (x * 0.72, 0.1)], 0.06, dark(colour, 0.4))
    brush.box(-0.46, 0.44, 0.46, 0.54, dark(colour, 0.25))
    brush.box(-0.56, 0.52, 0.56, 0.61, colour, round=0.03)


def sofa(brush: Brush, colour: Colour) -> None:
    for x in (-0.46, 0.46):
        brush.line([(x, 0.1), (x, 0.03)], 0.06, BROWN)
    brush.box(-0.5, 0.2, 0.5, 0.68, colour, round=0.1)
    brush.line([(0, 0.36), (0, 0.64)], 0.014, dark(colour, 0.35))
    brush.box(-0.44, 0.22, -0.01, 0.4, light(colour, 0.25), round=0.05)
    brush.box(0.01, 0.22, 0.44, 0.4, light(colour, 0.25), round=0.05)
    brush.box(-0.6, 0.08, 0.6, 0.26, dark(colour, 0.15), round=0.05)
    for side in (-1, 1):
        left, right = sorted((side * 0.62, side * 0.44))
        brush.box(left, 0.08, right, 0.48, dark(colour, 0.08), round=0.08)


def bed(brush: Brush, colour: Colour) -> None:
    brush.box(-0.62, 0.03, -0.54, 0.72, WOOD, round=0.03)
    brush.box(0.54, 0.03, 0.62, 0.46, WOOD, round=0.03)
    brush.box(-0.56, 0.14, 0.56, 0.26, dark(WOOD, 0.2))
    brush.box(-0.55, 0.24, 0.55, 0.4, WHITE, round=0.04)
    brush.box(-0.52, 0.38, -0.24, 0.52, WHITE, round=0.06)
    brush.box(-0.2, 0.16, 0.56, 0.43, colour, round=0.05)
    brush.box(-0.2, 0.16, -0.08, 0.43, light(colour, 0.55), round=0.04)


def lamp(brush: Brush, colour: Colour) -> None:
    brush.oval(0, 0.04, 0.2, 0.045, WOOD)
    brush.line([(0, 0.05), (0, 0.62)], 0.05, WOOD)
    brush.oval(0, 0.58, 0.2, 0.04, light(YELLOW, 0.5))
    brush.polygon([(-0.28, 0.56), (0.28, 0.56), (0.15, 0.96), (-0.15, 0.96)], colour)
    brush.polygon([(-0.2, 0.56), (-0.06, 0.56), (-0.05, 0.96), (-0.12, 0.96)], light(colour, 0.4))


def ball(brush: Brush, colour: Colour) -> None:
    brush.disc(0, 0.44, 0.44, colour)
    stripe = WHITE if colour != WHITE else RED
    brush.blob([(-0.42, 0.56), (0, 0.42), (0.42, 0.56), (0.43, 0.4), (0, 0.24), (-0.43, 0.4)], stripe)
    brush.polygon(
        [
            (0.16 * math.cos(a) * r, 0.72 + 0.12 * math.sin(a) * r)
            for a, r in ((math.radians(90 + 36 * i), 1 if i % 2 == 0 else 0.45) for i in range(10))
        ],
        YELLOW if colour != YELLOW else RED,
    )
    brush.oval(-0.24, 0.68, 0.05, 0.08, light(colour, 0.6), turn=-35)


def balloon(brush: Brush, colour: Colour) -> None:
    """In the air, around y = 0.5."""
    brush.curve([(0, 0.36), (0.05, 0.24), (-0.04, 0.12), (0.02, 0.0)], 0.018, INK)
    brush.polygon([(-0.05, 0.31), (0.05, 0.31), (0, 0.38)], dark(colour, 0.2))
    brush.blob([(0, 0.35), (0.22, 0.5), (0.29, 0.74), (0.16, 0.96), (-0.16, 0.96), (-0.29, 0.74), (-0.22, 0.5)], colour)
    brush.oval(-0.13, 0.82, 0.045, 0.09, light(colour, 0.65), turn=-25)


def kite(brush: Brush, colour: Colour) -> None:
    """In the air, around y = 0.5."""
    other = YELLOW if colour != YELLOW else RED
    tail = [(-0.06, 0.34), (-0.16, 0.22), (-0.08, 0.12), (-0.2, 0.0)]
    brush.curve(tail, 0.02, INK)
    for x, y in tail[1:]:
        brush.polygon([(x - 0.08, y + 0.04), (x - 0.08, y - 0.04), (x + 0.08, y + 0.04), (x + 0.08, y - 0.04)], other)
    top, right, bottom, left = (0.12, 1.0), (0.4, 0.66), (-0.06, 0.32), (-0.28, 0.8)
    brush.polygon([top, right, bottom, left], colour)
    brush.polygon([top, right, (0.06, 0.72)], other)
    brush.polygon([bottom, left, (0.06, 0.72)], other)
    brush.line([left, right], 0.018, dark(colour, 0.5))
    brush.line([top, bottom], 0.018, dark(colour, 0.5))


def umbrella(brush: Brush, colour: Colour) -> None:
    brush.line([(0, 0.1), (0, 0.97)], 0.045, WOOD)
    brush.curve([(0, 0.12), (0.02, 0.03), (0.1, 0.02), (0.13, 0.1)], 0.045, WOOD)
    brush.sector(0, 0.5, 0.5, 0, 180, colour)
    for x in (-0.375, -0.125, 0.125, 0.375):
        brush.sector(x, 0.5, 0.125, 180, 360, colour)
    brush.blob([(0, 0.99), (-0.12, 0.82), (-0.125, 0.5), (0.125, 0.5), (0.12, 0.82)], light(colour, 0.6))


def gift(brush: Brush, colour: Colour) -> None:
    ribbon = YELLOW if colour != YELLOW else RED
    brush.box(-0.38, 0.02, 0.38, 0.58, colour, round=0.02)
    brush.box(-0.43, 0.5, 0.43, 0.68, dark(colour, 0.14), round=0.02)
    brush.box(-0.08, 0.02, 0.08, 0.68, ribbon)
    for side in (-1, 1):
        brush.blob([(0, 0.69), (side * 0.14, 0.92), (side * 0.3, 0.9), (side * 0.26, 0.72)], ribbon)
    brush.disc(0, 0.73, 0.07, dark(ribbon, 0.15))


def teddy(brush: Brush, colour: Colour) -> None:
    for side in (-1, 1):
        brush.disc(side * 0.19, 0.9, 0.1, colour)
        brush.disc(side * 0.19, 0.9, 0.055, light(colour, 0.5))
        brush.oval(side * 0.3, 0.38, 0.1, 0.17, colour, turn=side * 35)
        brush.disc(side * 0.26, 0.12, 0.12, colour)
        brush.disc(side * 0.27, 0.12, 0.075, light(colour, 0.5))
    brush.oval(0, 0.3, 0.24, 0.28, colour)
    brush.oval(0, 0.3, 0.15, 0.18, light(colour, 0.4))
    brush.oval(0, 0.74, 0.27, 0.23, colour)
    brush.oval(0, 0.66, 0.12, 0.09, light(colour, 0.6))
    brush.oval(0, 0.7, 0.045, 0.035, INK)
    for side in (-1, 1):
        brush.disc(side * 0.12, 0.79, 0.032, INK)
        brush.polygon([(0, 0.51), (side * 0.14, 0.58), (side * 0.14, 0.44)], RED)


def clock(brush: Brush, colour: Colour) -> None:
    for side in (-1, 1):
        brush.line([(side * 0.2, 0.18), (side * 0.3, 0.03)], 0.07, dark(colour, 0.3))
        brush.oval(side * 0.24, 0.84, 0.15, 0.1, YELLOW if colour != YELLOW else RED, turn=-side * 38)
    brush.line([(0, 0.84), (0, 0.95)], 0.06, dark(colour, 0.3))
    brush.disc(0, 0.46, 0.41, colour)
    brush.disc(0, 0.46, 0.32, WHITE)
    for hour in range(12):
        a = hour * math.tau / 12
        brush.disc(0.26 * math.cos(a), 0.46 + 0.26 * math.sin(a), 0.022, INK)
    brush.line([(0, 0.46), (0, 0.66)], 0.035, INK)
    brush.line([(0, 0.46), (0.15, 0.4)], 0.045, INK)
