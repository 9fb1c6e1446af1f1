// The bursts on oneTBB, from inside an arena of the given size.
#include "bursts.h"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

static void burst(int tasks, uint64_t steps) {
    tbb::parallel_for(0, tasks, [steps](int) { task(steps); });
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    tbb::global_control limit(tbb::global_control::max_allowed_parallelism, (size_t)threads);
    tbb::task_arena arena(threads);
    int result = 0;
    arena.execute([&] { result = run_bursts(argc, argv, burst); });
    return result;
}
