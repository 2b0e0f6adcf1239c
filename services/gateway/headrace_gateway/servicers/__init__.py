"""The gateway's slow half: every RPC but the two hot ones, which the Rust front routes."""
