"""Compiles Triton's link to the CUDA driver into TRITON_CACHE_DIR, so that the image needs no compiler.

Triton does this at the first kernel of a process unless its cache has the result; the cache's key holds the
folder of libcuda.so.1, which TRITON_LIBCUDA_PATH fixes. A machine that builds an image has no driver: a
library with the same names, which stays in the build stage, is enough to link with.

Older releases of Triton compile a launcher for every kernel, and need a compiler at run time whatever this
does: for those, build with DEBIAN_PACKAGES="gcc libc6-dev" (docs/image.md).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

try:
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_so_from_file
except ImportError as error:
    sys.exit(print(f"nothing to compile: {error}"))

source = Path(driver.dirname, "driver.c")
functions = sorted(set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", source.read_text())))
library = Path(os.environ["TRITON_LIBCUDA_PATH"], "libcuda.so.1")
library.parent.mkdir(parents=True, exist_ok=True)
subprocess.run(
    ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-Wl,-soname,libcuda.so.1", "-o", str(library)],
    input="".join(f"void {name}(void) {{}}\n" for name in functions),
    text=True,
    check=True,
)
print(
    compile_so_from_file(
        src_path=str(source),
        name="cuda_utils",
        library_dirs=driver.library_dirs(),
        include_dirs=driver.include_dirs,
        libraries=driver.libraries,
    )
)
