"""How many warps of a kernel a multiprocessor holds at once, by registers, memory and threads."""

from typing import NamedTuple

WARP = 32
MAX_WARPS = 64
MAX_BLOCKS = 32
REGISTERS = 65536
REGISTER_UNIT = 256  # a warp's registers are given out in so many
RESERVED_BYTES = 1024  # of shared memory, of each block
WARP_GROUP = 4  # a multiprocessor has four register files
# Of one multiprocessor. Ampere's A100, Hopper's H100 and H200, Blackwell's B200
SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
TENSOR_COLUMNS = 512  # of tensor memory; before Blackwell there is none, and nobody asks for it


class Occupancy(NamedTuple):
    blocks: int
    warps: int

    @property
    def share(self) -> float:
        return self.warps / MAX_WARPS


def occupancy(
    architecture: int,
    num_warps: int,
    registers: int,
    shared_bytes: int,
    tensor_columns: int = 0,
) -> Occupancy:
    """Blocks and warps that fit a multiprocessor; none if a block alone does not."""
    per_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    warps_by_registers = REGISTERS // WARP_GROUP // per_warp * WARP_GROUP
    blocks = min(
        MAX_BLOCKS,
        MAX_WARPS // num_warps,
        warps_by_registers // num_warps,
        SHARED_BYTES[architecture] // (shared_bytes + RESERVED_BYTES),
        TENSOR_COLUMNS // tensor_columns if tensor_columns else MAX_BLOCKS,
    )
    return Occupancy(blocks, blocks * num_warps)
