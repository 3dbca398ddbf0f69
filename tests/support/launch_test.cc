// Tests of the test harness itself: the launcher belongs to the MPI library that was linked.
#include <mpi.h>

#include <cstdlib>
#include <string>

#include <doctest/doctest.h>

TEST_SUITE("support") {
  TEST_CASE("all ranks that the launcher started are in one world") {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char* started = std::getenv("PMI_SIZE");
    REQUIRE(started != nullptr);
    CHECK(std::to_string(size) == started);
  }

  TEST_CASE("MPI is MPICH and lets the main thread call it beside other threads") {
    char name[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(name, &length);
    CHECK(std::string(name).find("MPICH Version") == 0);
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    CHECK(level >= MPI_THREAD_FUNNELED);
  }
}
