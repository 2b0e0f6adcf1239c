"""The local stack behind `headrace up`: Envoy, gateways, workers and NATS under one supervisor.

`plan` decides what runs (values only), `child` runs one process, `supervisor` starts and stops them in order,
`state` is the folder by which `headrace status` and `headrace down` find a running stack.
"""
