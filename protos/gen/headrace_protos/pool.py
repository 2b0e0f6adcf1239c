"""The descriptor pool of this package's messages.

protobuf's global pool holds one definition of a name in a process, and other packages define `inference.*` too.
Everything here lives in a pool of its own, so that all of them can be imported together, in any order.
Give `POOL` to whatever looks messages up by name, such as gRPC's server reflection.
"""

from typing import Final

from google.protobuf import any_pb2, descriptor_pool, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

POOL: Final = descriptor_pool.DescriptorPool()

for _well_known in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
    POOL.AddSerializedFile(_well_known.DESCRIPTOR.serialized_pb)
