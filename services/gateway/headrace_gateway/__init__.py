"""The gateway: knows which worker can run what, hands that to the Rust front as a route table, answers the slow RPCs.

`fleet` decides (values only), `discovery` and `watch` bring news, `servicers` answer, `__main__` puts it together.
No inference request passes through this package.
"""
