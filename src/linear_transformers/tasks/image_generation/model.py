"""A trained model of images, as one calls it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.config.messages import first_line
from linear_transformers.config.ranges import Count, ranged
from linear_transformers.data.base import SPLITS
from linear_transformers.data.images import Images, ImageShape
from linear_transformers.data.masks import Mask, mask_of
from linear_transformers.data.sequences import to_sequences
from linear_transformers.files import NO_ARRAY
from linear_transformers.runs.exported import EXAMPLES, WEIGHTS
from linear_transformers.sampling import Prompts
from linear_transformers.tasks.generation import Drawing, Prefix, SequenceModel
from linear_transformers.tasks.image_generation.prompts import prompts_of


@dataclass(frozen=True, eq=False)
class ImageModel(SequenceModel):
    """A trained model of images [n, height, width, channels], uint8, of as many levels as its data.

    What is drawn depends on the seed and on the number of the image alone, not on the batch.
    """

    @property
    def shape(self) -> ImageShape:
        """The size of the images."""
        return self.task.shape

    def images(self, split: str = "test", *, data_root: str | None = None) -> Images:
        """Return the images of a split of its data.

        Args:
            split: The split: `train`, `val` or `test`.
            data_root: The folder of the data; None is where they were when the model was trained.

        Raises:
            ValueError: The data are missing, have no folder, or hold images of another shape.
        """
        data = self.data
        if split not in SPLITS:
            raise ValueError(f"split={split} was asked for. Choose one of {list(SPLITS)}.")
        if data_root is not None:
            names = [name for name in ("root", "path") if name in data.options]
            if not names:
                raise ValueError(f"data_root={data_root} was given, but {data.name} has no folder.")
            data = data.with_options(**{names[0]: data_root})
        source = data()
        if source.shape != self.shape:
            raise ValueError(
                f"The data hold images of {source.shape}, the checkpoint is of {self.shape}. "
                "Give it the images it was trained on."
            )
        return getattr(source.splits, split)[:]

    def examples(self, *, data_root: str | None = None) -> Images:
        """Return images to complete: those that an exported model brings along, else the test
        images of its data.

        Args:
            data_root: The folder of the data, whose test images are then returned.

        Raises:
            ValueError: See `images`; or the file of images is damaged.
        """
        file = self.path.with_name(EXAMPLES)
        if data_root is not None or self.path.name != WEIGHTS or not file.is_file():
            return self.images("test", data_root=data_root)
        try:
            return self._fitting(np.load(file, allow_pickle=False))
        except NO_ARRAY as error:
            raise ValueError(
                f"{file} holds no images of this model ({first_line(error)}). Remove it."
            ) from error

    @ranged
    def complete(
        self,
        images: np.ndarray | Tensor,
        *,
        mask: str | Path | np.ndarray | Tensor = "bottom",
        rows: int | None = None,
        n: Count = 1,
        **drawing: Unpack[Drawing],
    ) -> Images:
        """Complete each image n times, given the pixels that a mask leaves.

        Args:
            images: The images, of which hidden pixels are not looked at.
            mask: What to hide: see `mask_of`; or bools [height, width], True where it is given.
            rows: The number of rows that `bottom` leaves; None is half of them.
            n: The number of completions of each image.
            **drawing: See `Drawing`.

        Returns:
            The images [b n, height, width, channels], those of one prompt together.

        Raises:
            ValueError: The images have another shape, or an option does not fit the model.
        """
        prompts = prompts_of(self._fitting(images), self._mask(mask, rows), n)
        return self.shape.to_images(self._completed(prompts, **drawing))

    @ranged
    def generate(self, n: Count, **drawing: Unpack[Drawing]) -> Images:
        """Generate n images out of nothing.

        Args:
            n: The number of images.
            **drawing: See `Drawing`.

        Returns:
            The images [n, height, width, channels].

        Raises:
            ValueError: An option does not fit the model.
        """
        prompts = Prompts.nothing(self.shape.length, n)
        return self.shape.to_images(self._completed(prompts, **drawing))

    def log_likelihood(self, values: np.ndarray | Tensor) -> Float[Tensor, " b"]:
        """Return the log-likelihood of images, or of sequences [b, t], in nats.

        Raises:
            ValueError: They have another shape or other levels than the model's data.
        """
        sequences = np.ndim(values) == 2
        return super().log_likelihood(
            torch.as_tensor(values) if sequences else to_sequences(self._fitting(values))
        )

    def prefix_of(self, image: np.ndarray | Tensor, *, rows: int) -> Prefix:
        """Return the state after the first rows of an image [1, height, width, channels].

        Raises:
            ValueError: The image has another shape, it is not one, or it has fewer rows.
        """
        if len(values := to_sequences(self._fitting(image)).long()) > 1:
            raise ValueError(f"{len(values)} images were given; a prefix is of one: images[:1].")
        known = mask_of("bottom", self.shape, rows=rows)
        return self.prefix(values[0, : int(known.sum()) * self.shape.channels])

    def _mask(self, mask: str | Path | np.ndarray | Tensor, rows: int | None) -> Mask:
        if isinstance(mask, str | Path):
            return mask_of(str(mask), self.shape, rows=rows)
        mask = np.ascontiguousarray(mask)
        wanted = (self.shape.height, self.shape.width)
        if rows is not None or mask.dtype != bool or mask.shape != wanted:
            raise ValueError(
                f"A mask {list(mask.shape)} of {mask.dtype} was given, with rows={rows}; the "
                f"model's are {list(wanted)} of bool, True where a pixel is given, without rows."
            )
        return mask

    def _fitting(self, images: np.ndarray | Tensor) -> Images:
        images, shape = np.ascontiguousarray(images), self.shape
        fits = images.dtype == np.uint8 and images.shape[1:] == shape.axes
        levels = images.max(initial=0)
        if not (fits and images.size and levels < shape.num_levels):
            raise ValueError(
                f"Images {list(images.shape)} of {images.dtype} with levels to {levels} were "
                f"given; the model's are [n, {', '.join(map(str, shape.axes))}] of uint8 with "
                f"levels to {shape.num_levels - 1}."
            )
        return images
