// Fails on the last rank only. Registered as expected to fail: the worst rank decides the result.
#include <mpi.h>

#include <doctest/doctest.h>

TEST_CASE("the last rank fails") {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(rank != size - 1);
}
