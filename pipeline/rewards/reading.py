"""PP-OCR as a reader of images (Cui 2025, arXiv 2507.05595), by rapidocr and onnxruntime: what it reads, how sure it is
that there is text, and how much arithmetic that is.

The detector is a DB network (Liao 2020, arXiv 1911.08947): it gives each pixel a probability to be text, and the
confidence of a box is the mean of these probabilities in it. Boxes whose confidence is below 0.5 are not read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UserError
from pipeline.faults import in_words
from pipeline.resources.packages import check_ocr
from pipeline.rewards.folders import check_file
from pipeline.rewards.ocr_settings import OcrSettings
from pipeline.rewards.rendering import GRID, PAPER

Part = Literal["detector", "recogniser"]
CROP, SHORTEST = 48, 320
"""Height of a crop that a recogniser reads, and the least width; wider ones keep their proportions [pixels]."""
BUNDLED: Mapping[Part, float] = {"detector": 21_160.0, "recogniser": 142_200.0}
"""FLOPs of the networks that come with rapidocr 3.10 (PP-OCRv6, small), for each pixel that they are given: counted as
in `flops_per_pixel`."""
BUNDLED_BYTES: Mapping[Part, float] = {"detector": 9.9e6, "recogniser": 21.2e6}
"""Sizes of their files, which is about what their weights take."""
MULTIPLIES = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclass(frozen=True)
class Reading:
    """What was read of one image."""

    text: str
    """Of all boxes in reading order, a space between two."""
    confidence: float
    """Mean of the detector's confidence over the boxes; 0 where there are none."""
    flops: float = 0.0
    bytes: float = 0.0
    """Weights that were read from memory."""


class Reader(Protocol):
    """Whatever reads an image."""

    def __call__(self, image: NDArray[np.uint8]) -> Reading:
        """Of grey levels (H, W)."""


@dataclass(frozen=True)
class Work:
    """What the two networks take: FLOPs for each pixel, and bytes of weights."""

    flops: Mapping[Part, float]
    bytes: Mapping[Part, float]

    def of(self, pixels: int, widths: Sequence[float]) -> tuple[float, float]:
        """(FLOPs, bytes) of an image of so many pixels and of crops so many pixels wide at the height `CROP`."""
        read = sum(max(width, SHORTEST) for width in widths) * CROP
        return (
            self.flops["detector"] * pixels + self.flops["recogniser"] * read,
            self.bytes["detector"] + self.bytes["recogniser"] * len(widths),
        )


class PaddleReader:
    """PP-OCR on one CPU thread an image, so that the number of threads changes no digit. Safe to call from several
    threads."""

    def __init__(self, detector: Any, recogniser: Any, work: Work) -> None:
        self._detector, self._recogniser, self._work = detector, recogniser, work

    def __call__(self, image: NDArray[np.uint8]) -> Reading:
        colour = np.repeat(image[:, :, None], 3, axis=2)
        found = self._detector(colour)
        if found.boxes is None:
            flops, moved = self._work.of(image.size, [])
            return Reading("", 0.0, flops, moved)
        boxes = np.asarray(found.boxes, dtype=np.float64)[reading_order(found.boxes)]
        crops = self._detector.crop_text_regions(colour, boxes.astype(np.float32))
        # One at a time: in a batch, a crop is padded to the width of the widest.
        texts = [text for crop in crops for text in self._recogniser(crop).txts or ()]
        flops, moved = self._work.of(image.size, [CROP * crop.shape[1] / crop.shape[0] for crop in crops])
        return Reading(" ".join(filter(None, texts)), float(np.mean(found.scores)), flops, moved)


def reading_order(boxes: Any) -> list[int]:
    """Top to bottom, left to right, of boxes (N, 4, 2) of corners from the upper left one clockwise [pixels].

    A box begins a line where its centre is half its height or more below that of the line's highest box.
    """
    corners = np.asarray(boxes, dtype=np.float64)
    centres, heights = corners.mean(axis=1), np.linalg.norm(corners[:, 3] - corners[:, 0], axis=1)
    lines: list[list[int]] = []
    for box in np.argsort(centres[:, 1], kind="stable").tolist():
        if lines and centres[box, 1] - centres[lines[-1][0], 1] < heights[box] / 2:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda one: (centres[one, 0], one))]


def paddle_reader(section: str, cfg: OcrSettings) -> PaddleReader:
    """The reader of a configuration; `section` names it in messages.

    Raises `UserError` where the packages are not installed, or a file is no network of PP-OCR.
    """
    check_ocr(f"{section}.kind")
    for part in ("detector", "recogniser"):
        if (path := getattr(cfg, part)) is not None:
            check_file(f"{section}.ocr.{part}", path, (".onnx",))
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    engines = {}
    for part, name, other in (("detector", "Det", "rec"), ("recogniser", "Rec", "det")):
        path = getattr(cfg, part)
        try:
            if path is not None and part == "recogniser":
                _check_alphabet(path)
            engine = RapidOCR(params=_settings(name, other, path))
            engine(np.full((CROP, SHORTEST, 3), PAPER, np.uint8))  # loads its network
        except Exception as error:  # onnxruntime and rapidocr raise classes of their own for "no such network"
            raise UserError(
                f"{section}.ocr.{part} = {path!r} could not be loaded as a {part} of PP-OCR ({in_words(error)}); name"
                f" an .onnx file made for rapidocr, such as PP-OCRv5_server_{name.lower()}.onnx, or leave it out"
            ) from None
        engines[part] = engine
    return PaddleReader(engines["detector"], engines["recogniser"], work_of(cfg))


def _settings(name: str, other: str, path: str | None) -> dict[str, Any]:
    """Of an engine that has one network and changes nothing about the image that it is given."""
    threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    return {
        "Global.log_level": "critical",
        "Global.use_cls": False,
        f"Global.use_{other}": False,
        "Global.use_preprocess_img": False,
        "Global.use_vertical_padding": False,
        "Det.limit_side_len": GRID,
        **threads,
        **({f"{name}.model_path": path} if path is not None else {}),
    }


def work_of(cfg: OcrSettings) -> Work:
    """The work of a configuration's networks: counted once for files of the user's, known of those that rapidocr
    brings."""
    flops, size = dict(BUNDLED), dict(BUNDLED_BYTES)
    for part in BUNDLED:
        if (path := getattr(cfg, part)) is not None:
            flops[part], size[part] = flops_per_pixel(path), float(Path(path).stat().st_size)
    return Work(flops, size)


@lru_cache(maxsize=8)
def flops_per_pixel(path: str, width: int = SHORTEST) -> float:
    """FLOPs of a network for each pixel of an image of `CROP` (a detector: 64) times `width` pixels.

    An estimate: convolutions and matrix products alone, from the shapes in onnxruntime's profile of one run, a
    multiplication and an addition each; a transposed convolution as one whose windows do not overlap.
    """
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        height = CROP if given.shape[2] == CROP else 2 * GRID
        session.run(None, {given.name: np.zeros((1, 3, height, width), np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return sum(_flops(event["args"]) for event in events if "op_name" in event.get("args", {})) / (height * width)


def _flops(node: Mapping[str, Any]) -> float:
    """Of one node of a profile."""
    if node["op_name"] not in MULTIPLIES or not node.get("output_type_shape"):
        return 0.0
    inputs, outputs = (
        [next(iter(shape.values())) for shape in node[f"{end}_type_shape"]] for end in ("input", "output")
    )
    match node["op_name"]:
        case "Conv":
            each = float(np.prod(inputs[1][1:]))
        case "ConvTranspose":
            each = float(inputs[0][1])
        case _:
            each = float(inputs[0][-1])
    return 2.0 * float(np.prod(outputs[0])) * each


def _check_alphabet(path: str) -> None:
    """Raise `ValueError` for a recogniser without its characters: rapidocr would look for them on the network."""
    import onnxruntime

    if "character" not in onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map:
        raise ValueError("its metadata has no list of characters")
