"""How many full verdicts a minute: build, check on the whole visible suite, time, on the route without torch's headers
and on the one through torch.utils.cpp_extension, with the same checks.

    python -m benchmarks.pace [--kernel silu_and_mul] [--device auto|cuda|cpu] [--candidates 20] [--extension 2]

Candidates are the baseline with a constant changed, so that no cache knows them. Builds run ahead of measuring.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import device
from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog
from kernels.spec import Scalar, Size, Spec

TORCH_TYPES = {"float16": "at::kHalf", "bfloat16": "at::kBFloat16", "float32": "at::kFloat"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="silu_and_mul")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--extension", type=int, default=2, help="how many to build through torch's headers (0: none)")
    options = parser.parse_args()
    on, _ = device.choose(options.device)
    kernel = catalog.load(options.kernel)
    text = kernel.baseline(on)[1].read_text()
    table = Table(title=f"{options.kernel} on {device.facts(on).name}")
    for column in ("route", "verdicts", "seconds", "verdicts a minute", "build s", "check and time s"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder, Evaluator(kernel, on, Store(Path(folder))) as evaluator:
        baseline = evaluator.store.put(text)
        evaluator.measure(
            evaluator.verify(evaluator.build(baseline)), baseline=baseline
        )  # warm: inputs, speed of light
        plain = [f"{text}\n// candidate {index}\n" for index in range(options.candidates)]
        first = pace(evaluator, baseline, plain)
        table.add_row("plain C entry points", *row(first))
        start = time.perf_counter()
        broken = evaluator.verify(evaluator.build(evaluator.store.put(text + "\nint broken( {\n")))
        answered = time.perf_counter() - start
        if options.extension:
            torch = [as_extension(kernel.spec, source, on) for source in plain[: options.extension]]
            second = pace(evaluator, baseline, torch)
            table.add_row("torch.utils.cpp_extension", *row(second))
    console = Console()
    console.print(table)
    if options.extension:
        console.print(f"{first[0] / first[1] / (second[0] / second[1]):.1f} times as many verdicts a minute")
    console.print(f"a compile error was answered in {answered:.2f} s: {broken.outcome}, {broken.reason}")


def pace(evaluator: Evaluator, baseline: str, sources: list[str]) -> tuple[int, float, float, float]:
    """(verdicts, wall seconds, summed build seconds, summed seconds of checking and timing)."""
    start, build_s, judge_s = time.perf_counter(), 0.0, 0.0
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        for build in pool.map(evaluator.build, [evaluator.store.put(source) for source in sources]):
            began = time.perf_counter()
            verdict = evaluator.verify(build)
            verdict = evaluator.measure(verdict, baseline=baseline) if verdict.passed else verdict
            if not verdict.passed:
                raise SystemExit(f"{verdict.outcome}: {verdict.reason}\n{build.log}")
            judge_s += time.perf_counter() - began
            build_s += build.seconds
    return len(sources), time.perf_counter() - start, build_s, judge_s


def row(figures: tuple[int, float, float, float]) -> list[str]:
    verdicts, seconds, build_s, judge_s = figures
    each = f"{build_s / verdicts:.2f}", f"{judge_s / verdicts:.2f}"
    return [str(verdicts), f"{seconds:.1f}", f"{verdicts / seconds * 60:.2f}", *each]


def as_extension(spec: Spec, source: str, on: str) -> str:
    """The same source behind a torch binding, as SGLang's own extensions are written."""
    parameters, arguments = [], []
    for argument in spec.arguments:
        if isinstance(argument, Size):
            parameters.append(f"int64_t {argument.name}")
        elif isinstance(argument, Scalar):
            parameters.append(f"double {argument.name}")
        else:
            parameters.append(f"at::Tensor {argument.name}")
        arguments.append(argument.name)
    stream = ["c10::cuda::getCurrentCUDAStream().stream()"] if on == "cuda" else []
    cases = []
    first = next(argument for argument in spec.tensors if argument.dtype == "T")
    for dtype in spec.dtypes:
        cases.append(f"  if ({first.name}.scalar_type() == {TORCH_TYPES[dtype]}) return "
                     f"call(&{spec.entry_name}_{dtype}, {', '.join([*(a.name for a in spec.arguments), *stream])});")  # fmt: skip
    includes = "#include <torch/extension.h>\n" + ("#include <c10/cuda/CUDAStream.h>\n" if on == "cuda" else "")
    convert = """
template <typename To> To convert(const at::Tensor& from) { return reinterpret_cast<To>(from.data_ptr()); }
template <typename To> To convert(int64_t from) { return static_cast<To>(from); }
template <typename To> To convert(double from) { return static_cast<To>(from); }
template <typename To, typename From> To convert(From* from) { return from; }
template <typename... To, typename... From> void call(void (*entry)(To...), const From&... from) {
  entry(convert<To>(from)...);
}
"""
    function = f"[]({', '.join(parameters)}) {{\n" + "\n".join(cases) + "\n}"
    # A lambda, since the source may have a function of the operation's name already.
    body = f'PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {{\nmodule.def("{spec.entry_name}", {function});\n}}\n'
    return f"{includes}{source}\n{convert}\n{body}"


if __name__ == "__main__":
    main()
