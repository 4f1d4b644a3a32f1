"""Augmentation: random changes of training images that leave the finding unchanged.

An image and its lung mask are moved alike; changes of grey level leave the mask unchanged. For images with masks,
shift, zoom, rotation and elastic deformation are combined into one mesh, so that each pixel is interpolated once. The
elastic deformation follows Ronneberger 2015 (arXiv:1505.04597), section 3.1: random displacements on a coarse grid.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from scipy import ndimage
from scipy.spatial import ConvexHull

from fieldray_adapt.recipes.tables import key, recipe_table

GreyImage = NDArray[np.uint8]
"""A grey image: an array (rows, columns) of uint8."""
_SHADING_KNOTS: Final = 4
_LEVELS: Final = np.linspace(0, 1, 256)


@recipe_table
class BaseAugmentation:
    """Random changes that the training of classifiers and the training of lung-field networks have in common."""

    shift: float = key("Shift of the image, as a share of its side.", default=0.0, low=0, high=1)
    scale: float = key("Zoom, as a power of e: 0.1 means 0.90 to 1.11 times the size.", default=0.0, low=0, high=1)
    stretch: float = key(
        "Change of the ratio of height to width, as a power of e: 0.1 means 0.90 to 1.11 times the ratio.",
        default=0.0,
        low=0,
        high=1,
    )
    rotation_degrees: float = key("Rotation of the image.", default=0.0, unit="degrees", low=0, high=45)
    gamma: float = key("Gamma, as a power of e: 0.2 means a gamma of 0.82 to 1.22.", default=0.0, low=0, high=2)
    contrast: float = key(
        "Contrast, as a power of e: 0.2 means 0.82 to 1.22 times the contrast.", default=0.0, low=0, high=2
    )
    brightness: float = key("Change of brightness, as a share of the range of grey levels.", default=0.0, low=0, high=1)
    shading: float = key(
        "Strength of a smooth grey field that is added to the image, as a share of the range of grey levels. The "
        "network then ignores broad differences of grey, which often come from the archive and not from the "
        "lungs.",
        default=0.0,
        low=0,
        high=1,
    )
    blur_pixels: float = key(
        "Standard deviation of a Gaussian blur, for half of the images.", default=0.0, unit="pixels", low=0
    )
    noise: float = key(
        "Standard deviation of added noise, as a share of the range of grey levels.", default=0.0, low=0, high=1
    )
    coarsen: float = key(
        "Probability of shrinking the image to between 48 pixels and the full side, and enlarging it again.",
        default=0.0,
        low=0,
        high=1,
    )


@recipe_table
class Augmentation(BaseAugmentation):
    """The largest strength x of each random change; each training image gets a random strength up to x.

    The strength for an image is drawn evenly from -x..x or 0..x. Strengths of 0 change nothing.
    """

    flip: float = key(
        "Probability of mirroring. Keep this small, because the heart changes sides.", default=0.0, low=0, high=1
    )
    cutout: float = key(
        "Largest side of one erased square, as a share of the image's side.", default=0.0, low=0, high=1
    )


RotationZoomShiftMirror = tuple[float, float, float, float, float, float]
"""A geometric change of an image, as six numbers.

The numbers are rotation (radians), horizontal zoom, vertical zoom, horizontal shift, vertical shift, and mirroring (-1
for a mirror image, else 1). Shifts are shares of the image's side.
"""


def augment(
    image: GreyImage,
    settings: Augmentation,
    *,
    generator: np.random.Generator,
    motion: RotationZoomShiftMirror | None = None,
) -> GreyImage:
    """Return a randomly augmented copy of a grey image (rows, columns) uint8.

    Parameters
    ----------
    settings
        The largest strength of each change.
    motion
        The geometric change. None to draw a random geometric change.
    """
    shifted = apply_geometric_change(image, motion or draw_geometric_change(settings, generator))
    recoloured = np.take(_tone_table(settings, generator), shifted)
    return _spoiled(_shaded(recoloured, settings, generator), settings, generator)


def draw_geometric_change(settings: Augmentation, generator: np.random.Generator) -> RotationZoomShiftMirror:
    """Draw a random geometric change within `settings`. `apply_geometric_change` applies the change to images."""
    if not any((settings.shift, settings.scale, settings.stretch, settings.rotation_degrees, settings.flip)):
        return _STILL
    angle = math.radians(generator.uniform(-1, 1) * settings.rotation_degrees)
    zoom, stretch = (generator.uniform(-1, 1) * most for most in (settings.scale, settings.stretch / 2))
    shift_x, shift_y = generator.uniform(-1, 1, 2) * settings.shift
    mirror = -1.0 if generator.random() < settings.flip else 1.0
    return angle, math.exp(zoom + stretch), math.exp(zoom - stretch), float(shift_x), float(shift_y), mirror


_STILL: Final[RotationZoomShiftMirror] = (0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


def apply_geometric_change(image: GreyImage, motion: RotationZoomShiftMirror) -> GreyImage:
    """Apply a geometric change to an image (rows, columns) uint8. Returns an image of equal size."""
    if motion == _STILL:
        return image
    rows, columns = image.shape
    angle, zoom_x, zoom_y, shift_x, shift_y, mirror = motion
    cosine, sine = math.cos(angle), math.sin(angle)
    matrix = (mirror * cosine * zoom_x, sine * zoom_y, -mirror * sine * zoom_x, cosine * zoom_y)
    middle_x, middle_y = columns / 2, rows / 2
    offset_x = middle_x + shift_x * columns - matrix[0] * middle_x - matrix[1] * middle_y
    offset_y = middle_y + shift_y * rows - matrix[2] * middle_x - matrix[3] * middle_y
    data = (matrix[0], matrix[1], offset_x, matrix[2], matrix[3], offset_y)
    drawn = Image.fromarray(image)
    return np.asarray(drawn.transform(drawn.size, Image.Transform.AFFINE, data, resample=Image.Resampling.BILINEAR))


def _tone_table(settings: Augmentation, generator: np.random.Generator) -> GreyImage:
    """Draw random gamma, contrast and brightness. Returns a table (256,) with the new value of each grey level."""
    gamma = math.exp(generator.uniform(-1, 1) * settings.gamma)
    contrast = math.exp(generator.uniform(-1, 1) * settings.contrast)
    brightness = generator.uniform(-1, 1) * settings.brightness
    levels = (_LEVELS**gamma - 0.5) * contrast + 0.5 + brightness
    table: GreyImage = np.rint(levels.clip(0, 1) * 255).astype(np.uint8)
    return table


def _shaded(image: GreyImage, settings: Augmentation, generator: np.random.Generator) -> GreyImage:
    """Return an image with a smooth random brightness pattern of strength `settings.shading` added."""
    if not settings.shading:
        return image
    strength = generator.uniform(0, settings.shading) * 255
    knots = generator.uniform(-1, 1, (_SHADING_KNOTS, _SHADING_KNOTS)).astype(np.float32) * np.float32(strength)
    size = (image.shape[1], image.shape[0])
    field = np.asarray(Image.fromarray(knots).resize(size, Image.Resampling.BICUBIC))
    shaded: GreyImage = (image + field).clip(0, 255).astype(np.uint8)
    return shaded


def _spoiled(image: GreyImage, settings: Augmentation, generator: np.random.Generator) -> GreyImage:
    """Return an image made worse at random, as by a poorer detector: with blur, less detail, noise, and a grey box."""
    drawn = Image.fromarray(image)
    if settings.blur_pixels and generator.random() < 0.5:
        drawn = drawn.filter(ImageFilter.GaussianBlur(generator.uniform(0, settings.blur_pixels)))
    if settings.coarsen and generator.random() < settings.coarsen:
        share = generator.uniform(min(1.0, 48 / min(image.shape)), 1.0)
        side = (max(1, round(drawn.width * share)), max(1, round(drawn.height * share)))
        small = drawn.resize(side, Image.Resampling.BOX)
        drawn = small.resize(drawn.size, Image.Resampling.BILINEAR)
    spoiled = np.array(drawn)
    if settings.noise:
        sigma = generator.uniform(0, settings.noise) * 255
        noisy = spoiled + generator.standard_normal(spoiled.shape, np.float32) * np.float32(sigma)
        spoiled = noisy.clip(0, 255).astype(np.uint8)
    if settings.cutout:
        height, width = generator.uniform(0, settings.cutout, 2) * spoiled.shape
        top, left = generator.uniform(0, 1, 2) * (spoiled.shape[0] - height, spoiled.shape[1] - width)
        spoiled[int(top) : int(top + height), int(left) : int(left + width)] = int(generator.integers(256))
    return spoiled


_CELLS: Final = 8
_MARKS: Final = "LRAP"


@recipe_table
class ImageMaskAugmentation(BaseAugmentation):
    """The largest strength x of each random change; each image, with its mask, gets a random strength up to x.

    The strength for an image is drawn evenly from -x..x or 0..x. Strengths of 0 change nothing.
    """

    elastic: float = key(
        "Elastic deformation: standard deviation of the displacement of each knot of an 8 x 8 grid, as a share "
        "of the image's side.",
        default=0.0,
        low=0,
    )
    inversion: float = key("Probability that black and white are swapped.", default=0.0, low=0, high=1)
    opacities: float = key(
        "Probability of one to three soft bright patches, like infiltrates.", default=0.0, low=0, high=1
    )
    whitening: float = key(
        "Probability that a lung, or part of a lung, is painted white and so made invisible.",
        default=0.0,
        low=0,
        high=1,
    )
    letters: float = key("Probability of letters near the border.", default=0.0, low=0, high=1)
    collimation: float = key("Probability of black or white borders.", default=0.0, low=0, high=1)

    @property
    def grey_level_augmentation(self) -> Augmentation:
        """Settings of `augment` with only those changes that move no pixel, such as contrast, blur and noise."""
        names = ("gamma", "contrast", "brightness", "shading", "blur_pixels", "noise", "coarsen")
        return Augmentation(**{name: getattr(self, name) for name in names})


def augment_with_mask(
    image: GreyImage, mask: GreyImage, settings: ImageMaskAugmentation, *, generator: np.random.Generator
) -> tuple[GreyImage, GreyImage]:
    """Return a randomly changed copy of an image, and a copy of the mask with the same movements.

    Parameters
    ----------
    image
        Grey image (rows, columns) uint8.
    mask
        One mask (rows, columns), or n masks (rows, columns, n), uint8 in 0..255.
    """
    mesh = _mesh(image.shape, settings, generator)
    changed = augment_appearance(_moved(image, mesh), settings, generator=generator)
    if mask.ndim == 2:
        return changed, _moved(mask, mesh)
    return changed, np.stack([_moved(plane, mesh) for plane in mask.transpose(2, 0, 1)], axis=-1)


def augment_appearance(
    image: GreyImage, settings: ImageMaskAugmentation, *, generator: np.random.Generator
) -> GreyImage:
    """Return a copy of an image with random changes of grey level, sharpness, borders and letters.

    No pixel is moved.
    """
    image = augment(image, settings.grey_level_augmentation, generator=generator)
    if settings.opacities and generator.random() < settings.opacities:
        image = _opacified(image, generator)
    if generator.random() < settings.letters:
        image = _lettered(image, generator)
    if generator.random() < settings.collimation:
        image = _collimated(image, generator)
    if generator.random() < settings.inversion:
        image = np.invert(image)
    return image


_Mesh = list[tuple[tuple[int, int, int, int], tuple[float, ...]]]


def _mesh(shape: tuple[int, ...], settings: ImageMaskAugmentation, generator: np.random.Generator) -> _Mesh:
    """Draw a random deformation, in the form that `Image.transform(method=MESH)` of Pillow takes.

    Returns pairs of a target box and the source quadrilateral whose pixels fill the box.
    """
    rows, columns = shape
    angle = math.radians(generator.uniform(-1, 1) * settings.rotation_degrees)
    zoom, stretch = generator.uniform(-1, 1) * settings.scale, generator.uniform(-1, 1) * settings.stretch / 2
    shift = generator.uniform(-1, 1, 2) * settings.shift
    knots = np.stack(np.meshgrid(*[np.linspace(0, 1, _CELLS + 1)] * 2), axis=-1)  # (row, column) to x, y in 0..1
    middle = knots - 0.5
    cosine, sine = math.cos(angle), math.sin(angle)
    turned = middle @ np.array([[cosine, sine], [-sine, cosine]]) * np.exp([zoom + stretch, zoom - stretch])
    elastic = generator.normal(0, 1, knots.shape) * settings.elastic
    source = (turned + 0.5 + shift + elastic) * (columns, rows)
    across, down = (np.linspace(0, side, _CELLS + 1).round().astype(int) for side in (columns, rows))
    return [
        (
            (int(across[x]), int(down[y]), int(across[x + 1]), int(down[y + 1])),
            (*source[y, x], *source[y + 1, x], *source[y + 1, x + 1], *source[y, x + 1]),
        )
        for y in range(_CELLS)
        for x in range(_CELLS)
    ]


def _moved(plane: GreyImage, mesh: _Mesh) -> GreyImage:
    drawn = Image.fromarray(plane)
    return np.asarray(drawn.transform(drawn.size, Image.Transform.MESH, mesh, resample=Image.Resampling.BILINEAR))


def _opacified(image: GreyImage, generator: np.random.Generator) -> GreyImage:
    """Add one to three soft bright ellipses to an image, as opacities in the lungs. An ellipse is at most 70 % white.

    The lung mask is not changed. So the network learns that a bright part of a lung is still lung.
    """
    rows, columns = image.shape
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
    kept = np.ones(image.shape, np.float32)
    for _ in range(int(generator.integers(1, 4))):
        middle = generator.uniform((0.15, 0.1), (0.9, 0.9))
        reach = generator.uniform(0.04, 0.2, 2)
        distance = ((y / rows - middle[0]) / reach[0]) ** 2 + ((x / columns - middle[1]) / reach[1]) ** 2
        kept *= 1 - np.float32(generator.uniform(0.15, 0.7)) * np.exp(-(distance ** generator.uniform(1, 2.5)))
    return np.asarray(255 - (255 - image.astype(np.float32)) * kept, np.uint8)


WHITE_AREA_KINDS: Final = ("whole", "upper", "lower", "effusion")
_BOTH_WHITE: Final = 0.2
_HULL_MARGIN: Final = 3 / 256


def whiten_lung(image: GreyImage, mask: GreyImage, generator: np.random.Generator) -> tuple[GreyImage, GreyImage]:
    """Paint a lung or a part of a lung white, as a pneumonia or an effusion would.

    Image and mask are (rows, columns) uint8. Returns the painted image, and the mask without the white area. In one
    image of five, both lungs are painted. If the mask does not show two lungs, both arrays are returned unchanged.
    """
    hulls = lung_hulls(mask > 127)
    for here in generator.permutation(len(hulls))[: 1 + (generator.random() < _BOTH_WHITE)] if len(hulls) > 1 else ():
        area = draw_white_area(hulls[here], str(generator.choice(WHITE_AREA_KINDS)), generator, is_left=here == 0)
        image, mask = paint_white(image, area, generator), np.where(area, np.uint8(0), mask)
    return image, mask


def lung_hulls(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the convex hulls, slightly enlarged, of the two largest connected areas of a lung mask.

    Each hull is a mask (rows, columns). The hull on the left side of the image comes first. Areas narrower than 3
    pixels are left out.
    """
    parts, number = ndimage.label(mask)
    sizes = np.bincount(parts.reshape(-1), minlength=number + 1)[1:]
    hulls = []
    for part in np.argsort(-sizes)[:2] + 1:
        points = np.argwhere(parts == part)[:, ::-1]
        if min(np.ptp(points, axis=0)) < 2:
            continue  # a speck or a line
        drawn = Image.new("1", mask.shape[::-1])
        corners = [(float(x), float(y)) for x, y in points[ConvexHull(points).vertices]]
        ImageDraw.Draw(drawn).polygon(corners, fill=1)
        hulls.append(ndimage.binary_dilation(np.asarray(drawn), iterations=max(1, round(_HULL_MARGIN * len(mask)))))
    return sorted(hulls, key=lambda hull: float(np.argwhere(hull)[:, 1].mean()))


def draw_white_area(
    area: NDArray[np.bool_], kind: str, generator: np.random.Generator, *, is_left: bool
) -> NDArray[np.bool_]:
    """Draw a random area of a lung, to be painted white. Returns the area as a mask (rows, columns).

    Parameters
    ----------
    area
        The lung as a mask (rows, columns).
    kind
        The part of the lung: "whole", "upper", "lower" or "effusion".
    is_left
        Whether the lung is on the left side of the image.
    """
    down, across = np.nonzero(area)
    y, x = np.mgrid[0 : area.shape[0], 0 : area.shape[1]]
    height, inwards = np.ptp(down), (x - across.min()) / max(1, np.ptp(across))
    outwards = 1 - inwards if is_left else inwards
    level = {
        "whole": np.full(area.shape, -np.inf),
        "upper": down.min() + height * generator.uniform(0.3, 0.75) + 0 * x,
        "lower": down.min() + height * generator.uniform(0.25, 0.7) + 0 * x,
        "effusion": down.min() + height * (generator.uniform(0.25, 0.65) - 0.22 * outwards**3 + 0.05 * inwards),
    }[kind]
    return np.asarray(area & ((y < level) if kind == "upper" else (y >= level)), bool)


def paint_white(grey: GreyImage, area: NDArray[np.bool_], generator: np.random.Generator) -> GreyImage:
    """Return a copy of an image in which `area`, a mask (rows, columns), is painted white with noise and a soft edge.

    The white is a random grey level in the bright part of the image's grey levels.
    """
    pixels, side = grey.astype(np.float32), len(grey)
    low, high = np.percentile(pixels, [50, 97])
    broad, fine = (ndimage.gaussian_filter(generator.normal(size=grey.shape), sigma) for sigma in (side / 20, 1))
    around = ndimage.gaussian_filter(pixels, side / 8)
    white = generator.uniform(low + 0.55 * (high - low), high) + 6 * broad / broad.std()
    white += generator.uniform(2, 5) * fine / fine.std() + 0.15 * (around - around.mean())
    feather = generator.uniform(1.5, 4) * side / 256
    soft = ndimage.gaussian_filter(area.astype(np.float32), feather) * generator.uniform(0.9, 1)
    return np.asarray(np.clip(pixels * (1 - soft) + white * soft, 0, 255), np.uint8)


def _lettered(image: GreyImage, generator: np.random.Generator) -> GreyImage:
    """Return a copy of an image with one to six random letters or digits, white or black, near the border."""
    drawn = Image.fromarray(image)
    rows, columns = image.shape
    text = "".join(generator.choice(list(_MARKS + "0123456789"), int(generator.integers(1, 7))))
    size = generator.uniform(0.04, 0.12) * rows
    edges = [generator.uniform(0, 0.12), generator.uniform(0.78, 0.92)]
    left, top = columns * float(generator.choice(edges)), rows * float(generator.uniform(0, 0.92))
    if generator.random() < 0.5:
        left, top = columns * float(generator.uniform(0, 0.9)), rows * float(generator.choice(edges))
    grey = int(generator.choice([255, 230, 0]))
    ImageDraw.Draw(drawn).text((left, top), text, fill=grey, font_size=size)
    return np.asarray(drawn)


def _collimated(image: GreyImage, generator: np.random.Generator) -> GreyImage:
    """Return a copy of an image with up to four borders of one grey level, as collimation makes.

    A border is at most 12 % of the image's side wide.
    """
    framed = image.copy()
    rows, columns = image.shape
    grey = int(generator.choice([0, 0, 0, 20, 255]))
    top, bottom, left, right = generator.uniform(0, 0.12, 4) * (generator.random(4) < 0.6)
    framed[: int(top * rows)] = grey
    framed[rows - int(bottom * rows) :] = grey
    framed[:, : int(left * columns)] = grey
    framed[:, columns - int(right * columns) :] = grey
    return framed
