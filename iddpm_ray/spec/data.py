"""Section `data`: which pictures, what they are turned into, and who reads them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from iddpm_ray.spec.mark import REQUIRED, AsTuple, Section, identity, may_change

Side = Annotated[int, Field(ge=1, le=8192)]
Byte = Annotated[int, Field(ge=0, le=255)]


def _square_as_one_number(size: int | tuple[int, int]) -> int | tuple[int, int]:
    return size[0] if isinstance(size, tuple) and size[0] == size[1] else size


class DataSpec(Section):
    """Which pictures, what they are turned into, and who reads them."""

    path: str = may_change(
        REQUIRED, "folder (read recursively) or Parquet, at any fsspec URL; its contents are pinned to the run", unit="URL"
    )
    labels: Literal["none", "folder", "prefix", "column"] = identity(
        "none", "where class labels come from: folder names, file names up to the first _, or a Parquet column", unit="choice"
    )
    image_column: str = identity("image", "Parquet column that holds the encoded pictures; unused for folders", unit="text", min_length=1)
    label_column: str = identity("label", "Parquet column that holds the labels, with labels: column", unit="text", min_length=1)
    image_size: Annotated[Side | Annotated[tuple[Side, Side], AfterValidator(_square_as_one_number)], AsTuple] = identity(
        64, "side of the square pictures that are trained on, or [height, width]", unit="pixels"
    )
    channels: Literal[1, 3] = identity(3, "colour channels: 3 for RGB, 1 for grey", unit="channels")
    background: Annotated[tuple[Byte, Byte, Byte], AsTuple] = identity(
        (255, 255, 255), "colour [r, g, b] that shows through transparent pixels", unit="0 to 255"
    )
    flip: bool = identity(False, "mirror each picture left to right with probability 1/2", unit="yes or no")
    on_error: Literal["fail", "substitute"] = identity(
        "fail", "a picture that cannot be read: stop and name it, or take the next good one and count", unit="choice"
    )
    max_pixels: int = identity(
        178_956_970, "a picture that claims more pixels than this is refused as a decompression bomb", unit="pixels", ge=1
    )
    validation_fraction: float = identity(0.0, "share of the rows held out for validation, never trained on", unit="fraction", ge=0, lt=1)
    adopt: bool = may_change(False, "go on with a data set that has changed since the run began", unit="yes or no")
    tasks: int = may_change(1, "Ray Data decode tasks at a time, over all workers", unit="tasks", ge=1)
    cpus_per_task: float = may_change(1.0, "logical CPUs that Ray reserves for each decode task", unit="CPUs", gt=0)
    steps_per_block: int | None = may_change(
        None, "steps whose rows travel together; null: so many that a block holds about 512 rows", unit="steps", ge=1
    )
    prefetch_blocks: int = may_change(2, "blocks decoded ahead for each worker", unit="blocks", ge=1)

    def height_width(self) -> tuple[int, int]:
        """Height and width of the pictures, pixels."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size
