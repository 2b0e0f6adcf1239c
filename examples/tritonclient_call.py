"""The same server, called with NVIDIA's client for Triton, unchanged. Needs `make up` and `tritonclient[grpc]`.

.venv/bin/python examples/tritonclient_call.py
"""

import numpy as np
import tritonclient.grpc as triton


def main() -> None:
    """Ask one question the way Triton's users do."""
    client = triton.InferenceServerClient("127.0.0.1:8001")
    row = np.zeros((1, 30), np.float32)
    tensor = triton.InferInput("input", row.shape, "FP32")
    tensor.set_data_from_numpy(row)
    result = client.infer("gbdt", [tensor])
    print("label", result.as_numpy("label"), "probabilities", result.as_numpy("probabilities"))


if __name__ == "__main__":
    main()
