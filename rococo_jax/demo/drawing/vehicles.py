"""Vehicles. Each function draws one, standing on the ground (the airplane around its middle)."""

import math

from rococo_jax.demo.drawing.brush import COLOURS, Brush, Colour, dark, light

WHITE, GRAY, YELLOW, RED = COLOURS["white"], COLOURS["gray"], COLOURS["yellow"], COLOURS["red"]
GLASS: Colour = (178, 220, 240)
TYRE: Colour = (50, 48, 56)


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


VEHICLES = (car, bus, truck, bicycle, boat, train, airplane, tractor)
