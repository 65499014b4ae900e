"""Image files: every pixel depth, alpha, profiles, orientation, metadata.

The way of an image: `decode` makes a `picture` of a file, what is computed is brought to the target's depth by `fit`,
collected strip by strip by `canvas`, brought to the target's size by `fit`, and written by `encode`. `formats` says
which formats there are and what each can hold.

libvips (through pyvips) does the decoding and encoding: unlike Pillow it keeps 16 bit, writes from a file of raw
pixels without holding the image in memory, and refuses damaged files instead of filling in grey. Only BMP, which
libvips lacks, is read by Pillow and written here, row by row.
"""

import os

os.environ.setdefault("VIPS_WARNING", "0")  # libvips reads it once; what matters is an error here
