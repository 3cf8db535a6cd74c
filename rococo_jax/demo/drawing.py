"""A brush over Pillow: shapes in an object's own coordinates, each with an even outline around the whole object.

An object is drawn in a frame whose origin is where it touches the ground: x runs from about -0.5 to 0.5, y from 0 at
the foot to 1 at the top. The brush places that frame on the picture. Drawing an object twice, first with every shape
grown a little in one dark colour, then normally, leaves an outline around the union of its shapes.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from PIL import Image, ImageDraw

Thing = TypeVar("Thing")


class RandomStream:
    """Random choices that depend only on `names`: the same on every machine, in any order, in every version of Python.

    The standard library promises that `random.Random`, seeded with a string and read through `random()` alone, keeps
    its stream.
    """

    def __init__(self, *names: object):
        self._random = random.Random("/".join(str(name) for name in names))

    def chance(self, probability: int | float) -> bool:
        """Return True with the given probability."""
        return self._random.random() < probability

    def between(self, low: int | float, high: int | float) -> float:
        """Draw a number uniformly from `low` to `high`."""
        return low + (high - low) * self._random.random()

    def choose(self, things: Sequence[Thing]) -> Thing:
        """Return one of `things`, all with the same probability."""
        return things[int(self._random.random() * len(things))]

    def shuffled(self, things: Sequence[Thing]) -> list[Thing]:
        """Return `things` in a random order."""
        order = sorted((self._random.random(), index) for index in range(len(things)))
        return [things[index] for _, index in order]


Number = int | float
# Red, green and blue from 0 to 255; a fourth number is opacity.
Colour = tuple[int, int, int] | tuple[int, int, int, int]
Point = Sequence[Number]  # x, y

COLOURS: dict[str, Colour] = {
    "red": (216, 62, 56),
    "orange": (242, 142, 44),
    "yellow": (250, 208, 66),
    "green": (84, 166, 78),
    "blue": (66, 122, 208),
    "purple": (140, 88, 182),
    "pink": (244, 150, 184),
    "brown": (146, 96, 58),
    "black": (56, 53, 62),
    "white": (248, 246, 240),
    "gray": (152, 154, 164),
}
INK: Colour = (42, 36, 52)


def blend(first: Colour, second: Colour, share: Number) -> Colour:
    """Return the colour that lies `share` of the way from `first` to `second`."""
    return tuple(round(a + (b - a) * share) for a, b in zip(first, second, strict=True))


def light(colour: Colour, share: Number = 0.35) -> Colour:
    """Return a lighter tint of `colour`."""
    return blend(colour, (255, 255, 255), share)


def dark(colour: Colour, share: Number = 0.25) -> Colour:
    """Return a darker shade of `colour`."""
    return blend(colour, INK, share)


def smooth(points: Sequence[Point], closed: bool, steps: int = 8) -> list[Point]:
    """Return points along the Catmull-Rom curve through `points`, `steps` for each segment."""
    count = len(points)
    at = (lambda i: points[i % count]) if closed else (lambda i: points[min(max(i, 0), count - 1)])
    curve = []
    for i in range(count if closed else count - 1):
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = at(i - 1), at(i), at(i + 1), at(i + 2)
        for step in range(steps):
            t = step / steps
            u = -t + 2 * t**2 - t**3
            v = 2 - 5 * t**2 + 3 * t**3
            w = t + 4 * t**2 - 3 * t**3
            z = t**3 - t**2
            curve.append(((u * ax + v * bx + w * cx + z * dx) / 2, (u * ay + v * by + w * cy + z * dy) / 2))
    return curve if closed else [*curve, points[-1]]


@dataclass
class Brush:
    """Draws on `picture` in a frame with its origin at pixel (`x`, `y`) and `size` pixels to the unit, y upwards.

    Attributes:
        flip: mirror left and right.
        outline: None to paint; a (colour, width in units) to draw every shape grown by the width, in that colour.
    """

    picture: Image.Image
    x: Number
    y: Number
    size: Number
    flip: bool = False
    outline: tuple[Colour, Number] | None = None

    def __post_init__(self):
        # Mode "RGBA" on an RGB picture makes a fill with a fourth number translucent.
        self._draw = ImageDraw.Draw(self.picture, "RGBA")

    def _to_pixels(self, points: Sequence[Point]) -> list[Point]:
        sign = -self.size if self.flip else self.size
        return [(self.x + sign * px, self.y - self.size * py) for px, py in points]

    def polygon(self, points: Sequence[Point], fill: Colour) -> None:
        """Draw a filled shape with straight sides."""
        pixels = self._to_pixels(points)
        if self.outline is None:
            self._draw.polygon(pixels, fill=fill)
        else:
            colour, grow = self.outline
            self._draw.polygon(pixels, fill=colour)
            self._trace([*pixels, pixels[0], pixels[1]], 2 * grow * self.size, colour)

    def blob(self, points: Sequence[Point], fill: Colour) -> None:
        """Draw a filled shape with a smooth border through `points`."""
        self.polygon(smooth(points, closed=True), fill)

    def oval(self, x: Number, y: Number, across: Number, up: Number, fill: Colour, turn: Number = 0.0) -> None:
        """Draw an ellipse with half axes `across` and `up`, rotated by `turn` degrees anticlockwise."""
        if not turn:
            return self._upright_oval(x, y, across, up, fill)
        angle = math.radians(turn)
        points = []
        for step in range(40):
            along = step * math.tau / 40
            a, b = across * math.cos(along), up * math.sin(along)
            points.append(
                (x + a * math.cos(angle) - b * math.sin(angle), y + a * math.sin(angle) + b * math.cos(angle))
            )
        return self.polygon(points, fill)

    def _upright_oval(self, x: Number, y: Number, across: Number, up: Number, fill: Colour) -> None:
        if self.outline is not None:
            fill, grow = self.outline
            across, up = across + grow, up + grow
        ((px, py),) = self._to_pixels([(x, y)])
        across, up = across * self.size, up * self.size
        self._draw.ellipse((px - across, py - up, px + across, py + up), fill=fill)

    def disc(self, x: Number, y: Number, radius: Number, fill: Colour) -> None:
        """Draw a filled circle."""
        self.oval(x, y, radius, radius, fill)

    def sector(self, x: Number, y: Number, radius: Number, start: Number, end: Number, fill: Colour) -> None:
        """Draw the part of a disc between two angles in degrees, bounded by the chord between its ends."""
        angles = [math.radians(start + (end - start) * step / 24) for step in range(25)]
        self.polygon([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill)

    def box(self, left: Number, bottom: Number, right: Number, top: Number, fill: Colour, round: Number = 0.0) -> None:
        """Draw a rectangle, with corners rounded by `round`."""
        if not round:
            return self.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], fill)
        corners = [(right - round, top - round, 0), (left + round, top - round, 90)]
        corners += [(left + round, bottom + round, 180), (right - round, bottom + round, 270)]
        points = []
        for x, y, start in corners:
            angles = [math.radians(start + 15 * step) for step in range(7)]
            points += [(x + round * math.cos(a), y + round * math.sin(a)) for a in angles]
        return self.polygon(points, fill)

    def line(self, points: Sequence[Point], width: Number, fill: Colour) -> None:
        """Draw a line with round joints and ends."""
        if self.outline is None:
            self._trace(self._to_pixels(points), width * self.size, fill)
        else:
            colour, grow = self.outline
            self._trace(self._to_pixels(points), (width + 2 * grow) * self.size, colour)

    def curve(self, points: Sequence[Point], width: Number, fill: Colour) -> None:
        """Draw a smooth line through `points`."""
        self.line(smooth(points, closed=False), width, fill)

    def _trace(self, pixels: list[Point], width: Number, fill: Colour) -> None:
        self._draw.line(pixels, fill=fill, width=max(1, round(width)), joint="curve")
        for x, y in (pixels[0], pixels[-1]):
            half = width / 2
            self._draw.ellipse((x - half, y - half, x + half, y + half), fill=fill)

    def shadow(self, across: Number, strength: int = 70) -> None:
        """Draw a soft-edged shadow on the ground under the object, `across` units to either side."""
        for grow in (1.0, 0.82):
            self._upright_oval(0, 0, across * grow, 0.05 * grow, (20, 20, 50, strength // 2))
