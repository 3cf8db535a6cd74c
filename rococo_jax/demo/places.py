"""Places: backgrounds of scenes. Each function fills a whole picture, varied by a random stream.

The brush's origin is the lower left corner and the picture is one unit wide and high. Things stand on the ground
between y = 0.05 and 0.25; the horizon lies near 0.4.
"""

import math

from rococo_jax.demo.drawing import COLOURS, Brush, Colour, Number, RandomStream, blend, dark, light

WHITE: Colour = (255, 255, 255)
GRASS: Colour = (126, 190, 96)


def _gradient(brush: Brush, low: Number, high: Number, bottom: Colour, top: Colour) -> None:
    bands = 40
    for band in range(bands):
        start, end = (low + (high - low) * (band + step) / bands for step in (0, 1.02))
        brush.box(0, start, 1, end, blend(bottom, top, band / (bands - 1)))


def _cloud(brush: Brush, x: Number, y: Number, size: Number, colour: Colour = WHITE) -> None:
    for across, up, radius in [(-0.5, 0, 0.3), (-0.15, 0.18, 0.4), (0.25, 0.1, 0.34), (0.55, -0.02, 0.25)]:
        brush.disc(x + across * size, y + up * size, radius * size, colour)
    brush.box(x - 0.6 * size, y - 0.3 * size, x + 0.65 * size, y - 0.05 * size, colour, round=0.12 * size)


def _clouds(brush: Brush, rng: RandomStream, colour: Colour = WHITE) -> None:
    for x in (0.2, 0.72):
        if rng.chance(0.75):
            _cloud(brush, x + rng.between(-0.15, 0.15), rng.between(0.78, 0.92), rng.between(0.1, 0.16), colour)


def _hills(brush: Brush, rng: RandomStream, height: Number, swing: Number, colour: Colour) -> None:
    start, waves = rng.between(0, math.tau), rng.between(0.7, 1.5)
    top = [(x / 24, height + swing * math.sin(start + waves * math.tau * x / 24)) for x in range(25)]
    brush.polygon([(0, 0), *top, (1, 0)], colour)


def beach(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.45, 1, (206, 238, 250), (112, 196, 240))
    brush.disc(rng.between(0.12, 0.88), 0.86, 0.075, (255, 226, 110))
    _clouds(brush, rng)
    _gradient(brush, 0.28, 0.5, (96, 204, 214), (38, 138, 196))
    for _ in range(7):
        x, y = rng.between(0, 0.9), rng.between(0.36, 0.48)
        brush.curve([(x, y), (x + 0.025, y + 0.01), (x + 0.05, y), (x + 0.075, y + 0.01), (x + 0.1, y)], 0.007, WHITE)
    edge = rng.between(0, math.tau)
    shore = [(x / 24, 0.31 + 0.018 * math.sin(edge + x * 0.55)) for x in range(25)]
    brush.polygon([(0, 0), *[(x, y + 0.018) for x, y in shore], (1, 0)], (232, 250, 250))
    brush.polygon([(0, 0), *shore, (1, 0)], (246, 222, 160))
    for _ in range(26):
        brush.disc(rng.between(0, 1), rng.between(0, 0.27), 0.005, (224, 194, 130))
    for _ in range(2):
        x, y = rng.between(0.05, 0.95), rng.between(0.02, 0.07)
        points = [(0.03, 0.012)[i % 2] for i in range(10)]
        angles = [i * math.tau / 10 for i in range(10)]
        star = [(x + r * math.cos(a), y + r * math.sin(a)) for a, r in zip(angles, points, strict=True)]
        brush.polygon(star, (240, 134, 96))


def street(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.4, 1, (240, 236, 232), (150, 200, 236))
    _clouds(brush, rng)
    walls: list[Colour] = [(226, 168, 140), (206, 190, 214), (236, 210, 160), (168, 196, 206), (214, 158, 158)]
    x = -rng.between(0, 0.1)
    while x < 1:
        width, top, wall = rng.between(0.14, 0.22), rng.between(0.6, 0.86), rng.choose(walls)
        brush.box(x, 0.36, x + width, top, wall)
        brush.box(x, top - 0.025, x + width, top, dark(wall, 0.25))
        columns = 2 if width < 0.18 else 3
        for column in range(columns):
            left = x + width * (column + 0.5) / columns - 0.018
            for row in range(int((top - 0.46) / 0.085)):
                lit = light(wall, 0.65) if rng.chance(0.7) else dark(wall, 0.35)
                brush.box(left, 0.47 + row * 0.085, left + 0.036, 0.52 + row * 0.085, lit)
        x += width
    brush.box(0, 0.31, 1, 0.39, (206, 202, 200))
    brush.box(0, 0.31, 1, 0.325, (170, 166, 168))
    brush.box(0, 0, 1, 0.31, (116, 116, 126))
    shift = rng.between(0, 0.2)
    for dash in range(-1, 6):
        brush.box(dash * 0.2 + shift, 0.14, dash * 0.2 + 0.11 + shift, 0.165, (246, 232, 170))


def meadow(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.4, 1, (222, 242, 250), (128, 200, 242))
    if rng.chance(0.6):
        brush.disc(rng.between(0.1, 0.9), 0.87, 0.07, (255, 228, 120))
    _clouds(brush, rng)
    _hills(brush, rng, 0.5, 0.05, (164, 212, 132))
    _hills(brush, rng, 0.42, 0.04, (144, 202, 112))
    _hills(brush, rng, 0.31, 0.02, GRASS)
    for _ in range(30):
        x, y = rng.between(0, 1), rng.between(0, 0.28)
        for lean in (-0.012, 0, 0.012):
            brush.line([(x, y), (x + lean, y + 0.03)], 0.006, dark(GRASS, 0.22))


def room(brush: Brush, rng: RandomStream) -> None:
    wall = rng.choose([(244, 222, 200), (214, 226, 214), (238, 214, 218), (216, 218, 236)])
    brush.box(0, 0.3, 1, 1, wall)
    for stripe in range(8):
        brush.box(stripe / 8, 0.3, stripe / 8 + 0.05, 1, light(wall, 0.3))
    left = rng.choose([0.1, 0.58])
    brush.box(left - 0.02, 0.55, left + 0.32, 0.93, WHITE)
    brush.box(left, 0.57, left + 0.3, 0.91, (176, 220, 244))
    _cloud(brush, left + 0.15, 0.8, 0.09)
    brush.box(left + 0.14, 0.57, left + 0.16, 0.91, WHITE)
    brush.box(left, 0.73, left + 0.3, 0.75, WHITE)
    curtain = rng.choose([(214, 110, 100), (96, 150, 140), (226, 176, 90), (130, 120, 180)])
    for side in (left - 0.05, left + 0.27):
        brush.box(side, 0.52, side + 0.08, 0.95, curtain, round=0.02)
    brush.line([(left - 0.07, 0.955), (left + 0.37, 0.955)], 0.015, (130, 92, 64))
    frame = 0.74 if left < 0.5 else 0.26
    brush.box(frame - 0.1, 0.66, frame + 0.1, 0.86, (150, 108, 70))
    brush.box(frame - 0.08, 0.68, frame + 0.08, 0.84, (250, 244, 226))
    brush.oval(frame, 0.76, 0.05, 0.045, light(curtain, 0.3))
    brush.box(0, 0.3, 1, 0.34, light(wall, 0.7))
    floor: Colour = (198, 152, 108)
    brush.box(0, 0, 1, 0.3, floor)
    for y in (0.06, 0.12, 0.18, 0.24):
        brush.line([(0, y), (1, y)], 0.004, dark(floor, 0.18))
    brush.oval(0.5, 0.12, 0.46, 0.09, light(curtain, 0.2))
    brush.oval(0.5, 0.12, 0.4, 0.07, light(curtain, 0.45))


def snow(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.4, 1, (236, 242, 250), (172, 200, 228))
    for x, peak, rock in [(0.18, 0.74, (140, 156, 184)), (0.82, 0.7, (140, 156, 184)), (0.5, 0.82, (122, 140, 172))]:
        x, peak = x + rng.between(-0.08, 0.08), peak + rng.between(-0.05, 0.05)
        brush.polygon([(x - 0.34, 0.36), (x + 0.34, 0.36), (x, peak)], rock)
        cap = [(x, peak), (x - 0.1, peak - 0.12), (x - 0.04, peak - 0.1), (x, peak - 0.14), (x + 0.05, peak - 0.1)]
        brush.polygon([*cap, (x + 0.1, peak - 0.12)], WHITE)
    _hills(brush, rng, 0.4, 0.025, (222, 232, 244))
    _hills(brush, rng, 0.31, 0.02, (242, 246, 252))
    for _ in range(5):
        x, y = rng.between(0, 0.9), rng.between(0.02, 0.24)
        brush.curve([(x, y), (x + 0.05, y + 0.012), (x + 0.1, y)], 0.007, (206, 218, 236))
    for _ in range(60):
        brush.disc(rng.between(0, 1), rng.between(0.3, 1), rng.between(0.004, 0.009), WHITE)


def night(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.35, 1, (78, 82, 148), (20, 24, 66))
    for _ in range(60):
        brush.disc(rng.between(0, 1), rng.between(0.45, 1), rng.between(0.002, 0.006), (255, 250, 214))
    x = rng.between(0.15, 0.85)
    brush.disc(x, 0.84, 0.085, (255, 244, 196))
    for across, up, radius in [(-0.03, 0.02, 0.018), (0.03, -0.02, 0.022), (0.02, 0.04, 0.01)]:
        brush.disc(x + across, 0.84 + up, radius, (236, 222, 168))
    _hills(brush, rng, 0.46, 0.05, (50, 60, 104))
    _hills(brush, rng, 0.34, 0.03, (44, 74, 88))
    for _ in range(26):
        x, y = rng.between(0, 1), rng.between(0, 0.3)
        brush.line([(x, y), (x + 0.008, y + 0.025)], 0.006, (66, 104, 112))


def lake(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.5, 1, (250, 232, 206), (150, 204, 234))
    _clouds(brush, rng, (255, 250, 244))
    _hills(brush, rng, 0.64, 0.06, (134, 170, 178))
    _hills(brush, rng, 0.58, 0.03, (104, 152, 132))
    _gradient(brush, 0.1, 0.56, (80, 160, 206), (164, 210, 226))
    for _ in range(14):
        x, y = rng.between(0, 0.9), rng.between(0.26, 0.54)
        brush.line([(x, y), (x + rng.between(0.05, 0.14), y)], 0.006, (222, 240, 246))
    _hills(brush, rng, 0.22, 0.02, (120, 176, 92))
    _hills(brush, rng, 0.19, 0.02, (138, 192, 104))
    for side in (0.03, 0.97):
        for reed in (-0.02, 0.005, 0.03):
            top = rng.between(0.34, 0.44)
            brush.line([(side + reed, 0.14), (side + reed * 1.4, top)], 0.008, (74, 124, 70))
            brush.oval(side + reed * 1.4, top, 0.012, 0.035, (122, 80, 52))


def desert(brush: Brush, rng: RandomStream) -> None:
    _gradient(brush, 0.4, 1, (255, 226, 168), (244, 168, 110))
    brush.disc(rng.between(0.15, 0.85), 0.8, 0.1, (255, 240, 190))
    _hills(brush, rng, 0.48, 0.06, (222, 158, 94))
    _hills(brush, rng, 0.4, 0.05, (232, 176, 108))
    _hills(brush, rng, 0.28, 0.03, (242, 196, 128))
    for _ in range(6):
        x, y = rng.between(0, 0.85), rng.between(0.02, 0.24)
        brush.curve([(x, y), (x + 0.04, y + 0.012), (x + 0.08, y), (x + 0.12, y + 0.012)], 0.007, (220, 166, 98))


def stage(brush: Brush, rng: RandomStream) -> None:
    brush.box(0, 0, 1, 1, (58, 40, 66))
    cloth = rng.choose([(178, 40, 52), (160, 36, 76), (110, 44, 120)])
    middle = rng.between(0.4, 0.6)
    brush.polygon([(middle - 0.06, 1), (middle + 0.06, 1), (0.92, 0.2), (0.08, 0.2)], (104, 84, 106))
    _gradient(brush, 0, 0.3, (206, 150, 92), (150, 100, 62))
    for board in range(-6, 7):
        brush.line([(0.5 + board * 0.14, 0), (0.5 + board * 0.085, 0.3)], 0.004, (134, 88, 54))
    brush.oval(0.5, 0.14, 0.44, 0.1, (246, 214, 150))
    for side in (0, 1):
        for fold in range(4):
            x = fold * 0.05 if side == 0 else 1 - fold * 0.05
            brush.box(
                min(x, x + (0.05, -0.05)[side]), 0.16, max(x, x + (0.05, -0.05)[side]), 1, dark(cloth, 0.3 * (fold % 2))
            )
    for swag in range(5):
        brush.sector(swag * 0.25, 1.0, 0.135, 180, 360, dark(cloth, 0.15))
        brush.sector(swag * 0.25, 1.02, 0.11, 180, 360, cloth)
    brush.box(0, 0.975, 1, 1, COLOURS["yellow"])
