// Context-parallel attention over MPI: mpirun -n RANKS test_ranks NAME. Every rank ends with 0 if all is right.
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "tests.hpp"

int main(int argc, char** argv) {
  using namespace onepass::test;
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  const std::pair<const char*, bool (*)()> tests[] = {
      {"exact", exact},
      {"features", features},
      {"mesh", mesh},
      {"mesh_differs", mesh_differs},
      {"reproducible", reproducible},
      {"fp8", fp8},
      {"few", few_rows},
      {"nan", unseen_nan},
      {"differ", differ},
      {"overlap", overlap},
      {"throws", throws},
      {"late", late},
      {"exits", exits},
      {"threads", two_at_once},
      {"groups", groups},
      {"decode", decoding},
      {"decode_differ", decoding_differs},
  };
  for (const auto& [name, run] : tests) {
    if (argc != 2 || std::strcmp(argv[1], name) != 0) continue;
    bool right = false;
    try {
      right = run();
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", name, error.what());
    }
    std::fflush(stdout);
    int all = right ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Finalize();
    return all ? 0 : 1;
  }
  MPI_Finalize();
  return 2;
}
