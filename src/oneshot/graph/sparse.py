"""SparseMatrix: a sparse matrix and its product with dense blocks.

On the CPU the product is `torch.nn.functional.embedding_bag`, which sums weighted rows of the
block: each column of the result is then bitwise independent of the other columns. The product of
`torch.sparse_csr_tensor` does not have this property on every CPU (on some Intel CPUs the last bit
of a column depends on the width of the block), and takes two to four times as long on blocks of 32
columns. On a GPU the product has kernels of its own, whose columns are independent as well; without
Triton it is that of cuSPARSE.
"""

import warnings
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from oneshot.system.devices import kernels_work, one_thread

if TYPE_CHECKING:
    from oneshot.graph._triton import FixedOrderProduct

# Products of fewer entries times columns run on one thread.
_SMALL = 1 << 20


class Matrix(Protocol):
    """The interface of a sparse matrix [rows, columns] for walks."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def device(self) -> torch.device: ...

    def __matmul__(self, block: Tensor) -> Tensor:
        """The product with a dense block: [columns, n] → [rows, n]."""

    def chebyshev_step(self, current: Tensor, previous: Tensor) -> Tensor:
        """`2 · M @ current − previous`, both [rows, n]; may overwrite `previous`."""


class SparseMatrix:
    """A sparse matrix in compressed rows, [len(indptr) - 1, num_columns].

    `indptr` int [rows + 1] and `index` int [m]: the columns of row `i` are
    `index[indptr[i]:indptr[i + 1]]`. `values` [m]: the entries; None if all of them are 1.
    """

    def __init__(
        self, indptr: Tensor, index: Tensor, values: Tensor | None, num_columns: int
    ) -> None:
        self.shape: tuple[int, int] = (len(indptr) - 1, num_columns)
        # The products are fastest with 32-bit indices.
        kind = torch.int32 if max(*self.shape, len(index)) < 2**31 else torch.int64
        self.indptr, self.index = indptr.to(kind), index.to(kind)
        self.values = values
        self._on_gpu: Tensor | None = None
        self._kernels: FixedOrderProduct | None = None

    @property
    def device(self) -> torch.device:
        return self.index.device

    def __matmul__(self, block: Tensor) -> Tensor:
        """The product with a dense block: [num_columns, n] → [rows, n]."""
        product = self._product(block)
        if product is not None:
            return product(block)
        if self.device.type != "cpu":
            return self._csr(block.dtype) @ block
        if not block.shape[1]:  # not supported by the kernel of the product
            return block.new_zeros(self.shape[0], 0)
        is_small = len(self.index) * block.shape[1] <= _SMALL
        with one_thread() if is_small else nullcontext():
            return self._sums(block)

    def _sums(self, block: Tensor) -> Tensor:
        """The product on the CPU, as weighted sums of rows of the block."""
        return torch.nn.functional.embedding_bag(
            self.index,
            block,
            self.indptr,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )

    def chebyshev_step(self, current: Tensor, previous: Tensor) -> Tensor:
        """See `Matrix.chebyshev_step`."""
        product = self._product(current)
        if product is not None:
            return product(current, previous, alpha=2.0, beta=-1.0)
        if self.device.type != "cpu":
            matrix = self._csr(current.dtype)
            return torch.addmm(previous, matrix, current, beta=-1, alpha=2, out=previous)
        return torch.sub(self._doubled @ current, previous, out=previous)

    def _product(self, block: Tensor) -> "FixedOrderProduct | None":
        """The kernels of the product with a block; None where they cannot be used."""
        if self.device.type == "cpu" or not kernels_work(self.device):
            return None
        # They have no gradients, and sum in the type of the block.
        if (block.requires_grad and torch.is_grad_enabled()) or block.itemsize < 4:
            return None
        if self._kernels is None:
            from oneshot.graph._triton import FixedOrderProduct

            self._kernels = FixedOrderProduct(self.indptr, self.index, self.values)
        return self._kernels

    @cached_property
    def _doubled(self) -> "SparseMatrix":
        """This matrix times 2, which is exact, and saves a pass over the block in each step."""
        assert self.values is not None
        return SparseMatrix(self.indptr, self.index, 2 * self.values, self.shape[1])

    def _csr(self, dtype: torch.dtype) -> Tensor:
        if self._on_gpu is None or self._on_gpu.dtype != dtype:
            values = self.values
            if values is None:
                values = torch.ones(len(self.index), dtype=dtype, device=self.device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "sparse CSR is in beta state"
                self._on_gpu = torch.sparse_csr_tensor(
                    self.indptr, self.index, values, self.shape, check_invariants=False
                )
        return self._on_gpu
