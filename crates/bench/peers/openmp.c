// The bursts on OpenMP. OMP_WAIT_POLICY chooses between active and passive waiting.
#include "bursts.h"

#include <omp.h>

static void burst(int tasks, uint64_t steps) {
    // A single task needs no team: opening one for it would count against OpenMP.
#pragma omp parallel for schedule(dynamic, 1) if (tasks > 1)
    for (int i = 0; i < tasks; i++) task(steps);
}

int main(int argc, char **argv) {
    if (argc > 1) omp_set_num_threads(atoi(argv[1]));
    return run_bursts(argc, argv, burst);
}
