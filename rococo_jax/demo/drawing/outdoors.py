"""Buildings, plants and vehicles. Each function draws one standing on the ground (the airplane around its middle)."""

import math

from rococo_jax.demo.drawing import COLOURS, INK, Brush, Colour, dark, light

WHITE, YELLOW, BROWN, RED, GREEN, GRAY = (COLOURS[n] for n in ("white", "yellow", "brown", "red", "green", "gray"))
STONE: Colour = (190, 186, 180)
WINDOW: Colour = (255, 226, 140)
GLASS: Colour = (178, 220, 240)
TYRE: Colour = (50, 48, 56)


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
        ((-0.2, 0.02), (0, 0.38)), ((0, 0.02), (-0.2, 0.38)), ((0, 0.02), (0.2, 0.38)), ((0.2, 0.02), (0, 0.38)),
    ]:  # fmt: skip
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
        inner, outer = (across * 0.35, 0.66 + up * 0.35), (across * 1.25, 0.66 + up * 1.25)
        aside = [(a - y * 0.1, b + x * 0.1) for a, b in (outer, inner)]
        brush.polygon([inner, outer, *aside], light(colour, 0.5))
    brush.disc(0, 0.66, 0.045, INK)


def tree(brush: Brush, colour: Colour) -> None:
    brush.blob([(-0.08, 0.0), (-0.05, 0.3), (-0.07, 0.5), (0.07, 0.5), (0.05, 0.3), (0.09, 0.0)], BROWN)
    for x, y, r in [
        (-0.24, 0.52, 0.18), (0.24, 0.52, 0.18), (-0.18, 0.74, 0.18), (0.18, 0.74, 0.18), (0, 0.84, 0.17),
        (0, 0.6, 0.24),
    ]:  # fmt: skip
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


def _wheel(brush: Brush, x: float, radius: float) -> None:
    brush.disc(x, radius, radius, TYRE)
    brush.disc(x, radius, radius * 0.5, (206, 208, 214))
    brush.disc(x, radius, radius * 0.18, TYRE)


def car(brush: Brush, colour: Colour) -> None:
    brush.blob([(-0.36, 0.3), (-0.24, 0.55), (-0.1, 0.6), (0.12, 0.6), (0.22, 0.55), (0.36, 0.32), (0, 0.26)], colour)
    brush.polygon([(-0.27, 0.34), (-0.2, 0.52), (-0.03, 0.54), (-0.03, 0.34)], GLASS)
    brush.polygon([(0.02, 0.34), (0.02, 0.54), (0.16, 0.52), (0.28, 0.34)], GLASS)
    brush.box(-0.5, 0.09, 0.5, 0.36, colour, round=0.11)
    brush.box(-0.5, 0.1, 0.5, 0.17, dark(colour, 0.25), round=0.03)
    brush.line([(-0.005, 0.34), (-0.005, 0.18)], 0.012, dark(colour, 0.35))
    brush.line([(0.05, 0.29), (0.1, 0.29)], 0.02, dark(colour, 0.4))
    brush.oval(0.46, 0.28, 0.035, 0.045, light(YELLOW, 0.4))
    brush.box(-0.5, 0.24, -0.45, 0.31, dark(RED, 0.2), round=0.02)
    for x in (-0.28, 0.28):
        brush.disc(x, 0.13, 0.155, dark(colour, 0.5))
        _wheel(brush, x, 0.125)


def bus(brush: Brush, colour: Colour) -> None:
    brush.box(-0.62, 0.1, 0.62, 0.78, colour, round=0.08)
    brush.box(-0.62, 0.1, 0.62, 0.2, dark(colour, 0.3), round=0.04)
    brush.box(-0.6, 0.34, 0.6, 0.38, light(colour, 0.7))
    for left in (-0.56, -0.35, -0.14, 0.07):
        brush.box(left, 0.45, left + 0.17, 0.67, GLASS, round=0.02)
    brush.box(0.29, 0.18, 0.43, 0.67, GLASS, round=0.02)
    brush.line([(0.36, 0.19), (0.36, 0.66)], 0.015, dark(colour, 0.3))
    brush.box(0.49, 0.42, 0.6, 0.67, GLASS, round=0.03)
    brush.disc(0.58, 0.25, 0.035, light(YELLOW, 0.4))
    for x in (-0.36, 0.2):
        brush.disc(x, 0.12, 0.145, dark(colour, 0.5))
        _wheel(brush, x, 0.115)


def truck(brush: Brush, colour: Colour) -> None:
    brush.box(-0.6, 0.13, 0.6, 0.22, (84, 84, 94))
    brush.box(-0.62, 0.2, 0.2, 0.78, (236, 232, 222), round=0.03)
    for x in (-0.45, -0.28, -0.11, 0.06):
        brush.line([(x, 0.24), (x, 0.74)], 0.012, (206, 200, 190))
    brush.box(-0.6, 0.44, 0.18, 0.54, colour)
    brush.blob([(0.24, 0.16), (0.24, 0.62), (0.44, 0.64), (0.54, 0.42), (0.63, 0.36), (0.63, 0.16)], colour)
    brush.polygon([(0.33, 0.4), (0.33, 0.58), (0.43, 0.58), (0.52, 0.4)], GLASS)
    brush.line([(0.3, 0.34), (0.36, 0.34)], 0.02, dark(colour, 0.45))
    brush.disc(0.61, 0.27, 0.03, light(YELLOW, 0.4))
    for x in (-0.44, -0.18, 0.4):
        _wheel(brush, x, 0.12)


def bicycle(brush: Brush, colour: Colour) -> None:
    for x in (-0.32, 0.32):
        points = [(x + 0.21 * math.cos(a), 0.23 + 0.21 * math.sin(a)) for a in (i * math.tau / 32 for i in range(33))]
        brush.line(points, 0.045, TYRE)
        for spoke in range(6):
            a = spoke * math.pi / 6
            across, up = 0.2 * math.cos(a), 0.2 * math.sin(a)
            brush.line([(x - across, 0.23 - up), (x + across, 0.23 + up)], 0.008, (196, 198, 206))
    frame = [(-0.32, 0.23), (-0.04, 0.2), (0.22, 0.52), (-0.12, 0.52), (-0.04, 0.2)]
    brush.line(frame, 0.05, colour)
    brush.line([(-0.32, 0.23), (-0.12, 0.52)], 0.045, colour)
    brush.line([(0.32, 0.23), (0.2, 0.68)], 0.05, colour)
    brush.line([(-0.12, 0.52), (-0.15, 0.62)], 0.035, TYRE)
    brush.oval(-0.16, 0.64, 0.12, 0.04, TYRE)
    brush.curve([(0.2, 0.68), (0.24, 0.74), (0.34, 0.74)], 0.045, TYRE)
    brush.disc(-0.04, 0.2, 0.06, GRAY)
    brush.line([(-0.04, 0.2), (0.03, 0.1)], 0.025, TYRE)


def boat(brush: Brush, colour: Colour) -> None:
    brush.line([(0.0, 0.2), (0.0, 0.98)], 0.04, COLOURS["brown"])
    brush.polygon([(0.04, 0.3), (0.04, 0.95), (0.44, 0.32)], WHITE)
    brush.polygon([(-0.04, 0.3), (-0.04, 0.82), (-0.32, 0.32)], light(colour, 0.55))
    brush.polygon([(0.0, 1.0), (0.0, 0.91), (-0.15, 0.955)], RED if colour != RED else YELLOW)
    brush.blob([(-0.5, 0.25), (-0.42, 0.08), (-0.25, 0.0), (0.25, 0.0), (0.42, 0.08), (0.52, 0.27), (0, 0.22)], colour)
    brush.curve([(-0.46, 0.2), (0, 0.17), (0.48, 0.21)], 0.035, light(colour, 0.7))
    for x in (-0.18, 0.0, 0.18):
        brush.disc(x, 0.09, 0.035, GLASS)


def train(brush: Brush, colour: Colour) -> None:
    """A steam locomotive."""
    for x, y, radius in [(0.3, 0.9, 0.07), (0.17, 0.97, 0.09), (0.0, 1.02, 0.1)]:
        brush.disc(x, y, radius, (236, 236, 242))
    brush.polygon([(0.26, 0.56), (0.4, 0.56), (0.44, 0.8), (0.22, 0.8)], dark(colour, 0.55))
    brush.box(-0.05, 0.24, 0.52, 0.6, colour, round=0.08)
    brush.oval(0.08, 0.6, 0.09, 0.1, YELLOW)
    for x in (0.0, 0.18, 0.4):
        brush.box(x, 0.25, x + 0.025, 0.59, dark(colour, 0.35))
    brush.box(-0.5, 0.2, -0.06, 0.8, colour, round=0.03)
    brush.box(-0.56, 0.78, 0.0, 0.87, dark(colour, 0.5), round=0.03)
    brush.box(-0.42, 0.5, -0.15, 0.7, GLASS, round=0.03)
    brush.polygon([(0.48, 0.22), (0.62, 0.04), (0.4, 0.04)], dark(colour, 0.55))
    brush.box(-0.52, 0.16, 0.54, 0.26, dark(colour, 0.45))
    brush.disc(0.53, 0.46, 0.045, light(YELLOW, 0.4))
    for x, radius in [(-0.36, 0.14), (-0.06, 0.14), (0.2, 0.1), (0.4, 0.1)]:
        brush.disc(x, radius, radius, RED if colour != RED else TYRE)
        brush.disc(x, radius, radius * 0.72, TYRE)
        brush.disc(x, radius, radius * 0.25, YELLOW)
    brush.line([(-0.36, 0.12), (-0.06, 0.12), (0.2, 0.1)], 0.03, GRAY)


def airplane(brush: Brush, colour: Colour) -> None:
    """In the air, around y = 0.5."""
    brush.polygon([(-0.4, 0.5), (-0.56, 0.82), (-0.44, 0.82), (-0.22, 0.56)], colour)
    brush.polygon([(0.1, 0.54), (-0.06, 0.8), (0.04, 0.8), (0.26, 0.55)], dark(colour, 0.3))
    brush.blob([(-0.52, 0.52), (-0.2, 0.61), (0.34, 0.61), (0.56, 0.5), (0.34, 0.39), (-0.2, 0.41)], WHITE)
    brush.blob([(-0.48, 0.48), (-0.1, 0.47), (0.52, 0.47), (0.34, 0.39), (-0.2, 0.41)], colour)
    brush.polygon([(0.4, 0.58), (0.46, 0.51), (0.53, 0.51), (0.46, 0.57)], GLASS)
    for x in (-0.22, -0.1, 0.02, 0.14, 0.26):
        brush.disc(x, 0.54, 0.028, (96, 150, 200))
    brush.polygon([(0.16, 0.47), (-0.22, 0.16), (-0.08, 0.16), (0.34, 0.46)], dark(colour, 0.12))
    brush.oval(0.0, 0.27, 0.08, 0.035, GRAY)
    brush.polygon([(-0.36, 0.48), (-0.54, 0.36), (-0.46, 0.36), (-0.24, 0.47)], dark(colour, 0.2))


def tractor(brush: Brush, colour: Colour) -> None:
    brush.line([(0.28, 0.5), (0.28, 0.76)], 0.04, TYRE)
    brush.box(-0.3, 0.44, 0.06, 0.9, GLASS)
    for x in (-0.3, 0.05):
        brush.line([(x, 0.4), (x, 0.88)], 0.045, dark(colour, 0.3))
    brush.box(-0.38, 0.86, 0.12, 0.95, colour, round=0.03)
    brush.box(-0.36, 0.24, 0.5, 0.54, colour, round=0.06)
    for x in (0.3, 0.36, 0.42):
        brush.line([(x, 0.34), (x, 0.46)], 0.016, dark(colour, 0.5))
    brush.sector(-0.22, 0.27, 0.32, 15, 165, dark(colour, 0.25))
    for x, radius in [(-0.22, 0.27), (0.36, 0.16)]:
        brush.disc(x, radius, radius, TYRE)
        brush.disc(x, radius, radius * 0.58, YELLOW if colour != YELLOW else WHITE)
        brush.disc(x, radius, radius * 0.22, TYRE)
