"""Triton with the Python backend: `server.py MODELS PORT SCRATCH`.

Settings, and why:
- `max_batch_size: 64` and dynamic batching without a queue delay: batches form from what has queued, as ours do.
- One model instance (a process of its own) for each core, each running ONNX Runtime with one thread.
- Metrics, HTTP and model control off; nothing but gRPC is asked. Answers and questions cross to the instance in shared memory,
  1 MiB to begin with, as by default.
"""

import os
import shutil
import sys
from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {features} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {answers} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 0 }}
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
parameters {{ key: "onnx" value: {{ string_value: "{onnx}" }} }}
"""


def main() -> None:
    models, port, scratch = Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3])
    packages = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    triton = packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # The backend starts the stub that lies beside it; each Python has its own.
    shutil.copytree(triton / "backends", scratch / "backends")
    shutil.copy2(
        triton / "python_backend_stubs" / version / "triton_python_backend_stub", scratch / "backends" / "python"
    )
    for name, features, answers in (("tiny", 64, 10), ("mid", 256, 256)):
        folder = scratch / "models" / name / "1"
        folder.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("model.py"), folder)
        onnx = models / name / "1" / "model.onnx"
        config = CONFIG.format(features=features, answers=answers, instances=os.cpu_count(), onnx=onnx)
        (folder.parent / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    libraries = [packages / "nvidia_pytriton.libs", packages / "nvidia" / "cuda_runtime" / "lib"]
    base = Path(sys.base_prefix) / "lib"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, [*libraries, base])),
        "BENCH_PACKAGES": str(packages),
        "PYTHONHOME": sys.base_prefix,
    }
    arguments = {
        "model-repository": scratch / "models",
        "backend-directory": scratch / "backends",
        "grpc-address": "127.0.0.1",
        "grpc-port": port,
        "allow-http": "false",
        "allow-metrics": "false",
    }
    server = str(triton / "bin" / "tritonserver")
    os.execve(server, [server, *(f"--{name}={value}" for name, value in arguments.items())], environment)


if __name__ == "__main__":
    main()
