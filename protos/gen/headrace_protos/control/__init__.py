"""Generated from `protos/`; `make proto` writes it anew."""
