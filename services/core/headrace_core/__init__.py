"""What Headrace's services and client share: errors, tensors, settings, logging, the grpc.aio server, life-cycle."""
