"""Buildings and plants."""

from rococo_jax.demo.drawing.brush import COLOURS, INK, Brush, Colour, dark, light

WHITE, YELLOW, BROWN, RED, GREEN, GRAY = (COLOURS[n] for n in ("white", "yellow", "brown", "red", "green", "gray"))
STONE: Colour = (190, 186, 180)
WINDOW: Colour = (255, 226, 140)


def house(brush: Brush, colour: Colour) -> None:
    """`colour` is that of the walls."""
    brush.box(0.18, 0.66, 0.3, 0.96, (150, 92, 78))
    brush.box(-0.4, 0.0, 0.4, 0.58, colour)
    brush.box(-0.4, 0.0, 0.4, 0.07, dark(colour, 0.2))
    brush.polygon([(-0.52, 0.54), (0.52, 0.54), (0.0, 1.0)], (172, 74, 60) if colour != RED else (92, 80, 92))
    brush.line([(-0.5, 0.55), (0.5, 0.55)], 0.03, dark(colour, 0.35))
    brush.box(-0.09, 0.0, 0.11, 0.36, (116, 72, 46), round=0.02)
    brush.disc(0.07, 0.17, 0.02, YELLOW)
    for left in (-0.32, 0.17):
        brush.box(left, 0.22, left + 0.17, 0.42, WHITE)
        brush.box(left + 0.02, 0.24, left + 0.15, 0.4, WINDOW)
        brush.line([(left + 0.085, 0.24), (left + 0.085, 0.4)], 0.015, WHITE)
        brush.line([(left + 0.02, 0.32), (left + 0.15, 0.32)], 0.015, WHITE)
    brush.disc(0, 0.71, 0.075, WHITE)
    brush.disc(0, 0.71, 0.055, WINDOW)


def castle(brush: Brush, colour: Colour) -> None:
    """`colour` is that of the roofs and flags."""
    brush.box(-0.34, 0.0, 0.34, 0.52, STONE)
    for x in (-0.26, -0.1, 0.06, 0.2):
        brush.box(x, 0.5, x + 0.09, 0.6, STONE)
    brush.box(-0.13, 0.5, 0.13, 0.76, light(STONE, 0.2))
    brush.polygon([(-0.18, 0.75), (0.18, 0.75), (0, 1.0)], colour)
    for side in (-1, 1):
        brush.box(side * 0.37 - 0.12, 0.0, side * 0.37 + 0.12, 0.68, light(STONE, 0.15))
        brush.polygon([(side * 0.37 - 0.17, 0.66), (side * 0.37 + 0.17, 0.66), (side * 0.37, 0.95)], colour)
        brush.box(side * 0.37 - 0.035, 0.42, side * 0.37 + 0.035, 0.56, INK, round=0.03)
        brush.line([(side * 0.37, 0.93), (side * 0.37, 1.04)], 0.015, INK)
        brush.polygon([(side * 0.37, 1.05), (side * 0.37 + 0.1, 1.02), (side * 0.37, 0.98)], light(colour, 0.3))
    brush.box(-0.035, 0.58, 0.035, 0.7, INK, round=0.03)
    brush.box(-0.1, 0.0, 0.1, 0.2, BROWN)
    brush.sector(0, 0.2, 0.1, 0, 180, BROWN)
    for x, y in [(-0.2, 0.32), (0.17, 0.38), (-0.05, 0.4), (0.2, 0.16), (-0.2, 0.12)]:
        brush.line([(x - 0.03, y), (x + 0.03, y)], 0.016, dark(STONE, 0.25))


def lighthouse(brush: Brush, colour: Colour) -> None:
    brush.blob([(-0.34, 0.0), (-0.24, 0.12), (0, 0.16), (0.26, 0.11), (0.36, 0.0)], GRAY)
    brush.polygon([(-0.2, 0.08), (0.2, 0.08), (0.12, 0.74), (-0.12, 0.74)], WHITE)
    for low, high in [(0.2, 0.34), (0.48, 0.62)]:
        a, b = 0.2 - (low - 0.08) * 0.121, 0.2 - (high - 0.08) * 0.121
        brush.polygon([(-a, low), (a, low), (b, high), (-b, high)], colour)
    brush.box(-0.17, 0.72, 0.17, 0.77, dark(colour, 0.4))
    brush.box(-0.1, 0.77, 0.1, 0.9, WINDOW)
    brush.line([(0, 0.77), (0, 0.9)], 0.02, dark(colour, 0.4))
    brush.polygon([(-0.14, 0.89), (0.14, 0.89), (0, 1.02)], colour)
    brush.box(-0.055, 0.08, 0.055, 0.2, BROWN, round=0.03)
    brush.box(-0.03, 0.38, 0.03, 0.45, INK, round=0.01)


def barn(brush: Brush, colour: Colour) -> None:
    brush.polygon([(-0.46, 0), (0.46, 0), (0.46, 0.52), (0.3, 0.78), (0, 0.94), (-0.3, 0.78), (-0.46, 0.52)], colour)
    for x in (-0.38, -0.3, 0.3, 0.38):
        brush.line([(x, 0.02), (x, 0.52)], 0.012, dark(colour, 0.25))
    brush.line([(-0.52, 0.46), (-0.33, 0.79), (0, 0.97), (0.33, 0.79), (0.52, 0.46)], 0.07, (110, 92, 92))
    brush.box(-0.24, 0.0, 0.24, 0.42, WHITE)
    brush.box(-0.2, 0.0, 0.2, 0.38, dark(colour, 0.3))
    for a, b in [
        ((-0.2, 0.02), (0, 0.38)),
        ((0, 0.02), (-0.2, 0.38)),
        ((0, 0.02), (0.2, 0.38)),
        ((0.2, 0.02), (0, 0.38)),
    ]:
        brush.line([a, b], 0.022, WHITE)
    brush.box(-0.1, 0.54, 0.1, 0.7, WHITE)
    brush.box(-0.07, 0.56, 0.07, 0.68, INK)


def tent(brush: Brush, colour: Colour) -> None:
    brush.line([(0, 0.7), (0.06, 0.8)], 0.03, BROWN)
    brush.line([(0, 0.7), (-0.06, 0.8)], 0.03, BROWN)
    brush.polygon([(-0.54, 0.0), (0.54, 0.0), (0.0, 0.74)], colour)
    brush.polygon([(0.54, 0.0), (0.0, 0.74), (0.2, 0.0)], dark(colour, 0.2))
    brush.polygon([(-0.2, 0.0), (0.2, 0.0), (0.0, 0.56)], INK)
    brush.polygon([(-0.2, 0.0), (-0.09, 0.0), (0.0, 0.56)], light(colour, 0.5))
    brush.polygon([(0.2, 0.0), (0.09, 0.0), (0.0, 0.56)], light(colour, 0.5))


def windmill(brush: Brush, colour: Colour) -> None:
    brush.polygon([(-0.26, 0), (0.26, 0), (0.15, 0.62), (-0.15, 0.62)], light(STONE, 0.45))
    brush.sector(0, 0.6, 0.17, 0, 180, colour)
    brush.box(-0.07, 0.0, 0.07, 0.19, BROWN, round=0.02)
    brush.box(-0.05, 0.33, 0.05, 0.44, WINDOW)
    for x, y in [(1, 1), (-1, 1), (-1, -1), (1, -1)]:
        across, up = x * 0.27, y * 0.27
        brush.line([(0, 0.66), (across * 1.25, 0.66 + up * 1.25)], 0.03, BROWN)
        brush.polygon(
            [
                (across * 0.35, 0.66 + up * 0.35),
                (across * 1.25, 0.66 + up * 1.25),
                (across * 1.25 - y * 0.1, 0.66 + up * 1.25 + x * 0.1),
                (across * 0.35 - y * 0.1, 0.66 + up * 0.35 + x * 0.1),
            ],
            light(colour, 0.5),
        )
    brush.disc(0, 0.66, 0.045, INK)


def tree(brush: Brush, colour: Colour) -> None:
    brush.blob([(-0.08, 0.0), (-0.05, 0.3), (-0.07, 0.5), (0.07, 0.5), (0.05, 0.3), (0.09, 0.0)], BROWN)
    for x, y, r in [
        (-0.24, 0.52, 0.18),
        (0.24, 0.52, 0.18),
        (-0.18, 0.74, 0.18),
        (0.18, 0.74, 0.18),
        (0, 0.84, 0.17),
        (0, 0.6, 0.24),
    ]:
        brush.disc(x, y, r, colour)
    for x, y, r in [(-0.14, 0.78, 0.09), (0.08, 0.86, 0.07), (-0.26, 0.58, 0.07)]:
        brush.disc(x, y, r, light(colour, 0.22))
    for x, y in [(0.2, 0.5), (0.06, 0.66), (0.26, 0.7), (-0.1, 0.5)]:
        brush.curve([(x - 0.07, y + 0.02), (x, y - 0.04), (x + 0.07, y + 0.02)], 0.022, dark(colour, 0.25))


def pine(brush: Brush, colour: Colour) -> None:
    brush.box(-0.06, 0.0, 0.06, 0.2, BROWN)
    for low, half, high in [(0.14, 0.36, 0.52), (0.36, 0.29, 0.74), (0.6, 0.21, 1.0)]:
        brush.polygon([(-half, low), (0, low - 0.04), (half, low), (0, high)], colour)
        brush.polygon([(half, low), (half * 0.2, low - 0.03), (0, high)], dark(colour, 0.2))


def flower(brush: Brush, colour: Colour) -> None:
    stem = dark(GREEN, 0.15)
    brush.curve([(0, 0.0), (0.03, 0.25), (0, 0.55)], 0.06, stem)
    brush.oval(-0.15, 0.2, 0.16, 0.06, stem, turn=-30)
    brush.oval(0.17, 0.26, 0.16, 0.06, stem, turn=30)
    for x, y in [(0, 0.24), (0.23, 0.07), (0.14, -0.19), (-0.14, -0.19), (-0.23, 0.07)]:
        brush.disc(x * 0.9, 0.7 + y * 0.8, 0.15, colour)
    brush.disc(0, 0.7, 0.12, YELLOW if colour != YELLOW else BROWN)


def cactus(brush: Brush, colour: Colour) -> None:
    for side, low, high in [(-1, 0.36, 0.66), (1, 0.26, 0.58)]:
        brush.curve([(0, low), (side * 0.24, low), (side * 0.29, low + 0.08), (side * 0.29, high)], 0.13, colour)
    brush.line([(0, 0.1), (0, 0.86)], 0.2, colour)
    for x in (-0.04, 0.04):
        brush.line([(x, 0.08), (x, 0.86)], 0.014, dark(colour, 0.3))
    for x, y in [(-0.07, 0.7), (0.07, 0.55), (-0.07, 0.4), (0.07, 0.25), (-0.29, 0.56), (0.29, 0.48)]:
        brush.line([(x - 0.025, y), (x + 0.025, y + 0.02)], 0.012, WHITE)
    for x, y in [(-0.05, 0.97), (0.05, 0.97), (0, 1.0)]:
        brush.disc(x, y, 0.045, COLOURS["pink"])


BUILDINGS = (house, castle, lighthouse, barn, tent, windmill)
PLANTS = (tree, pine, flower, cactus)
