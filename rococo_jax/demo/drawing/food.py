"""Fruit and other food."""

from rococo_jax.demo.drawing.brush import COLOURS, INK, Brush, Colour, dark, light

GREEN, BROWN, RED, WHITE, PINK = (COLOURS[name] for name in ("green", "brown", "red", "white", "pink"))
CREAM: Colour = (250, 228, 178)


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
        (-0.22, 0.58),
        (0, 0.6),
        (0.22, 0.58),
        (-0.12, 0.42),
        (0.12, 0.42),
        (-0.2, 0.3),
        (0, 0.26),
        (0.2, 0.3),
        (0, 0.1),
    ]:
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


FOOD = (apple, banana, pear, strawberry, watermelon, cherry, cake, mushroom)
