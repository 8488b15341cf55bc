"""A problem's candidate as a file that runs without Astrolabe: it brings its own `load_native`.

For KernelBench's own scripts, and for whoever takes the file along. nvcc or g++ is called at the first import and the library
kept in the user's temporary folder under the hash of its source.
"""

from __future__ import annotations

import inspect
import re

from harness.backends import cpu, cuda
from harness.backends.model_new import SOURCES
from harness.farside import forms
from harness.problems.host import host_source

_LOADER = """
def load_native(namespace):
    on_gpu = torch.cuda.is_available() and "CUDA_SOURCE" in namespace
    device = "cuda" if on_gpu else "cpu"
    source = namespace["CUDA_SOURCE" if on_gpu else "CPP_SOURCE"]
    if on_gpu:
        major, minor = torch.cuda.get_device_capability()
        chip = f"{major}{minor}{'a' if major >= 9 else ''}"
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        command = [f"{home}/bin/nvcc", *CUDA_FLAGS, f"-gencode=arch=compute_{chip},code=sm_{chip}"]
    else:
        command = [os.environ.get("CXX", "g++"), *CPP_FLAGS]
    if HOSTS[device]:
        try:
            return NativeFunctions(built(command, source + HOSTS[device], ".cu" if on_gpu else ".cpp"), device)
        except subprocess.CalledProcessError:
            print("forward stays in Python: its native host cannot be built here")
    return NativeFunctions(built(command, source, ".cu" if on_gpu else ".cpp"), device)

def built(command, source, suffix):
    name = hashlib.sha256(" ".join([*command, source]).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"astrolabe-native-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{name}.so"
    if not library.exists():
        path = folder / f"{name}.{os.getpid()}{suffix}"
        path.write_text(source)
        made = path.with_suffix(".so")
        subprocess.run([*command, "-o", str(made), str(path)], check=True)
        os.replace(made, library)
    return library
"""


def needs_loader(text: str) -> bool:
    return re.search(r"\bload_native\(", text) is not None


def standalone(text: str) -> str:
    """The candidate with `load_native` in front of it, as text that is executed in a namespace of its own."""
    if not needs_loader(text):
        return text
    flags = f"CUDA_FLAGS, CPP_FLAGS = {cuda.FLAGS!r}, {cpu.FLAGS!r}\n"
    hosts = {device: host_source(text, device) if f"{name} =" in text else "" for device, name in SOURCES.items()}
    modules = "ctypes, functools, hashlib, os, subprocess, tempfile"
    imports = f"from __future__ import annotations\nimport {modules}\nfrom pathlib import Path\nimport torch\n"
    parts = [
        imports,
        flags,
        f"HOSTS = {hosts!r}",
        inspect.getsource(forms.native_call),
        inspect.getsource(forms.native_forward),
        inspect.getsource(forms.NativeFunctions),
        _LOADER,
    ]
    prelude = "\n\n".join(parts)
    quoted = f"_LOADER = {prelude!r}\n_found = {{}}\nexec(_LOADER, _found)\nload_native = _found['load_native']\n"
    future = re.compile(r"^from __future__ import .*\n", re.MULTILINE)
    return "".join(future.findall(text)) + quoted + "\n" + future.sub("", text)
