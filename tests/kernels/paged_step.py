"""What attention is asked in one step."""

from typing import NamedTuple

import torch

from loraplex_kernels.attention import Companies, build_companies, paged_attention

SCALE = 0.125


class Step(NamedTuple):
    """One step's tables and queries over pages that are poisoned wherever no token lies."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    query_start: torch.Tensor
    context_lengths: torch.Tensor

    def companies(self) -> Companies | None:
        tables = (self.block_tables, self.query_start, self.context_lengths)
        return build_companies(*(table.numpy() for table in tables), self.k_cache.shape[2])

    def attend(
        self,
        window: int | None = None,
        softcap: float | None = None,
        companies: Companies | None = None,
    ) -> torch.Tensor:
        return paged_attention(*self, SCALE, window, softcap, companies)
