// The main function of tests under mpiexec. Every rank runs the same test cases. Rank 0 prints;
// other ranks print failures only. The worst exit code counts.
#include <mpi.h>

#include <iostream>
#include <sstream>
#include <string>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

namespace {

int run_tests(int argc, char** argv, std::ostream& out) {
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  context.setCout(&out);
  return context.run();
}

int worst_of(int code) {
  int worst = code;
  MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  std::ostringstream text;
  const int code = provided < MPI_THREAD_FUNNELED ? 1 : run_tests(argc, argv, text);
  if (rank == 0) {
    std::cout << text.str() << std::flush;
  } else if (code != 0) {
    std::cout << "[rank " + std::to_string(rank) + "]\n" + text.str() << std::flush;
  }
  const int worst = worst_of(code);
  MPI_Finalize();
  return worst;
}
