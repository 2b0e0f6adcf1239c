"""The worker: finds models, loads them into ONNX Runtime, and hands their batches from the Rust front to a session."""

VERSION = "0.1.0"
"""The suite's version, as `ServerMetadata` tells it."""
