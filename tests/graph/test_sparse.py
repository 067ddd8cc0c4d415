"""Products of sparse matrices with dense blocks."""

import numpy as np
import pytest
import torch

from oneshot.graph.sparse import SparseMatrix


def random_matrix(seed: int, rows: int, columns: int, dtype: torch.dtype) -> SparseMatrix:
    """About ten entries a row; some rows are empty, one is long."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 20, rows)
    counts[rows // 2] = 5 * columns
    index = generator.integers(0, columns, counts.sum())
    values = generator.normal(size=counts.sum())
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseMatrix(
        torch.from_numpy(indptr),
        torch.from_numpy(index),
        torch.from_numpy(values).to(dtype),
        columns,
    )


def dense(matrix: SparseMatrix) -> np.ndarray:
    """The matrix as an array; entries in the same place are added."""
    array = np.zeros(matrix.shape)
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr.numpy()))
    values = np.ones(len(row)) if matrix.values is None else matrix.values.numpy()
    np.add.at(array, (row, matrix.index.numpy()), values)
    return array


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0, 1, 3, 32])
def test_a_product_is_that_of_the_dense_matrix(dtype: torch.dtype, width: int) -> None:
    matrix = random_matrix(1, 50, 40, dtype)
    block = torch.randn(40, width, dtype=dtype, generator=torch.Generator().manual_seed(2))
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    expected = dense(matrix) @ block.double().numpy()
    np.testing.assert_allclose((matrix @ block).numpy(), expected, rtol=0, atol=tolerance)
    previous = torch.ones(50, width, dtype=dtype)
    step = matrix.chebyshev_step(block, previous.clone())
    np.testing.assert_allclose(step.numpy(), 2 * expected - 1, rtol=0, atol=2 * tolerance)


def test_a_matrix_without_values_adds_rows_up() -> None:
    indptr, index = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 3, 1])
    block = torch.arange(8.0).reshape(4, 2)
    product = SparseMatrix(indptr, index, None, 4) @ block
    assert product.tolist() == [[6.0, 8.0], [0.0, 0.0], [2.0, 3.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_column_does_not_depend_on_those_beside_it(dtype: torch.dtype) -> None:
    """Bit for bit, whatever the width of the block and the place in it."""
    matrix = random_matrix(3, 400, 300, dtype)
    block = torch.randn(300, 40, dtype=dtype, generator=torch.Generator().manual_seed(4))
    whole = matrix @ block
    for first, width in [(0, 1), (7, 1), (39, 1), (3, 2), (5, 7), (9, 8), (1, 16), (8, 31)]:
        part = slice(first, first + width)
        assert torch.equal(matrix @ block[:, part].contiguous(), whole[:, part])


def test_small_products_run_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    sums = SparseMatrix._sums

    def noted(self: SparseMatrix, block: torch.Tensor) -> torch.Tensor:
        used.append(torch.get_num_threads())
        return sums(self, block)

    monkeypatch.setattr(SparseMatrix, "_sums", noted)
    matrix, before = random_matrix(1, 50, 40, torch.float32), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        small = matrix @ torch.ones(40, 4)
        monkeypatch.setattr("oneshot.graph.sparse._SMALL", 0)
        assert small.equal(matrix @ torch.ones(40, 4))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert used == [1, 3]
