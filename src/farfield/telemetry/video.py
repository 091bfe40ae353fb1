"""Pictures of an environment go in, an MP4 or GIF comes out."""

from pathlib import Path
from typing import Any

import numpy as np

from farfield.errors import ConfigError, MissingError
from farfield.types import Array

ENDINGS = (".gif", ".mp4")


class Video:
    """A file that grows by one picture at a time."""

    def __init__(self, path: Path, rate: float) -> None:
        """Open a file for `rate` pictures a second."""
        ending = path.suffix.lower()
        if ending not in ENDINGS:
            raise ConfigError(f"--video {path}: expected a name that ends in .mp4 or .gif")
        try:
            import imageio.v2 as imageio
        except ImportError as error:
            raise MissingError('videos: imageio is not installed; pip install "imageio[ffmpeg]"') from error
        more: dict[str, Any] = {"duration": 1000 / rate, "loop": 0}
        if ending == ".mp4":
            # Blocks of one pixel keep the pictures' size; yuv420p, which every player shows, takes even sizes.
            more = {"fps": rate, "macro_block_size": 1, "pixelformat": "yuv420p", "ffmpeg_log_level": "error"}
        try:
            self._writer = imageio.get_writer(path, **more)
        except (ImportError, ValueError) as error:
            raise MissingError(f'--video {path}: {error}; pip install "imageio[ffmpeg]"') from error
        self.frames = 0

    def add(self, picture: Array) -> None:
        """Add a picture [H, W, 3]; an odd last row or column is left out."""
        height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2
        self._writer.append_data(np.ascontiguousarray(picture[:height, :width, :3]))
        self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()
